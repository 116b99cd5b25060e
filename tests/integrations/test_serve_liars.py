"""Servers that want to harm the client: whatever they answer, it is one clear sentence and little memory."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from exhume.core.contract import ExhumeError

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

import grpc
import tritonclient.grpc as triton

from exhume.integrations.serve import Client, Server

served = pytest.importorskip("served")
pb = triton.service_pb2
SHAPE = [1, 32]  # of the right answer
ID = b"the-request's-id"  # as long as one


class Liar:
    """Answers every request over HTTP with the same bytes, in which `ID` is the request's own name."""

    def __init__(self, said):
        self.said = said
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                wire, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(wire,), daemon=True).start()

    def _answer(self, wire):
        with wire:
            heard = b""
            while b"\r\n\r\n" not in heard:
                heard += wire.recv(65536)
            found = re.search(rb"content-length: (\d+)", heard.lower())
            size = len(heard.partition(b"\r\n\r\n")[0]) + 4 + int(found.group(1) if found else 0)
            while len(heard) < size:
                heard += wire.recv(65536)
            name = re.search(rb'"id": ?"([0-9a-f]+)"', heard)
            with contextlib.suppress(OSError):  # hung up, as it should
                wire.sendall(self.said.replace(ID, name.group(1) if name else ID))


def reply(content, *headers, status="200 OK"):
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(content)}", "connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def answer(data=None, **change):
    output = {"name": "answer", "shape": SHAPE, "datatype": "FP32", "data": data or [0.5] * 32}
    return json.dumps({"id": ID.decode(), "outputs": [{**output, **change}]}).encode()


ALL = (0, 1, 2, 3)  # bodies that a server is said to hold, so that it is not asked


def client_of(folder, place, deadline=30.0):
    return Client(folder, [place], deadline=deadline, repeats=0)


