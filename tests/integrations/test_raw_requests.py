"""Messages as bytes: what a naive reader makes of them, and what is refused before anything is unpacked."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exhume.core.contract import ExhumeError
from exhume.integrations.raw_requests import (
    BadRequest,
    FeatureRequest,
    features_in,
    many_fields,
    read_json,
)
from exhume.integrations.serve_limits import (
    Served,
    ServeLimits,
    Waiting,
    WorkPlaces,
    private_bytes,
)

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=100, deadline=None)
@given(st.data(), SHAPES, st.integers(1, 3), st.booleans(), st.sampled_from([None, 0, 2]))
def test_json_is_read_as_by_a_naive_reader(data, shape, rows, nested, indent):
    said = (rows, *shape)
    count = math.prod(said)
    wanted = np.array(data.draw(st.lists(NUMBERS, min_size=count, max_size=count)), np.float32)
    array = wanted.reshape(said)
    part = {"data": (array if nested else wanted).tolist(), "name": "features", "datatype": "FP32"}
    items = data.draw(st.permutations([*part.items(), ("shape", list(said))]))
    body = json.dumps({"inputs": [dict(items)], "id": "data"}, indent=indent).encode()
    found = read_json(body, shape)
    assert found.id == "data"
    assert np.array_equal(found.features, array)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_json_that_is_bent_is_refused_or_what_a_naive_reader_says(data):
    message = {
        "name": "features",
        "shape": [2, 3],
        "datatype": "FP32",
        "data": [1, 2.5, -3, 4, 5, 6],
    }
    body = bytearray(json.dumps({"inputs": [message]}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                [b"", b"[", b"]", b",", b"1", b" ", b"-", b"e", b'"', b"{", b"}", b"\xff"]
            )
        )
    try:
        found = read_json(bytes(body), (3,))
    except BadRequest:
        return
    naive = json.loads(bytes(body))["inputs"][0]
    wanted = np.asarray(naive["data"], np.float32).reshape(naive["shape"])
    assert np.array_equal(found.features, wanted)


def test_large_messages_are_read_in_pieces_so_that_others_have_their_turn():
    """A ticker in the event loop goes on while a thread reads 3 MB."""
    values = np.random.default_rng(0).normal(size=(256, 600)).astype(np.float32)
    message = {
        "name": "features",
        "shape": [256, 600],
        "datatype": "FP32",
        "data": values.ravel().tolist(),
    }
    body = json.dumps({"inputs": [message]}).encode()

    async def read():
        ticks, reading = (
            [time.process_time()],
            asyncio.create_task(asyncio.to_thread(read_json, body, (600,))),
        )
        while not reading.done():
            await asyncio.sleep(0)
            ticks.append(time.process_time())  # not the wall's: others may be busy too
        return await reading, max(np.diff(ticks))

    found, pause = asyncio.run(read())
    assert np.array_equal(found.features, values)
    assert pause < 0.5


def varint(number):
    parts = []
    while True:
        number, low = number >> 7, number & 127
        parts.append(low | (128 if number else 0))
        if not number:
            return bytes(parts)


def field(number, body):
    return varint(number << 3 | 2) + varint(len(body)) + body


@pytest.mark.parametrize(
    ("raw", "many"),
    [
        (b"", False),
        (field(1, b"body0"), False),
        (field(5, field(1, b"features") + field(3, b"\x01\x04")), False),
        (field(4, b"") * 64, False),
        (field(4, b"") * 65, True),
        (field(5, field(4, b"") * 64), True),
        (field(5, field(5, field(8, b"") * 64)), True),
        (field(5, field(5, field(6, b"\0" * 400))), False),
        (field(6, field(2, b"") * 64), True),
        (field(5, field(3, b"\x01" * 129)), True),
        (field(7, b"*\x00" * 1000), False),  # raw contents are bytes, whatever they look like
        (b"\x0a\xff", True),
        (b"\x0a\x05abc", True),
        (b"\x0b", True),  # a group
        (b"\xff" * 11, True),
        (b"\x08", True),
        (b"\x08\x01\x0d1234\x0912345678", False),
        (b"\x09123", True),
    ],
)
def test_fields_are_counted_before_they_are_unpacked(raw, many):
    assert many_fields(raw) is many


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_counted_or_refused(raw):
    assert many_fields(raw) in (True, False)


def message(raw=(), inputs=1, shape=(2, 3), name="features", datatype="FP32", **contents):
    """A real `ModelInferRequest`."""
    pb = pytest.importorskip("tritonclient.grpc.service_pb2")
    one = {"name": name, "datatype": datatype, "shape": shape, "contents": contents}
    return pb.ModelInferRequest(id="a", inputs=[one] * inputs, raw_input_contents=list(raw))


def test_features_of_a_protobuf_message():
    values = np.arange(6, dtype=np.float32)
    for asked in (message([values.tobytes()]), message(fp32_contents=values)):
        found = features_in(asked, (3,))
        assert isinstance(found, FeatureRequest)
        assert np.array_equal(found.features, values.reshape(2, 3))


def test_many_numbers_are_not_read_one_by_one():
    """One by one, in one call, they keep the interpreter from every other thread."""
    values = np.random.default_rng(0).normal(size=(2, 500_000)).astype(np.float32)
    asked = message(shape=values.shape, fp32_contents=values.ravel())
    began = time.process_time()
    found = features_in(asked, (500_000,)).features
    took = time.process_time() - began
    naive = np.fromiter(asked.inputs[0].contents.fp32_contents, np.float32, values.size)
    assert np.array_equal(found, naive.reshape(values.shape))
    assert took < (time.process_time() - began - took) / 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": 0}, "one input named features"),
        ({"inputs": 2}, "one input named features"),
        ({"name": "x"}, "one input named features"),
        ({"datatype": "FP64"}, "datatype FP32 is needed, FP64 given"),
        ({"shape": (2, 4)}, r"shape \(n, 3\) with n from 1 to 256 is needed"),
        ({"shape": (257, 3)}, "n from 1 to 256"),
        ({"raw": []}, "needed once"),
        ({"fp32_contents": [1.0] * 6}, "needed once"),
        ({"raw": [b"1234"] * 2}, "needed once"),
        ({"raw": [b"1234"]}, r"4 bytes given for shape \(2, 3\)"),
        ({"raw": [], "fp32_contents": [1.0]}, r"1 numbers given for shape \(2, 3\)"),
        *(
            ({"raw": [], "fp32_contents": [1.0] * 6, other: [1]}, "fp32 contents and no others")
            for other in ("int_contents", "fp64_contents")
        ),
    ],
)
def test_protobuf_messages_that_do_not_fit(change, words):
    with pytest.raises(BadRequest, match=words):
        features_in(message(**{"raw": [b"\0" * 24], **change}), (3,))


def test_who_comes_is_let_in_and_the_longest_gives_way():
    waiting, gone = Waiting(4), []

    def enter(address, name):
        return waiting.enter(address, lambda: gone.append(name))

    enter("one", "a")
    second = enter("one", "b")
    enter("one", "c")  # more than half of four: its own first
    assert gone == ["a"]
    waiting.leave("one", second)
    enter("two", "d")
    enter("two", "e")
    enter("three", "f")
    enter("four", "g")  # full: of the address that has most
    assert gone == ["a", "d"]
    waiting.leave("one", second)  # twice does no harm
    enter("five", "h")
    assert gone == ["a", "d", "c"]


def test_places_are_counted():
    places = WorkPlaces(ServeLimits(at_once=2))
    assert [places.take(10) for _ in range(3)] == [True, True, False]
    places.give(10)
    assert places.take(10)


def test_places_are_fewer_for_large_messages():
    limits = ServeLimits(bytes=2048, at_once=64)
    places = WorkPlaces(limits)
    assert sum(places.take(2048) for _ in range(64)) == 8
    assert places.take(0)
    places.give(2048)
    assert places.take(2048)
    assert not places.take(1)


def test_sizes_follow_the_features_up_to_the_limit():
    served = Served({"body0": "7"}, {"body0": (4, 8, 8)})
    assert served.binary_bytes(ServeLimits()) == 16384 + 4 * 256 * 256
    assert served.text_bytes(ServeLimits()) == 16384 + 26 * 256 * 256
    assert served.binary_bytes(ServeLimits(bytes=2048)) == 2048
    assert served.has("body0", "")
    assert served.has("body0", "7")
    assert not served.has("body0", "8")
    assert not served.has("body1", "")


def test_files_that_others_can_read(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    assert private_bytes(path, "TLS") == b"secret"
    for mode in (0o640, 0o604, 0o620, 0o601):
        path.chmod(mode)
        with pytest.raises(ExhumeError, match=rf"TLS: others can read .* \(mode {mode:04o}\)"):
            private_bytes(path, "TLS")
    with pytest.raises(ExhumeError, match="TLS: .*No such file"):
        private_bytes(tmp_path / "nothing", "TLS")
    if os.geteuid():
        path.chmod(0o000)
        with pytest.raises(ExhumeError, match="Permission denied"):
            private_bytes(path, "TLS")
