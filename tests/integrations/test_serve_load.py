"""Two servers under load of which one dies: right answers, a sentence for each that is missing."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch

from exhume.core.contract import ExhumeError, Key

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

from exhume.integrations.serve import Client

served = pytest.importorskip("served")
MEMORY = 2**26  # bytes that a server may hold more afterwards
pytestmark = [pytest.mark.serve, pytest.mark.hostile, pytest.mark.xdist_group("serve")]


@pytest.fixture
def tell(capsys):
    """Show a line whatever is captured."""

    def show(line):
        with capsys.disabled():
            sys.stdout.write(f"\n{line}\n")

    return show


SECONDS = 120.0
CLIENTS = 32


class Load:
    """Clients that ask all the time, each its own questions; what went right, wrong or missing."""

    def __init__(self, folder, urls, count):
        self.whole, self.stop = served.planted(), threading.Event()
        self.seconds, self.wrong, self.errors = [], 0, []
        self.right = threading.Condition()
        self.clients = [Client(folder / "client", urls, deadline=30.0) for _ in range(count)]
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
    doomed = served.Running(folder, "2-3")
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


@pytest.mark.parametrize(("clients", "seconds"), [(4, 5.0), (CLIENTS, SECONDS)])
def test_many_clients_while_a_server_dies(clients, seconds, running, tell):
    load(running, clients, seconds, tell)
