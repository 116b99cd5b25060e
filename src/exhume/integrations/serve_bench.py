"""A served split network under load, on this machine: N bodies on two servers against one body.

ratio_to_one: median latency of a request to N bodies over that of one body, as the client sees it.
ratio_to_sum: the same over N times that of one body, what asking them one after another would take.
client_ratio: the client's own compute over that of a client with one body (`models/split/cost.py`).
Then several clients at once, bounded in number; every answer is compared with the network in this process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Progress
from exhume.integrations.exporting import export_parts
from exhume.integrations.serve import Client
from exhume.models.split.blueprint import Blueprint
from exhume.models.split.cost import client_ratio
from exhume.models.split.cut import cut
from exhume.models.split.networks import ResNet18
from exhume.models.split.pipeline import Pipeline, SplitClient


@dataclass(frozen=True)
class Load:
    """How much is asked."""

    bodies: tuple[int, ...] = (1, 4, 10)
    width: int = 16  # of the ResNet-18
    alone: int = 60  # requests one after another
    clients: int = 4
    each: int = 25  # requests of each client, all clients at once
    scheme: str = "grpc"  # or http

    def __post_init__(self) -> None:
        if 1 not in self.bodies or min(self.bodies) < 1:
            raise ExhumeError(f"bodies: {self.bodies} given; 1 must be among them, to compare with")


def run(progress: Progress) -> list[dict[str, Any]]:
    return measure(Load(), progress)


def measure(load: Load, progress: Progress) -> list[dict[str, Any]]:
    plan = Blueprint(ResNet18(width=load.width), "conv1", "pool")
    most = max(load.bodies)
    entries = []
    with tempfile.TemporaryDirectory(prefix="exhume-") as scratch:
        folder = Path(scratch)
        export_parts(_pipeline(plan, most), plan, folder / "client", folder / "server")
        halves = [range(0, most, 2), range(1, most, 2)]
        with _servers(folder, [half for half in halves if len(half)], load.scheme) as urls:
            one = 0.0
            for place, count in enumerate(sorted(load.bodies)):
                progress("bench serve", place, len(load.bodies))
                pipeline = _pipeline(plan, count)
                export_parts(pipeline, plan, folder / f"client{count}", None)
                entry = _measured(load, pipeline, folder / f"client{count}", urls)
                one = one or entry["p50_seconds"]  # the first case has one body
                own = pipeline.client
                alone = SplitClient(
                    own.head, own.noise, (0,), plan.tail(1).requires_grad_(False).eval()
                )
                single = Pipeline(alone, pipeline.bodies[:1], plan.first)
                entries.append(_ratios(entry, one, count, pipeline, single))
    progress("bench serve", len(load.bodies), len(load.bodies))
    return entries


def _ratios(
    entry: dict[str, Any], one: float, count: int, pipeline: Pipeline, single: Pipeline
) -> dict[str, Any]:
    latency, sample = entry["p50_seconds"], torch.rand(1, *_SHAPE)
    return {
        "name": "serve",
        "ours": latency,
        "baseline": count * one,
        "ratio": count * one / latency,
        "ratio_to_one": latency / one,
        "ratio_to_sum": latency / (count * one),
        "client_ratio": client_ratio(pipeline, single, sample, repeats=300),
        **entry,
    }


_SHAPE = (3, 32, 32)


def _measured(load: Load, pipeline: Pipeline, folder: Path, urls: Sequence[str]) -> dict[str, Any]:
    key = Key.from_seed(0).fold("bench serve")
    count = len(pipeline.bodies)
    with Client(folder, urls, deadline=60.0) as client:
        seconds, wrong = _asked(client, pipeline, load.alone + 3, key)
    alone = sorted(seconds[3:])  # the first ones connect
    clients = [Client(folder, urls, deadline=60.0) for _ in range(load.clients)]
    for client in clients:
        client(torch.rand(1, *_SHAPE))
    started = time.perf_counter()
    with ThreadPoolExecutor(load.clients) as pool:
        found = list(
            pool.map(
                lambda i: _asked(clients[i], pipeline, load.each, key.fold(i)), range(load.clients)
            )
        )
    elapsed = time.perf_counter() - started
    for client in clients:
        client.close()
    loaded = sorted(s for some, _ in found for s in some)
    return {
        "case": f"N = {count}, ResNet-18 of width {load.width}, two servers on this machine, "
        f"{load.scheme}, one input a request",
        "p50_seconds": percentile(alone, 0.5),
        "p99_seconds": percentile(alone, 0.99),
        "clients": load.clients,
        "throughput": load.clients * load.each / elapsed,
        "loaded_p50_seconds": percentile(loaded, 0.5),
        "loaded_p99_seconds": percentile(loaded, 0.99),
        "requests": load.alone + load.clients * load.each,
        "wrong_answers": wrong + sum(bad for _, bad in found),
        "cores": os.cpu_count() or 0,
    }


def _asked(client: Client, pipeline: Pipeline, count: int, key: Key) -> tuple[list[float], int]:
    """Seconds of each request, and how many answers were not those of the network here."""
    seconds, wrong = [], 0
    for index in range(count):
        sample: Tensor = torch.rand(1, *_SHAPE, generator=key.fold(index).generator())
        started = time.perf_counter()
        logits = client(sample)
        seconds.append(time.perf_counter() - started)
        with torch.inference_mode():
            wrong += not torch.allclose(logits, pipeline(sample), atol=1e-4, rtol=1e-4)
    return seconds, wrong


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the ordered values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _pipeline(plan: Blueprint, count: int) -> Pipeline:
    """Bodies by their number alone, so that those of a smaller ensemble are among those of a larger one."""
    key = Key.from_seed(0)

    def split(name: str | int) -> Any:
        parts = cut(plan.network.module(key.fold(name)), plan.first, plan.second)
        parts.whole.requires_grad_(False).eval()
        return parts

    selected = tuple(range(min(4, count)))
    tail = plan.tail(len(selected)).requires_grad_(False).eval()
    noise = torch.randn(plan.shapes()[0], generator=key.fold("noise").generator())
    bodies = tuple(split(index).body for index in range(count))
    return Pipeline(SplitClient(split("head").head, noise, selected, tail), bodies, plan.first)


# Servers of our own for a while


@contextmanager
def _servers(folder: Path, halves: Sequence[range], scheme: str) -> Iterator[list[str]]:
    """One server process for each half; their addresses. `EXHUME_SERVE_PYTHON` names another interpreter."""
    python = os.environ.get("EXHUME_SERVE_PYTHON") or sys.executable
    ports = [_three_ports() for _ in halves]
    started = []
    try:
        for half, port in zip(halves, ports, strict=True):
            command = [python, "-m", "exhume", "serve", str(folder / "server")]
            command += ["--only", ",".join(map(str, half)), "--port", str(port)]
            with (folder / f"log-{port}").open("w") as log:
                started.append(subprocess.Popen(command, stdout=log, stderr=log))  # noqa: S603
        for process, port in zip(started, ports, strict=True):
            _wait(process, port, folder / f"log-{port}")
        yield [f"{scheme}://127.0.0.1:{port + (scheme == 'grpc')}" for port in ports]
    finally:
        for process in started:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise ExhumeError(
                f"bench serve: a server did not start: {log.read_text()[-200:].strip()}"
            )
        try:
            ready = f"http://127.0.0.1:{port}/v2/health/ready"
            urllib.request.urlopen(ready, timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise ExhumeError("bench serve: a server was not ready within two minutes")


def _three_ports() -> int:
    """The first of three in a row that are free now."""
    for _ in range(100):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            first = int(probe.getsockname()[1])
        try:
            for port in range(first, first + 3):
                socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError):
            continue
        return first
    raise ExhumeError("bench serve: no three ports in a row are free")
