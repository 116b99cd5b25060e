"""MLServer processes with the bodies of a small network, and a stand-in for tests of the client alone."""

from __future__ import annotations

import functools
import http.client
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
    more: tuple[str, ...] = ()
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
        return self.grpc, self.rest

    def start(self) -> None:
        command = [server_python(), "-m", "exhume", "serve", str(self.folder / "server")]
        command += ["--only", self.only, "--port", str(self.port), *self.more]
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

    def processor(self) -> float:
        """Seconds of processor time used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

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
    """The bodies of a folder behind REST, in a thread of this process."""

    def __init__(self, folder: Path) -> None:
        bodies = {f"/v2/models/body{body.index}": body for body in load_bodies(folder / "server")}

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                self.reply({"versions": [version_of(bodies[self.path].sha256)]})

            @torch.inference_mode()
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                (given,) = asked["inputs"]
                features = np.array(given["data"], np.float32).reshape(given["shape"])
                body = bodies[self.path.partition("/versions/")[0]]
                answer = body.module(torch.from_numpy(features))
                said = {"name": "answer", "shape": list(answer.shape), "datatype": "FP32"}
                self.reply(
                    {"id": asked["id"], "outputs": [{**said, "data": answer.ravel().tolist()}]}
                )

            def reply(self, message: dict) -> None:
                content = json.dumps(message).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.urls = (f"http://127.0.0.1:{self.listener.server_port}",)

    def start(self) -> None:
        forever = {"poll_interval": 0.01}
        threading.Thread(target=self.listener.serve_forever, kwargs=forever, daemon=True).start()

    def wait(self) -> None:
        """It listens from its making on."""

    def kill(self) -> None:
        self.listener.shutdown()
        self.listener.server_close()


class Health:
    """Asks for health all the time; how long it took at most."""

    def __init__(self, server):
        self.server, self.slowest, self.times = server, 0.0, 0
        self.failed, self.stop = None, threading.Event()
        self.thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self):
        while not self.stop.is_set():
            started = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
            try:
                connection.request("GET", "/v2/health/ready")
                if connection.getresponse().status != 200:
                    self.failed = "not ready"
            except OSError as error:
                self.failed = str(error)
            finally:
                connection.close()
            self.slowest = max(self.slowest, time.monotonic() - started)
            self.times += 1
            self.stop.wait(0.05)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