def sentence(client, more=64):
    """What the client says, having held no more megabytes than that."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ExhumeError) as said:
        client(torch.rand(1, 3, 16, 16))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < more * 1024
    return str(said.value)


@pytest.fixture(scope="module")
def over_rest(client_folder):
    """A liar, and a client that goes on asking it."""
    liar = Liar(b"")
    with client_of(client_folder, Server(liar.url, ALL)) as client:
        yield liar, client
    liar.listener.close()


def test_an_honest_answer_passes(over_rest):
    liar, client = over_rest
    liar.said = reply(answer())
    assert client(torch.rand(1, 3, 16, 16)).shape == (1, 5)


BOMB = served.bomb(512)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (reply(BOMB, "content-encoding: gzip"), "the answer is compressed"),
        (reply(b"x", "content-encoding: br"), "the answer is compressed"),
        (reply(b"x" * 2**20), "is larger than the 278528 bytes expected"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 2**26, "is larger than the 278528 bytes expected"),
        (reply(b"x" * 2**20, status="400 Bad"), "is larger than the 4096 bytes expected"),
        (reply(b"{"), "the answer is no JSON"),
        (reply(b""), "the answer is no JSON"),
        (reply(b"\xff\xfe"), "the answer is no JSON"),
        (reply(b"[" * 200_000), "the answer is no JSON"),
        (reply(b"7" * 200_000), "the answer is no JSON"),
        (reply(b"[]"), "the answer is no JSON object"),
        (reply(b"[]", status="500 Oh"), r"refuses body0 \(500: \)"),
        (reply(b'{"error": "\\u001b[31m no"}', status="400 Oh"), r"\(400: \?\[31m no\)"),
        (reply(b"{}"), "no output named answer"),
        (reply(b'{"outputs": 5}'), "no output named answer"),
        (reply(b'{"outputs": [5]}'), "no output named answer"),
        (reply(answer(name="other")), "no output named answer"),
        (reply(answer().replace(ID, b"other")), "belongs to another request"),
        (reply(answer(shape=[32])), "FP32 of .* was expected"),
        (reply(answer(shape="1, 32")), "FP32 of .* was expected"),
        (reply(answer(datatype="FP64")), "FP32 of .* was expected"),
        (reply(answer(data=[0.5] * 31)), "31 numbers for shape"),
        (reply(answer(data=["a"] * 32)), "holds no numbers"),
        (reply(answer(data=[[1.0], [1.0, 2.0]])), "holds no numbers"),
        (reply(answer(data={"a": 1})), "holds no numbers"),
        (reply(answer(data=[10**400] * 32)), "holds no numbers"),
        (reply(answer(data=[1e300] * 32)), "not finite"),
        (reply(answer(data=[float("nan")] * 32)), "not finite"),
        (reply(b"", "location: http://127.0.0.1:9/", status="302 There"), "302"),
        (b"\x00" * 100, "does not answer"),
        (b"", "does not answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000, "does not answer"),
    ],
)
def test_answers_over_rest_that_are_none(said, words, over_rest):
    liar, client = over_rest
    liar.said = said
    told = sentence(client)
    assert re.search(words, told), told
    assert re.match("servers: ", told)
    assert len(told) < 300


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (reply(BOMB, "content-encoding: gzip"), "the answer is compressed"),
        (reply(b"x" * 2**20), "is larger than"),
        (reply(b"nonsense"), "the answer is no JSON"),
        (reply(b'{"versions": {"a": 1}}'), "is not the one that this client was trained with"),
        (reply(b'{"versions": [[]]}'), "is not the one that this client was trained with"),
    ],
)
def test_what_a_server_says_of_its_bodies(said, words, client_folder):
    liar = Liar(said)
    with client_of(client_folder, liar.url) as client:
        assert words in sentence(client)
    liar.listener.close()


def test_a_server_that_never_ends(client_folder):
    """One byte at a time, for ever: the deadline holds."""
    liar, started = Liar(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"), time.monotonic()
    liar._answer = lambda wire: wire.sendall(liar.said) or threading.Event().wait()
    with client_of(client_folder, Server(liar.url, ALL), deadline=1.0) as client:
        assert "no answer" in sentence(client)
    assert time.monotonic() - started < 60


class Says(grpc.GenericRpcHandler):
    """Answers every call over gRPC with what `said` makes of the request."""

    def __init__(self, said):
        self.said = said

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda raw, context: self.said(raw))


@contextlib.contextmanager
def grpc_liar(folder, says, deadline=30.0, **more):
    server = grpc.server(ThreadPoolExecutor(4), [says], **more)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with client_of(folder, Server(f"grpc://127.0.0.1:{port}", ALL), deadline) as client:
        yield client
    server.stop(None)


@pytest.fixture(scope="module")
def over_grpc(client_folder):
    """A liar, and a client that goes on asking it."""
    says = Says(message)
    with grpc_liar(client_folder, says) as client:
        yield says, client


def message(raw, **change):
    """A right answer to this request, then bent."""
    found = pb.ModelInferResponse(
        id=pb.ModelInferRequest.FromString(raw).id,
        outputs=[{"name": "answer", "datatype": "FP32", "shape": SHAPE}],
        raw_output_contents=[np.full(32, 0.5, np.float32).tobytes()],
    )
    for name, value in change.items():
        found.ClearField(name)
        found.MergeFrom(pb.ModelInferResponse(**{name: value}))
    return found.SerializeToString()


def outputs(**change):
    return {"outputs": [{"name": "answer", "datatype": "FP32", "shape": SHAPE, **change}]}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (lambda raw: b" " * 2**20, "larger than max"),
        (lambda raw: b"\xff" * 100, "the answer cannot be read"),
        (lambda raw: b"", "no output named answer"),
        (lambda raw: b"*\x00" * 10_000, "no output named answer"),
        (lambda raw: message(raw, id="other"), "belongs to another request"),
        (lambda raw: message(raw, **outputs(name="x")), "no output named answer"),
        (lambda raw: message(raw, **outputs(shape=[2**40, 32])), "FP32 of .* was expected"),
        (lambda raw: message(raw, **outputs(datatype="BYTES")), "FP32 of .* was expected"),
        (lambda raw: message(raw, raw_output_contents=[b"123"]), "does not hold the 32 numbers"),
        (lambda raw: message(raw, raw_output_contents=[]), "does not hold the 32 numbers"),
        (lambda raw: message(raw, raw_output_contents=[b"\xff" * 128]), "not finite"),
    ],
)
def test_answers_over_grpc_that_are_none(said, words, over_grpc):
    says, client = over_grpc
    says.said = said
    told = sentence(client)
    assert re.search(words, told), told
    assert len(told) < 300


def test_an_honest_answer_over_grpc_passes(over_grpc):
    says, client = over_grpc
    says.said = message
    assert client(torch.rand(1, 3, 16, 16)).shape == (1, 5)


def test_a_packed_answer_over_grpc_is_refused(client_folder):
    packed = Says(lambda raw: b" " * 2**24)
    with grpc_liar(client_folder, packed, 60.0, compression=grpc.Compression.Gzip) as client:
        assert "refuses body0" in sentence(client, more=512)  # the liar's own, in this process
