"""MLServer processes with the bodies of a small network, and a stand-in for tests of the client alone."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from exhume.core.contract import Key
from exhume.integrations.exporting import version_of
from exhume.models.split.blueprint import Blueprint
from exhume.models.split.cut import cut
from exhume.models.split.networks import ResNet18
from exhume.models.split.parts import load_bodies
from exhume.models.split.pipeline import Pipeline, SplitClient

SRC = str(Path(__file__).parents[2] / "src")
TOKEN = "a token of enough characters"
INFER = "/v2/models/body0/infer"
SERVICE = "/inference.GRPCInferenceService"
ADMITTED = (("authorization", f"Bearer {TOKEN}"),)
PATIENCE = 60.0  # seconds until something counts as hanging, however busy the machine is
PLAN = Blueprint(ResNet18((3, 16, 16), 5, 4), "conv1", "pool")


def server_python() -> str | None:
    """An interpreter that has MLServer: this one, one that is named, or that of `make test`."""
    if importlib.util.find_spec("mlserver"):
        return sys.executable
    for path in (os.environ.get("EXHUME_SERVE_PYTHON", ""), f"{sys.prefix}-serve/bin/python"):
        if path and Path(path).exists():
            return path
    return None


@functools.cache
def planted(selected=(1, 3), bodies=4, seed=0, plan=PLAN):
    """A pipeline with drawn weights: bodies and head by the seed, whatever is selected."""
    key = Key.from_seed(seed)
    made = tuple(_parts(plan, key.fold(i)).body for i in range(bodies))
    head = _parts(plan, key.fold("head")).head
    noise = torch.randn(plan.shapes()[0], generator=key.fold("noise").generator())
    client = SplitClient(head, noise, selected, plan.tail(len(selected)).eval())
    for module in (*made, head, client.tail):
        module.requires_grad_(False)
    return Pipeline(client, made, "conv1")


@functools.cache
def _parts(plan, key):
    parts = cut(plan.network.module(key), plan.first, plan.second)
    for part in (parts.head, parts.body):
        part.eval()
    return parts


def free_ports() -> int:
    """The first of three ports in a row that are free, below those that outgoing connections are given."""
    for first in random.SystemRandom().sample(range(20_000, 32_000, 3), 200):
        if all(_unused(first + i) for i in range(3)):
            return first
    raise RuntimeError("no three ports in a row are free")


def _unused(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@dataclass
class Running:
    """One server process."""

    folder: Path
    only: str
    port: int = field(default_factory=free_ports)
    process: subprocess.Popen | None = None

    @property
    def grpc(self) -> str:
        return f"grpc://127.0.0.1:{self.port + 1}"

    @property
    def rest(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.grpc,)

    def start(self) -> None:
        command = [server_python(), "-m", "exhume", "serve", str(self.folder / "server")]
        command += ["--only", self.only, "--port", str(self.port)]
        with (self.folder / f"log-{self.port}").open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"},
            )

    def wait(self, seconds: float = 600.0) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert self.process.poll() is None, self.log()
            try:
                urllib.request.urlopen(f"{self.rest}/v2/health/ready", timeout=20).close()
            except OSError:
                time.sleep(0.1)
            else:
                if not _free(self.port + 1):
                    return
        raise AssertionError(self.log())

    def log(self) -> str:
        return self.whole_log()[-3000:]

    def whole_log(self) -> str:
        return (self.folder / f"log-{self.port}").read_text(errors="replace")

    def resident(self) -> int:
        """Bytes of memory in use."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def bomb(megabytes):
    """Spaces as gzip, made quickly: one megabyte, again and again. Only its checksum at the end is wrong."""
    packer = zlib.compressobj(wbits=31)
    one = packer.compress(b" " * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    return one + one[10:] * (megabytes - 1) + packer.flush()  # 10 bytes of header


class StandIn:
    """The bodies of a folder behind gRPC, in threads of this process."""

    def __init__(self, folder: Path) -> None:
        import grpc
        from tritonclient.grpc import service_pb2 as pb

        bodies = {f"body{body.index}": body for body in load_bodies(folder / "server")}

        @torch.inference_mode()
        def infer(raw: bytes, _: object) -> bytes:
            asked = pb.ModelInferRequest.FromString(raw)
            (given,), (content,) = asked.inputs, asked.raw_input_contents
            features = np.frombuffer(content, np.float32).reshape(tuple(given.shape)).copy()
            answer = bodies[asked.model_name].module(torch.from_numpy(features)).numpy()
            about = {"name": "answer", "shape": answer.shape, "datatype": "FP32"}
            said = {"id": asked.id, "outputs": [about], "raw_output_contents": [answer.tobytes()]}
            return pb.ModelInferResponse(**said).SerializeToString()

        def metadata(raw: bytes, _: object) -> bytes:
            body = bodies[pb.ModelMetadataRequest.FromString(raw).name]
            return pb.ModelMetadataResponse(versions=[version_of(body.sha256)]).SerializeToString()

        class Handler(grpc.GenericRpcHandler):
            def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
                answer = infer if details.method.endswith("/ModelInfer") else metadata
                return grpc.unary_unary_rpc_method_handler(answer)

        self.server = grpc.server(ThreadPoolExecutor(4), [Handler()])
        self.urls = (f"grpc://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}",)

    def start(self) -> None:
        self.server.start()

    def wait(self) -> None:
        """It listens from its making on."""

    def kill(self) -> None:
        self.server.stop(None).wait()
