"""Real MLServer processes with the bodies of a small network."""

from __future__ import annotations

import http.client
import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import torch

from exhume.contract import Key
from exhume.models.split.blueprint import Blueprint
from exhume.models.split.cut import cut
from exhume.models.split.pipeline import Client, Pipeline
from exhume.models.split.resnet import ResNet18

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


def planted(selected=(1, 3), bodies=4, seed=0):
    """A pipeline with drawn weights: bodies and head by the seed, whatever is selected."""
    key = Key.from_seed(seed)
    made = tuple(
        cut(PLAN.network.module(key.fold(i)), "conv1", "pool").body.eval() for i in range(bodies)
    )
    head = cut(PLAN.network.module(key.fold("head")), "conv1", "pool").head.eval()
    noise = torch.randn(PLAN.shapes()[0], generator=key.fold("noise").generator())
    client = Client(head, noise, selected, PLAN.tail(len(selected)).eval())
    for module in (*made, head, client.tail):
        module.requires_grad_(False)
    return Pipeline(client, made, "conv1")


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
