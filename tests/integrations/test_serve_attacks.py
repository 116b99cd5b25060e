"""Attacks on a server's places, time and memory: others are answered meanwhile, health within a second.

One of each kind of message is tried always, the rest and those in large numbers are slow.
"""

from __future__ import annotations

import contextlib
import http.client
import queue
import socket
import threading
import time
import zlib

import numpy as np
import pytest
import torch

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

import grpc
import tritonclient.grpc as triton

from exhume.integrations.serve import Client

served = pytest.importorskip("served")
TOKEN, INFER, SERVICE, ADMITTED = served.TOKEN, served.INFER, served.SERVICE, served.ADMITTED
PATIENCE = served.PATIENCE
pytestmark = [pytest.mark.serve, pytest.mark.xdist_group("serve")]


def healthy(server, within=1.0):
    """Both doors say that the server lives, before it has worked for this long.

    By the processor's time: how long that takes on a busy machine says nothing. In seconds of the clock it
    is measured by the hostile tests.
    """
    used = server.processor()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("GET", "/v2/health/live")
    assert connection.getresponse().status == 200
    connection.close()
    with grpc.insecure_channel(f"127.0.0.1:{server.port + 1}") as channel:
        raw = channel.unary_unary(f"{SERVICE}/ServerLive")(b"", timeout=PATIENCE)
    assert triton.service_pb2.ServerLiveResponse.FromString(raw).live
    assert server.processor() - used < within


def answers(running, scheme="grpc"):
    x = torch.rand(2, 3, 16, 16)
    urls = [getattr(s, scheme) for s in running]
    with Client(running[0].folder / "client", urls, token=TOKEN, deadline=PATIENCE) as client:
        torch.testing.assert_close(client(x), served.planted()(x), atol=1e-5, rtol=1e-5)


@contextlib.contextmanager
def silent_streams(server, count, metadata):
    """Calls on one connection that send headers and never a message; statuses as they come."""
    ended, found = threading.Event(), queue.Queue()

    def nothing():
        ended.wait()
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{server.port + 1}") as channel:
        method = channel.stream_unary(f"{SERVICE}/ModelInfer")
        for _ in range(count):
            call = method.future(nothing(), metadata=metadata, timeout=PATIENCE)
            call.add_done_callback(lambda done: found.put(done.code().name))
        try:
            yield found
        finally:
            ended.set()


def test_without_a_token_a_silent_stream_is_refused_on_its_headers(running):
    with silent_streams(running[0], 20, ()) as found:
        assert {found.get(timeout=PATIENCE) for _ in range(20)} == {"UNAUTHENTICATED"}
        healthy(running[0])
        answers(running)


@pytest.mark.slow
def test_silent_streams_with_a_token_hold_no_place_and_are_given_up(running):
    started = time.monotonic()
    with silent_streams(running[0], 150, ADMITTED) as found:
        healthy(running[0])
        answers(running)
        seen = [found.get(timeout=PATIENCE) for _ in range(150)]
        assert set(seen) <= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
        assert "DEADLINE_EXCEEDED" in seen
    assert time.monotonic() - started < PATIENCE


def test_half_a_message_over_grpc_is_given_up_too(running):
    """Frames by hand: headers, then the first bytes of a message that is never ended."""
    with socket.create_connection(("127.0.0.1", running[0].port + 1), timeout=PATIENCE) as wire:
        wire.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        block = b"".join(
            b"\x00" + chr(len(name)).encode() + name + chr(len(value)).encode() + value
            for name, value in (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", f"{SERVICE}/ModelInfer".encode()),
                (b":authority", b"here"),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
                (b"authorization", f"Bearer {TOKEN}".encode()),
            )
        )
        started, heard = time.monotonic(), b""
        wire.sendall(frame(1, 4, 1, block) + frame(0, 0, 1, b"\x00\x00\x00\x10\x00" + b"half"))
        while b"grpc-status" not in heard:
            data = wire.recv(65536)
            assert data
            heard += data
        assert 2 < time.monotonic() - started < PATIENCE
    answers(running)


def frame(kind, flags, stream, body):
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


