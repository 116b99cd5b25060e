"""Servers that want to harm the client: whatever they answer, it is one clear sentence and little memory."""

from __future__ import annotations

import contextlib
import re
import resource
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


class Says(grpc.GenericRpcHandler):
    """Answers every call over gRPC with what `said` makes of the request."""

    def __init__(self, said):
        self.said = said

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda raw, context: self.said(raw))


@contextlib.contextmanager
def grpc_liar(folder, says, deadline=30.0, bodies=ALL, **more):
    server = grpc.server(ThreadPoolExecutor(4), [says], **more)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with client_of(folder, Server(f"grpc://127.0.0.1:{port}", bodies), deadline) as client:
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


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"\xff" * 100, "the answer cannot be read"),
        (b"x" * 2**20, "larger than max"),
        (b"", "is not the one that this client was trained with"),
        (
            pb.ModelMetadataResponse(versions=["1", "2"]).SerializeToString(),
            "is not the one that this client was trained with",
        ),
    ],
)
def test_what_a_server_says_of_its_bodies(said, words, client_folder):
    with grpc_liar(client_folder, Says(lambda raw: said), bodies=None) as client:
        assert words in sentence(client)
