"""Messages of 16 MB, the largest there are: health within a second while they are read, and right answers."""

from __future__ import annotations

import http.client
import json
import sys
import threading

import numpy as np
import pytest
import torch

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

import grpc
from tritonclient.grpc import service_pb2 as pb

from exhume.integrations.exporting import export_parts
from exhume.models.split.blueprint import Blueprint
from exhume.models.split.networks import ResNet18

served = pytest.importorskip("served")
PLAN = Blueprint(ResNet18((3, 64, 64), 5, 64), "conv1", "pool")
SHAPE = (64, 32, 32)
MESSAGES = 3  # of each kind, from two senders each
pytestmark = [pytest.mark.serve, pytest.mark.hostile, pytest.mark.xdist_group("serve")]


def by_rest(server, body):
    headers = {"authorization": f"Bearer {served.TOKEN}", "content-type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request("POST", served.INFER, body, headers)
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    return np.asarray(found["outputs"][0]["data"], np.float32)


def by_grpc(server, body):
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.port + 1}", options) as channel:
        call = channel.unary_unary(f"{served.SERVICE}/ModelInfer")
        found = pb.ModelInferResponse.FromString(call(body, metadata=served.ADMITTED, timeout=300))
    if found.raw_output_contents:
        return np.frombuffer(found.raw_output_contents[0], "<f4")
    return np.asarray(found.outputs[0].contents.fp32_contents, np.float32)


def messages():
    """(way, message, records): long and short numbers as text, raw and packed bytes."""
    draw = np.random.default_rng(0)
    long, short, whole = (draw.normal(size=(n, *SHAPE)).astype(np.float32) for n in (12, 60, 63))
    short = short.round()

    def about(x):
        return {"name": "features", "datatype": "FP32", "shape": list(x.shape)}

    def text(x, numbers):
        return json.dumps({"inputs": [{**about(x), "data": numbers}]}).encode()

    def message(given, **more):
        asked = pb.ModelInferRequest(model_name="body0", inputs=[given], **more)
        return asked.SerializeToString()

    packed = {**about(whole), "contents": {"fp32_contents": whole.ravel()}}
    return [
        (by_rest, text(long, long.ravel().astype(float).tolist()), long),
        (by_rest, text(short, short.ravel().astype(int).tolist()), short),
        (by_grpc, message(about(whole), raw_input_contents=[whole.tobytes()]), whole),
        (by_grpc, message(packed), whole),
    ]


def test_health_beside_large_messages(tmp_path):
    if served.server_python() is None:
        pytest.skip("no interpreter with MLServer: make test sets one up, or EXHUME_SERVE_PYTHON")
    pipeline = served.planted((0,), bodies=1, plan=PLAN)
    export_parts(pipeline, PLAN, tmp_path / "client", tmp_path / "server")
    (tmp_path / "token").write_text(served.TOKEN)
    (tmp_path / "token").chmod(0o600)
    server = served.Running(tmp_path, "0", ("--token-file", str(tmp_path / "token")))
    right = []

    def send(way, body, expected):
        for _ in range(MESSAGES):
            found = way(server, body)
            right.append(np.allclose(found, expected, atol=1e-3, rtol=1e-3))

    server.start()
    try:
        server.wait()
        senders = []
        for way, body, x in messages():
            assert 7_000_000 < len(body) < 2**24
            with torch.inference_mode():
                expected = pipeline.bodies[0](torch.from_numpy(x)).numpy().ravel()
            given = (way, body, expected)
            senders += [threading.Thread(target=send, args=given) for _ in range(2)]
        with served.Health(server) as health:
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
        assert right == [True] * len(senders) * MESSAGES, server.log()
        assert "Traceback" not in server.whole_log()
        assert health.failed is None
        assert health.slowest < 1, health.slowest
        sys.stdout.write(f"health: {health.times} times, at most {health.slowest:.2f} s\n")
    finally:
        server.kill()