@contextlib.contextmanager
def connections(port, count, said, source="127.0.0.1"):
    made = []
    try:
        for _ in range(count):
            wire = socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0))
            made.append(wire)
            with contextlib.suppress(OSError):
                wire.sendall(said)
        yield made
    finally:
        for wire in made:
            wire.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"POST /v2/models/body0/infer HTTP/1.1\r\nhost: x\r\nauthor",
        f"POST {INFER} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
        "content-length: 5000\r\n\r\n{".encode(),
    ],
)
def test_half_sent_requests_do_not_shut_rest(said, running):
    server = running[0]
    with connections(server.port, 600, said) as made:
        healthy(server)
        answers(running, "rest")
        started = time.monotonic()
        for wire in made:  # hung up, each of them, once its time is over
            with contextlib.suppress(ConnectionError):
                while wire.recv(65536):
                    pass
        assert time.monotonic() - started < PATIENCE


@pytest.mark.slow
def test_one_address_does_not_push_out_another(running):
    server = running[0]
    kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    kept.request("GET", "/v2/health/live")
    assert kept.getresponse().read() is not None
    wire = kept.sock
    with connections(server.port, 600, b"GET /v2/hea", "127.0.0.2"):
        healthy(server)
        kept.request("GET", "/v2/health/live")
        assert kept.getresponse().status == 200
        assert kept.sock is wire  # the same connection, open all the while
    kept.close()


@pytest.mark.slow
def test_connections_that_say_nothing_to_grpc_and_metrics(running):
    server = running[0]
    with connections(server.port + 1, 600, b""), connections(server.port + 2, 600, b"GET /me"):
        healthy(server)
        answers(running)
        scraped = http.client.HTTPConnection("127.0.0.1", server.port + 2, timeout=PATIENCE)
        scraped.request("GET", "/metrics")
        assert scraped.getresponse().status == 200
    other = http.client.HTTPConnection("127.0.0.1", server.port + 2, timeout=PATIENCE)
    other.request("GET", "/openapi.json")
    assert other.getresponse().status == 404


@pytest.mark.slow
def test_one_address_has_no_more_than_half_of_the_grpc_connections(running):
    """600 that have shaken hands and then say nothing; another's stays, and so do 256 of them."""
    server, hello = running[0], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    with grpc.insecure_channel(f"127.0.0.1:{server.port + 1}") as channel:
        live = channel.unary_unary(f"{SERVICE}/ServerLive")
        live(b"", timeout=PATIENCE)
        seen = []
        channel.subscribe(seen.append)
        with connections(server.port + 1, 600, hello, "127.0.0.2") as made:
            assert gone(made, 600 - 256) == 600 - 256
            healthy(server)
            answers(running)
            live(b"", timeout=PATIENCE)
        assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in seen  # it was never hung up


def gone(made, count, within=PATIENCE):
    """How many of some connections are hung up, once so many are, or none for a while."""
    until, open_ = time.monotonic() + within, list(made)
    while len(made) - len(open_) < count and time.monotonic() < until:
        open_ = [wire for wire in open_ if not hung_up(wire)]
        time.sleep(0.1)
    time.sleep(1.5)  # two more looks of the server: it goes no further
    return len(made) - sum(not hung_up(wire) for wire in open_)


def hung_up(wire):
    wire.setblocking(False)
    try:
        while wire.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def sent(server, raw, method="ModelInfer", **more):
    """Bytes as one gRPC message; the status they get."""
    with grpc.insecure_channel(f"127.0.0.1:{server.port + 1}") as channel:
        call = channel.unary_unary(f"{SERVICE}/{method}")
        try:
            call(raw, metadata=ADMITTED, timeout=PATIENCE, **more)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


