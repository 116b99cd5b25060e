"""Thousands of fuzzed requests over REST and gRPC, and two servers under load of which one dies.

Of every request: a proper status and no traceback in the server's log; and a bound on its memory, and health
within a second throughout. Each run is drawn from its seed alone.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import sys
import threading
import time

import grpc
import numpy as np
import pytest
import torch

from exhume.core.contract import ExhumeError, Key

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

from tritonclient.grpc import service_pb2 as pb

from exhume.integrations.serve import Client

served = pytest.importorskip("served")
TOKEN, INFER, SERVICE, ADMITTED = served.TOKEN, served.INFER, served.SERVICE, served.ADMITTED
SEEDS = {"rest": 20_250, "grpc": 20_251, "raw": 20_252}
MEMORY = 2**26  # bytes that a server may hold more afterwards
pytestmark = [pytest.mark.serve, pytest.mark.xdist_group("serve")]


def bent(draw, whole):
    """Bytes changed, cut, repeated, moved or put in."""
    body = bytearray(whole)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(body) + 1)
        match draw.randrange(6):
            case 0:
                del body[at:]
            case 1:
                body[at : at + 1] = bytes((draw.randrange(256),))
            case 2:
                body[at:at] = draw.randbytes(draw.randrange(1, 20))
            case 3:
                body[at:at] = body[at : at + draw.randrange(200)] * draw.randrange(1, 20)
            case 4:
                del body[at : at + draw.randrange(1, 30)]
            case _:
                body[at:at] = draw.choice(
                    (b"[", b"]", b"{", b"}", b'"data":[', b"\\u0000", b"1e999")
                )
    return bytes(body[:500_000])


def text(draw):
    """A message in JSON whose parts are of any kind."""
    odd = (None, True, -1, 0, 2**63, 1e308, "x", "", [], {}, [[]], "features", "FP32", "NaN")
    data = [draw.random() for _ in range(256)]
    given = {"name": "features", "shape": [1, 4, 8, 8], "datatype": "FP32", "data": data}
    message = {"id": "a", "inputs": [given]}
    for _ in range(draw.randrange(3)):
        part = draw.choice((given, message))
        name = draw.choice((*part, "parameters", "outputs", "data", "binary_data_size"))
        part[name] = draw.choice(odd)
    if draw.random() < 0.1:
        message["inputs"] = [given] * draw.randrange(4)
    return json.dumps(message).encode()


def fuzz_rest(server, count, seed):
    draw, seen = random.Random(seed), {}
    paths = (*[INFER] * 16, "/v2/models/body0", "/v2", "/v2/models/%00", "/v2/%2e%2e/x")
    for _ in range(count):
        body = bent(draw, text(draw)) if draw.random() < 0.7 else text(draw)
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        for _ in range(draw.randrange(3) if draw.random() < 0.2 else 0):
            name = draw.choice(("content-type", "content-encoding", "expect", "x", "connection"))
            headers[name] = draw.choice(("gzip", "100-continue", "close", "upgrade", "é", ""))
        headers["content-length"] = str(len(body))
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        method = draw.choice((*["POST"] * 16, "GET", "PUT", "HEAD", "OPTIONS"))
        try:
            connection.request(method, draw.choice(paths), body, headers)
            status = connection.getresponse().status
        except (ConnectionError, http.client.BadStatusLine):
            status = "hung up"  # in the midst of a message it does not read
        connection.close()
        seen[status] = seen.get(status, 0) + 1
    return seen


def fuzz_raw(server, count, seed):
    """Bytes that need not be HTTP at all, at each of the two ports."""
    draw, seen = random.Random(seed), {}
    head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
    first = (
        f"{head}content-length: 5\r\n\r\n12345{head}content-length: 2\r\n\r\n{{}}".encode(),
        f"{head}transfer-encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n".encode(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    )
    for _ in range(count):
        port = server.port + draw.randrange(2)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
            try:
                wire.sendall(bent(draw, draw.choice(first)))
                wire.shutdown(socket.SHUT_WR)
                heard = wire.recv(20)
            except ConnectionError:
                heard = b""
        kind = heard[:12].decode("latin-1") if heard.startswith(b"HTTP/1") else "other"
        seen[kind] = seen.get(kind, 0) + 1
    return seen


def protobuf(draw):
    given = {
        "name": draw.choice(("features", "features", "x")),
        "datatype": draw.choice(("FP32", "FP32", "BYTES", "NONSENSE")),
        "shape": draw.choice(([1, 4, 8, 8], [1, 4, 8, 8], [2**62, 4, 8, 8], [-1], [0, 4, 8, 8])),
    }
    if draw.random() < 0.2:
        kind = draw.choice(("bool", "int", "int64", "uint", "uint64", "fp32", "fp64"))
        given["contents"] = {f"{kind}_contents": [1] * draw.randrange(300)}
    raw = draw.choice((1024, 1024, 1024, 0, 7, 2048))
    return pb.ModelInferRequest(
        model_name=draw.choice(("body0", "body0", "body1", "body7", "")),
        model_version=draw.choice(("", "", "1")),
        id="a",
        inputs=[given] * draw.choice((1, 1, 1, 0, 2)),
        raw_input_contents=[np.zeros(raw // 4, np.float32).tobytes()] if raw else [],
    ).SerializeToString()


def fuzz_grpc(server, count, seed):
    draw, seen = random.Random(seed), {}
    methods = ["ModelInfer"] * 6 + ["ModelMetadata", "ModelReady", "ServerMetadata", "ServerLive"]
    with grpc.insecure_channel(f"127.0.0.1:{server.port + 1}") as channel:
        for _ in range(count):
            raw = bent(draw, protobuf(draw)) if draw.random() < 0.7 else protobuf(draw)
            call = channel.unary_unary(f"{SERVICE}/{draw.choice((*methods, 'ModelStreamInfer'))}")
            metadata = (
                (*ADMITTED, ("x-bin", draw.randbytes(9))) if draw.random() < 0.2 else ADMITTED
            )
            try:
                call(raw, metadata=metadata, timeout=20)
                status = "OK"
            except grpc.RpcError as error:
                status = error.code().name
            seen[status] = seen.get(status, 0) + 1
    return seen


REST = {200, 400, 401, 404, 405, 413, 415, "hung up"}
GRPC = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"}


@pytest.fixture
def tell(capsys):
    """Show a line whatever is captured."""

    def show(line):
        with capsys.disabled():
            sys.stdout.write(f"\n{line}\n")

    return show


def fuzz(server, rest, grpcs, raw):
    """Statuses of all; nothing in the log, and memory as it should be."""
    length, before = len(server.whole_log()), server.resident()
    seen = {
        "rest": fuzz_rest(server, rest, SEEDS["rest"]),
        "grpc": fuzz_grpc(server, grpcs, SEEDS["grpc"]),
        "raw": fuzz_raw(server, raw, SEEDS["raw"]),
    }
    more = server.resident() - before
    assert set(seen["rest"]) <= REST
    assert set(seen["grpc"]) <= GRPC
    assert seen["rest"][200] > rest // 50
    assert seen["grpc"]["OK"] > grpcs // 50
    said = server.whole_log()[length:]
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:3000]
    assert more < MEMORY
    return f"{seen}; {more / 2**20:.1f} MB more"


def test_some_fuzzed_requests(running):
    fuzz(running[0], 100, 100, 30)


@pytest.mark.hostile
def test_twenty_thousand_fuzzed_requests(running, tell):
    with served.Health(running[0]) as health:
        seen = fuzz(running[0], 9_000, 9_000, 2_000)
    tell(f"{seen}; health: {health.times} times, {health.slowest:.3f} s")
    assert health.failed is None
    assert health.slowest < 1.0


# Load

SECONDS = 120.0
CLIENTS = 32


class Load:
    """Clients that ask all the time, each its own questions; what went right, wrong or missing."""

    def __init__(self, folder, urls, count):
        self.whole, self.stop = served.planted(), threading.Event()
        self.seconds, self.wrong, self.errors = [], 0, []
        self.right = threading.Condition()
        self.clients = [
            Client(folder / "client", urls, token=TOKEN, deadline=30.0) for _ in range(count)
        ]
        self.threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(count)]

    def _ask(self, number):
        key = Key.from_seed(0).fold("load", number)
        for index in range(10**9):
            if self.stop.is_set():
                return
            x = torch.rand(1, 3, 16, 16, generator=key.fold(index).generator())
            started = time.monotonic()
            try:
                found = self.clients[number](x)
            except ExhumeError as error:
                self.errors.append(str(error))
                continue
            took = time.monotonic() - started
            with torch.inference_mode():
                good = torch.allclose(found, self.whole(x), atol=1e-4, rtol=1e-4)
            with self.right:
                self.seconds.append(took)
                self.wrong += not good
                self.right.notify_all()

    def wait_for(self, count, until):
        """Until so many have been answered, or that time."""
        with self.right:
            while len(self.seconds) < count and time.monotonic() < until:
                self.right.wait(max(0.0, until - time.monotonic()))
            return len(self.seconds) >= count

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(90)
        for client in self.clients:
            client.close()


def load(running, clients, seconds, tell):
    """Half of the time with both servers; then one dies, comes back, and answers again."""
    folder = running[0].folder
    token = ("--token-file", str(folder / "token"), "--at-once", str(4 * clients))
    doomed = served.Running(folder, "2-3", token)
    doomed.start()
    doomed.wait()
    before, began = running[0].resident(), time.monotonic()
    try:
        with Load(folder, [running[0].grpc, doomed.grpc], clients) as asked:
            asked.wait_for(10**9, began + seconds / 2)
            assert asked.seconds
            calm, early = sorted(asked.seconds), len(asked.errors)
            doomed.kill()
            doomed.start()
            doomed.wait()
            back = len(asked.seconds)
            assert asked.wait_for(back + clients, time.monotonic() + 90)
            asked.wait_for(10**9, began + seconds)
            held = [server.resident() for server in (running[0], doomed)]
    finally:
        doomed.kill()
    tell(
        f"{clients} clients, {time.monotonic() - began:.0f} s: {len(asked.seconds)} answers, "
        f"{asked.wrong} wrong; {early} errors before a server was killed, "
        f"{len(asked.errors) - early} after; {len(calm)} answers before, with "
        f"p50 {calm[len(calm) // 2]:.3f} s, p99 {calm[99 * len(calm) // 100]:.3f} s, "
        f"memory {[round(h / 2**20) for h in held]} MB, {(held[0] - before) / 2**20:.1f} MB more"
    )
    assert asked.wrong == 0
    assert held[0] - before < MEMORY
    assert all(error.startswith("servers: no") for error in asked.errors), asked.errors[:3]
    log = running[0].whole_log() + doomed.whole_log()
    assert "Traceback" not in log


@pytest.mark.hostile
@pytest.mark.parametrize(("clients", "seconds"), [(4, 5.0), (CLIENTS, SECONDS)])
def test_many_clients_while_a_server_dies(clients, seconds, running, tell):
    load(running, clients, seconds, tell)
