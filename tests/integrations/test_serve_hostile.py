"""Requests that nobody with good intentions sends: refused with a proper status, and the server stays up."""

from __future__ import annotations

import http.client
import json
import socket
import time

import numpy as np
import pytest
import torch

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

import grpc
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from exhume.integrations.serve import Client

served = pytest.importorskip("served")
TOKEN, INFER = served.TOKEN, served.INFER
ADMITTED = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
pytestmark = [pytest.mark.serve, pytest.mark.xdist_group("serve")]


def post(server, path, body=b"", headers=ADMITTED):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=served.PATIENCE)
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def message(data=None, shape=(1, 4, 8, 8), datatype="FP32", name="features"):
    data = [0.5] * int(np.prod(np.abs(shape))) if data is None else data
    given = {"name": name, "shape": list(shape), "datatype": datatype, "data": data}
    return json.dumps({"inputs": [given]}).encode()


def still_right(running):
    x = torch.rand(1, 3, 16, 16)
    urls = [s.grpc for s in running]
    with Client(running[0].folder / "client", urls, token=TOKEN, deadline=30.0) as client:
        torch.testing.assert_close(client(x), served.planted()(x), atol=1e-5, rtol=1e-5)


def test_without_a_token_only_health_is_answered(running):
    server = running[0]
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}):
        assert post(server, INFER, message(), headers)[0] == 401
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=served.PATIENCE)
    connection.request("GET", "/v2/health/live")
    assert connection.getresponse().status == 200
    assert post(server, INFER, message())[0] == 200
    connection = http.client.HTTPConnection("127.0.0.1", server.port + 2, timeout=served.PATIENCE)
    connection.request("GET", "/metrics")
    assert b'model_infer_request_success_total{model="body0"' in connection.getresponse().read()


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/models/body0/unload",
        "/v2/repository/index",
        "/v2/models/body0/generate",
        "/v2/models/body0/infer_stream",
        "/v2/models/../repository/models/body0/unload",
        "/v2/docs",
        "/",
    ],
)
def test_other_doors_are_shut(path, running):
    assert post(running[0], path, b"{}")[0] == 404
    assert post(running[0], INFER, message())[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (message(shape=(1, 4, 8)), 400, "shape (n, 4, 8, 8)"),
        (message(shape=(300, 4, 8, 8), data=[0.0]), 400, "n from 1 to 256"),
        (message(shape=(-1, 4, 8, 8)), 400, "n from 1 to 256"),
        (message(shape=(1, 4, 8, 8), data=[0.5] * 255), 400, "255 numbers given"),
        (message(datatype="INT64", data=[1] * 256), 400, "datatype FP32 is needed"),
        (message(name="labels"), 400, "one input named features"),
        (message(data=["a"] * 256), 400, "no numbers"),
        (message(data=[[1.0], [1.0, 2.0]]), 400, "3 numbers given"),
        (message(data=[[0.5] * 255, [0.5]]), 400, "no numbers"),
        (message(data=[0.5] * 255 + [True]), 400, "no numbers"),
        (message(data=[0.5] * 255 + [10**400]), 400, "no numbers"),
        (message().replace(b"0.5]", b"0.5 5]"), 400, "no numbers"),
        (message().replace(b"0.5]", b"05]"), 400, "no numbers"),
        (message().replace(b"0.5]", b"]"), 400, "no numbers"),
        (message() + message(), 400, "one input"),
        (message().replace(b'"data"', b'"date"'), 400, "no numbers"),
        (b'{"id": 5, "inputs": []}', 400, "id: a text"),
        (b"[]", 400, "no JSON object"),
        (message(data=[1e300] * 256), 400, "NaN or infinite"),
        (message().replace(b"0.5", b"NaN"), 400, "no numbers"),
        (message(datatype="FLOAT"), 400, "datatype FP32 is needed"),
        (b'{"inputs": []}', 400, "one input named features"),
        (b"{", 400, "no JSON"),
        (b"\xff\xfe", 400, "no JSON"),
        (b"[" * 10_000, 400, "more than 8192 bytes that are no data"),
        (b"", 400, "no JSON"),
    ],
)
def test_messages_that_make_no_sense_over_rest(body, status, words, running):
    found, said = post(running[0], INFER, body)
    assert found == status
    assert words in said.decode()


def test_nested_lists_are_read_as_flat_ones(running):
    data = np.random.default_rng(0).normal(size=(2, 4, 8, 8)).astype(np.float32)
    flat, nested = (
        post(running[0], INFER, message(shape=(2, 4, 8, 8), data=form.tolist()))
        for form in (data.ravel(), data)
    )
    assert flat[0] == nested[0] == 200
    assert json.loads(flat[1])["outputs"] == json.loads(nested[1])["outputs"]