def posted(server, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    connection.request("POST", INFER, body, headers)
    response = connection.getresponse()
    found = response.status, response.read().decode()
    connection.close()
    return found


@contextlib.contextmanager
def cheap(server, seconds=0.5, more=2**26):
    """What happens inside costs the server little processor time and memory."""
    used, held = server.processor(), server.resident()
    yield
    assert server.processor() - used < seconds
    assert server.resident() - held < more


def slow_rows(*rows):
    """Rows of a table of parameters that are tried before a release only."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.slow)
        for row in rows
    ]


WHOLE = triton.service_pb2.ModelInferRequest(
    model_name="body0",
    inputs=[{"name": "features", "datatype": "FP32", "shape": [1, 4, 8, 8]}],
    raw_input_contents=[np.zeros(256, np.float32).tobytes()],
)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"*\x00" * 100_000, "INVALID_ARGUMENT"),  # as many inputs as fit
        (b"*\x00" * 1_000_000, "RESOURCE_EXHAUSTED"),
        *slow_rows(
            (b"2\x00" * 100_000, "INVALID_ARGUMENT"),  # outputs
            (b":\x00" * 100_000, "INVALID_ARGUMENT"),  # contents
            (b'"\x00' * 100_000, "INVALID_ARGUMENT"),  # parameters
            (b"\xfa\x3f\x00" * 60_000, "INVALID_ARGUMENT"),  # fields that nobody knows
            (b"*\xc0\x9a\x0c" + b'"\x00' * 100_000, "INVALID_ARGUMENT"),  # an input's parameters
            (b"*\xc4\x9a\x0c*\xc0\x9a\x0c" + b"B\x00" * 100_000, "INVALID_ARGUMENT"),  # contents
            (b"*\xc4\x9a\x0c\x1a\xc0\x9a\x0c" + b"\x01" * 200_000, "INVALID_ARGUMENT"),  # its shape
        ),
    ],
)
def test_small_messages_of_many_parts_over_grpc(raw, status, running):
    with cheap(running[0]):
        assert sent(running[0], raw) == status
        healthy(running[0])
    assert sent(running[0], WHOLE.SerializeToString()) == "OK"


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[' + b"{}," * 300_000 + b"{}]}",
        *slow_rows(
            b'{"inputs":[{"name":"features","shape":[1,4,8,8],"datatype":"FP32","data":['
            + b"[]," * 400_000
            + b"[]]}]}",
            b'{"inputs":[' + b"[]," * 400_000 + b"[]]}",
            b"[" * 1_200_000,
            b'{"id":"' + b"x" * 1_000_000 + b'"}',
            b'{"inputs":[{"name":"features","shape":[1,4,8,8],"datatype":"FP32","data":['
            + b"1" * 1_200_000
            + b"]}]}",
            b"[]," * 500_000,
            b'{"data":[' * 100_000,
        ),
    ],
)
def test_small_messages_of_many_parts_over_rest(body, running):
    with cheap(running[0]):
        assert posted(running[0], body)[0] in (400, 413)
        healthy(running[0])
    answers(running, "rest")


def test_the_size_of_messages_follows_the_features(running):
    """256 records of 4 x 8 x 8 numbers, not the 2 MB that the command line allows at most."""
    head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
    with connections(running[0].port, 1, f"{head}content-length: 1990000\r\n\r\n".encode()) as (
        wire,
    ):
        said = http.client.HTTPResponse(wire)
        said.begin()
        assert said.status == 413
        assert f"at most {256 * 256 * 26 + 16384} bytes" in said.read().decode()
    assert sent(running[0], b"\x1a\xe0\xd4\x12" + b"x" * 300_000) == "RESOURCE_EXHAUSTED"


def test_compressed_messages_over_grpc_are_not_unpacked(running):
    """50 MB that are 50 kB on the wire."""
    with cheap(running[0], more=2**25):
        found = sent(running[0], b"\x00" * 50_000_000, compression=grpc.Compression.Gzip)
        assert found in ("UNIMPLEMENTED", "INVALID_ARGUMENT")
        packed = zlib.compress(WHOLE.SerializeToString())
        assert sent(running[0], packed) == "INVALID_ARGUMENT"
        healthy(running[0])
    answers(running)


def test_models_that_are_not_there(running):
    pb = triton.service_pb2
    for name, version in (("body9", ""), ("body2", ""), ("body0", "7"), ("", ""), ("x" * 999, "")):
        ready = pb.ModelReadyRequest(name=name, version=version).SerializeToString()
        asked = pb.ModelInferRequest(model_name=name, model_version=version).SerializeToString()
        assert sent(running[0], ready, "ModelReady") == "NOT_FOUND"
        assert sent(running[0], ready, "ModelMetadata") == "NOT_FOUND"
        assert sent(running[0], asked) == "NOT_FOUND"
    connection = http.client.HTTPConnection("127.0.0.1", running[0].port, timeout=PATIENCE)
    for path in ("body9", "body9/ready", "body0/versions/7", "body0/versions/7/infer"):
        connection.request("GET", f"/v2/models/{path}", headers=dict(ADMITTED))
        response = connection.getresponse()
        assert (response.status, b"no such model" in response.read()) == (404, True)
        connection.close()
    scraped = http.client.HTTPConnection("127.0.0.1", running[0].port + 2, timeout=PATIENCE)
    scraped.request("GET", "/metrics")
    assert b"body9" not in scraped.getresponse().read()  # names of strangers are not remembered


def test_websockets_are_refused(running):
    with socket.create_connection(("127.0.0.1", running[0].port), timeout=PATIENCE) as wire:
        wire.sendall(
            b"GET /v2/models/body0 HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n"
            b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert wire.recv(65536).startswith(b"HTTP/1.1 401 ")
