"""Requests that make no sense, at MLServer itself: refused with a proper status, and the server stays up."""

from __future__ import annotations

import http.client
import json

import numpy as np
import pytest
import torch

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from exhume.integrations.serve import Client

served = pytest.importorskip("served")
INFER, PATIENCE = served.INFER, served.PATIENCE
pytestmark = [pytest.mark.serve, pytest.mark.xdist_group("serve")]


def post(server, path, body=b""):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("POST", path, body, {"content-type": "application/json"})
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
    with Client(running[0].folder / "client", urls, deadline=30.0) as client:
        torch.testing.assert_close(client(x), served.planted()(x), atol=1e-5, rtol=1e-5)


def test_metrics_count_what_was_asked(running):
    assert post(running[0], INFER, message())[0] == 200
    connection = http.client.HTTPConnection("127.0.0.1", running[0].port + 2, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    assert b'model_infer_request_success_total{model="body0"' in connection.getresponse().read()
    connection.close()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (message(shape=(1, 4, 8)), 400, "shape (n, 4, 8, 8)"),
        (message(shape=(300, 4, 8, 8), data=[0.0]), 400, "n from 1 to 256"),
        (message(shape=(-1, 4, 8, 8)), 400, "n from 1 to 256"),
        (message(shape=(), data=[0.0]), 400, "n from 1 to 256"),
        (message(shape=(1, 4, 8, 8), data=[0.5] * 255), 400, "255 numbers given"),
        (message(datatype="INT64", data=[1] * 256), 400, "datatype FP32 is needed"),
        (message(name="labels"), 400, "one input named features"),
        (message(data=["a"] * 256), 400, "no numbers"),
        (message(data=[[1.0], [1.0, 2.0]]), 400, "no numbers"),
        (message(data=[1e300] * 256), 400, "NaN or infinite"),
        (b'{"inputs": []}', 400, "one input named features"),
        (message(datatype="FLOAT"), 422, ""),
        (message().replace(b'"data"', b'"date"'), 422, ""),
        (b"[]", 422, ""),
        (b"{", 422, ""),
        (b"", 422, ""),
    ],
)
def test_messages_that_make_no_sense_over_rest(body, status, words, running):
    found, said = post(running[0], INFER, body)
    assert (found, words in said.decode()) == (status, True), said


def test_nested_lists_are_read_as_flat_ones(running):
    data = np.random.default_rng(0).normal(size=(2, 4, 8, 8)).astype(np.float32)
    flat, nested = (
        post(running[0], INFER, message(shape=(2, 4, 8, 8), data=form.tolist()))
        for form in (data.ravel(), data)
    )
    assert flat[0] == nested[0] == 200
    assert json.loads(flat[1])["outputs"] == json.loads(nested[1])["outputs"]


def asked(server, array=None, *, shape=None, datatype="FP32", raw=None):
    """One gRPC request, bent; the status it gets."""
    array = np.zeros((1, 4, 8, 8), np.float32) if array is None else array
    given = triton.InferInput("features", list(array.shape), datatype)
    given._raw_content = array.tobytes() if raw is None else raw
    if shape is not None:
        given.set_shape(shape)
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port + 1}")
    try:
        client.infer("body0", [given])
    except InferenceServerException as error:
        return str(error.status()).removeprefix("StatusCode.")
    finally:
        client.close()
    return "OK"


def test_messages_that_make_no_sense_over_grpc(running):
    server = running[0]
    nan = np.full((1, 4, 8, 8), np.nan, np.float32)
    assert asked(server) == "OK"
    assert asked(server, nan) == "INVALID_ARGUMENT"
    assert asked(server, np.zeros((1, 4, 8), np.float32)) == "INVALID_ARGUMENT"
    assert asked(server, np.zeros((1, 4, 8, 8), np.int32), datatype="INT32") == "INVALID_ARGUMENT"
    assert asked(server, shape=[2, 4, 8, 8]) == "INTERNAL"
    assert asked(server, shape=[-1, 4, 8, 8]) == "INTERNAL"
    assert asked(server, raw=b"123") == "INTERNAL"
    assert asked(server, datatype="NONSENSE") == "INTERNAL"
    assert asked(server, np.zeros((257, 4, 8, 8), np.float32)) == "INVALID_ARGUMENT"
    assert asked(server, np.zeros((4096, 4, 8, 8), np.float32)) == "RESOURCE_EXHAUSTED"
    still_right(running)