def test_large_messages_are_refused_unread(running):
    server, before = running[0], running[0].resident()
    with socket.create_connection(("127.0.0.1", server.port), timeout=served.PATIENCE) as wire:
        head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
        wire.sendall(f"{head}content-length: {2**30}\r\n\r\n".encode())
        assert b" 413 " in wire.recv(65536)
    with socket.create_connection(("127.0.0.1", server.port), timeout=served.PATIENCE) as wire:
        wire.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        try:
            for _ in range(1000):  # 64 MB, if anybody would read them
                wire.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        except OSError:
            pass  # it has hung up
        else:
            pytest.fail("everything was read")
    packed = {**ADMITTED, "content-encoding": "gzip"}
    assert post(server, INFER, served.bomb(128), packed)[0] == 415
    assert server.resident() - before < 2**26
    still_right(running)


def test_slow_senders_are_given_up(running):
    with socket.create_connection(("127.0.0.1", running[0].port), timeout=served.PATIENCE) as wire:
        head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
        wire.sendall(f"{head}content-length: 5000\r\n\r\n ".encode())
        started = time.monotonic()
        assert b" 408 " in wire.recv(65536)
        assert 2 < time.monotonic() - started < served.PATIENCE
    still_right(running)


def asked(server, array=None, *, shape=None, datatype="FP32", raw=None, headers=None):
    """One gRPC request, bent; the status it gets."""
    array = np.zeros((1, 4, 8, 8), np.float32) if array is None else array
    given = triton.InferInput("features", list(array.shape), datatype)
    given._raw_content = array.tobytes() if raw is None else raw
    if shape is not None:
        given.set_shape(shape)
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port + 1}")
    try:
        client.infer(
            "body0", [given], headers={"authorization": f"Bearer {TOKEN}", **(headers or {})}
        )
    except InferenceServerException as error:
        return str(error.status()).removeprefix("StatusCode.")
    finally:
        client.close()
    return "OK"


def test_messages_that_make_no_sense_over_grpc(running):
    server = running[0]
    nan = np.full((1, 4, 8, 8), np.nan, np.float32)
    assert asked(server) == "OK"
    assert asked(server, headers={"authorization": "Bearer wrong"}) == "UNAUTHENTICATED"
    assert asked(server, nan) == "INVALID_ARGUMENT"
    assert asked(server, np.zeros((1, 4, 8), np.float32)) == "INVALID_ARGUMENT"
    assert asked(server, np.zeros((1, 4, 8, 8), np.int32), datatype="INT32") == "INVALID_ARGUMENT"
    assert asked(server, shape=[2, 4, 8, 8]) == "INVALID_ARGUMENT"
    assert asked(server, shape=[10**12, 4, 8, 8]) == "INVALID_ARGUMENT"
    assert asked(server, shape=[-1, 4, 8, 8]) == "INVALID_ARGUMENT"
    assert asked(server, raw=b"123") == "INVALID_ARGUMENT"
    assert asked(server, datatype="NONSENSE") == "INVALID_ARGUMENT"
    assert asked(server, np.zeros((4096, 4, 8, 8), np.float32)) == "RESOURCE_EXHAUSTED"
    still_right(running)


def test_calls_that_are_not_there_and_bytes_that_are_no_call(running):
    place = f"127.0.0.1:{running[0].port + 1}"
    token = (("authorization", f"Bearer {TOKEN}"),)
    with grpc.insecure_channel(place) as channel:

        def status(method, body, service="inference.GRPCInferenceService"):
            call = channel.unary_unary(f"/{service}/{method}")
            with pytest.raises(grpc.RpcError) as refused:
                call(body, metadata=token, timeout=served.PATIENCE)
            return refused.value.code().name

        assert status("RepositoryModelUnload", b"") == "UNIMPLEMENTED"
        assert status("ModelUnload", b"", "inference.model_repository.ModelRepositoryService") == (
            "UNIMPLEMENTED"
        )
        whole = triton.service_pb2.ModelInferRequest(model_name="body0", id="x" * 50)
        assert status("ModelInfer", whole.SerializeToString()[:-20]) == "INVALID_ARGUMENT"
        assert status("ModelInfer", b"\xff" * 100) == "INVALID_ARGUMENT"
        assert status("ModelInfer", b"") in ("NOT_FOUND", "INVALID_ARGUMENT")
    with socket.create_connection(
        ("127.0.0.1", running[0].port + 1), timeout=served.PATIENCE
    ) as wire:
        wire.sendall(b"\x00" * 1000)
    still_right(running)
