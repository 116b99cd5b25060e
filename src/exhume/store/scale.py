"""Independent jobs, in this process, in several, or on a Ray cluster: the only file that knows Ray.

    with spread_over(Cluster("auto")):     # or Processes(4), or Cores()
        audit(settings, out)

A job is a value, its function is importable by name, and its result depends on nothing else, so where
it runs changes the time and not the bits. That takes the same number of threads per job (the caller's,
or as many as the job is said to have, set in every worker) and the same arithmetic (a node with another
torch or another instruction set is refused). The place is a property of the process, like torch's number
of threads, and not an argument of attacks and victims, which do not depend on it.

Memory: `shared` is sent once; no job is begun more than twice the cluster's slots beyond the oldest
unfinished one, so at most that many jobs and results are held, here and there.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

import torch

from exhume.core.contract import ExhumeError
from exhume.core.errors import optional
from exhume.store.workers import RETRIES, JobAnswer, attempt, drive, pinned, run_in_processes

_WORTH = 20.0  # estimated seconds of one thread from which on starting processes (2 to 3 s) pays
_CONNECT = 5.0  # seconds for a cluster's address to answer
_KNOCKING = 15.0  # seconds to wait for a cluster that says nothing about our token; it takes 1 or 2
_GLANCE = 2.0  # seconds between two looks at the nodes while nothing finishes


@dataclass(frozen=True)
class Here:
    """One job after another in this process."""


@dataclass(frozen=True)
class Processes:
    """Worker processes of this machine, each with the caller's number of threads."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ExhumeError(f"processes: at least 1 needed, got {self.count}")


@dataclass(frozen=True)
class Cores:
    """As many worker processes as this process may have threads, for work that is worth their start.

    Work of which nothing is known is done here. On a busy machine this is several times as fast as threads,
    which wait for each other inside every small product.
    """


@dataclass(frozen=True)
class Work:
    """What is known of jobs beforehand; it decides where they run, and never what they give."""

    jobs: int
    seconds: float | None  # of all of them in one thread, estimated; None: the first job is timed
    fit: int  # of them are held in memory at once, at most


@dataclass(frozen=True)
class Cluster:
    """A running Ray cluster of which this machine is a node."""

    address: str = (
        "auto"  # HOST:PORT of the head; auto: RAY_ADDRESS, or the cluster of this machine
    )
    patience: float = 60.0  # seconds to go on without a node that could run a job

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if self.address != "auto" and not (host and "/" not in host and port.isdigit()):
            raise ExhumeError(f"ray: {self.address!r} is neither auto nor HOST:PORT")


Where = Here | Processes | Cores | Cluster
HERE = Here()

_WHERE: ContextVar[Where] = ContextVar("where", default=HERE)

S = TypeVar("S")
J = TypeVar("J")
R = TypeVar("R")


@contextmanager
def spread_over(where: Where) -> Iterator[None]:
    """Jobs begun inside run there. A process that is already connected to Ray keeps its connection."""
    ours = isinstance(where, Cluster) and _connect(where)
    token = _WHERE.set(where)
    try:
        yield
    finally:
        _WHERE.reset(token)
        if ours:
            _ray().shutdown()


def where_now() -> Where:
    return _WHERE.get()


def place() -> dict[str, str | int]:
    """Where jobs run now, for the record of a run; no address, since reports are passed on."""
    where = where_now()
    if isinstance(where, Here):
        return {"where": "this process"}
    if isinstance(where, Processes):
        return {"where": "processes of this machine", "processes": where.count}
    if isinstance(where, Cores):
        return {"where": "this process, and a process for each thread where it pays"}
    alive = _alive_cores()
    return {
        "where": "Ray cluster",
        "ray": str(_ray().__version__),
        "nodes": len(alive),
        "cluster_cores": sum(alive),
    }


def workers_for(work: Work | None, threads: int) -> int:
    """Processes that such work gets here; 1: it is done in this one.

    threads: as many cores as are to be busy.
    """
    where = where_now()
    if isinstance(where, Processes):
        return where.count if work is None else max(1, min(where.count, work.fit))
    if not isinstance(where, Cores) or work is None:
        return 1
    if work.seconds is not None and work.seconds < _WORTH:
        return 1
    return max(1, min(threads, work.jobs, work.fit))


def run_jobs(
    function: Callable[[S, J], R],
    jobs: Iterable[J | None],
    *,
    shared: S,
    threads: int | None = None,
    work: Work | None = None,
    device: str = "cpu",
) -> Iterator[tuple[int, R | None]]:
    """Yield (index, function(shared, job)) for every job, as they finish.

    A job that is None needs no work and comes back as None. Closing the iterator, or Ctrl-C, cancels
    what is running. threads: of each job, wherever it runs; None: the caller's. device: cuda gives every
    job on a cluster a GPU of its own, which is the only one that it sees.
    """
    where, each = where_now(), threads or torch.get_num_threads()
    if isinstance(where, Cluster):
        yield from drive(_Nodes(function, shared, where, each, device), jobs)
    elif isinstance(where, Processes):
        count = workers_for(work, torch.get_num_threads())
        yield from run_in_processes(function, jobs, shared=shared, count=count, threads=each)
    else:
        yield from _here_or_on_cores(function, jobs, shared, each, work)


def _here_or_on_cores(
    function: Callable[[S, J], R],
    jobs: Iterable[J | None],
    shared: S,
    threads: int,
    work: Work | None,
) -> Iterator[tuple[int, R | None]]:
    """One after another; or in processes as soon as it is known that this pays."""
    stream, index, cores = iter(jobs), 0, torch.get_num_threads()
    while work is None or work.seconds is None or workers_for(work, cores) == 1:
        job = next(stream, _END)
        if isinstance(job, _End):
            return
        began = time.process_time()
        result = None if job is None else _here(function, shared, job, threads)
        index += 1
        if job is not None and work is not None and work.seconds is None:
            left = max(0, work.jobs - index)
            work = Work(left, left * (time.process_time() - began), work.fit)
        yield index - 1, result
    count = workers_for(work, cores)
    found = run_in_processes(function, stream, shared=shared, count=count, threads=threads)
    for later, result in found:
        yield index + later, result


def _here(function: Callable[[S, J], R], shared: S, job: J, threads: int) -> R:
    with pinned(threads):
        return function(shared, job)


class _End:
    """The end of a stream of jobs, in which None is a job."""


_END = _End()


class _Nodes:
    """The nodes of a cluster at work on one function."""

    def __init__(
        self, function: Callable[[S, J], R], shared: S, where: Cluster, threads: int, device: str
    ) -> None:
        self.function, self.where, self.threads = function, where, threads
        self.gpus, self.arithmetic = int(device != "cpu"), _arithmetic(device)
        if self.gpus and not _slots(self.threads, self.gpus):
            raise ExhumeError(
                f"device: {device} given, but no node of the Ray cluster offers a GPU and {threads} cores "
                "(ray start --num-gpus)"
            )
        if not _slots(self.threads, self.gpus):
            raise ExhumeError(
                f"threads: {self.threads} given, but the largest node of the Ray cluster has "
                f"{max(_alive_cores(), default=0)} cores: use fewer threads or larger nodes"
            )
        self.work = _ray().remote(num_cpus=self.threads, num_gpus=self.gpus, max_retries=RETRIES)(
            _work
        )
        self.common = _ray().put(shared)
        self.running: dict[Any, int] = {}  # reference of a result to its job's index

    @property
    def unfinished(self) -> Collection[int]:
        return self.running.values()

    def ahead(self) -> int:
        return max(2, 2 * _slots(self.threads, self.gpus))

    def begin(self, index: int, job: Any) -> None:
        begun = self.work.remote(self.function, self.common, job, self.threads, self.arithmetic)
        self.running[begun] = index

    def first(self) -> tuple[int, Any]:
        reference = _first_finished(
            list(self.running), self.threads, self.gpus, self.where.patience
        )
        index = self.running.pop(reference)
        return index, _taken(reference, index)

    def end(self) -> None:
        if _ray().is_initialized():  # else they ended with the connection, and Ray would start anew
            for reference in self.running:
                _ray().cancel(reference, force=True)


# In a worker


def _work(
    function: Callable[[S, J], R], shared: S, job: J, threads: int, arithmetic: str
) -> JobAnswer[R]:
    """One job with the caller's number of threads, on a node that computes like the caller."""
    own = _arithmetic("cuda" if _GPU in arithmetic else "cpu")
    if own != arithmetic:
        return JobAnswer(
            None,
            f"a node of the Ray cluster computes with {own}, this process with {arithmetic}: "
            "the bits would differ, so make them alike",
        )
    return attempt(function, shared, job, threads)


_GPU = ", GPU "


def _arithmetic(device: str = "cpu") -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    here = f"exhume {version('exhume')}, torch {torch.__version__}, {capability}"
    return here if device == "cpu" else f"{here}{_GPU}{_gpu_name()}"


def _gpu_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


# Dealings with Ray


def _ray() -> Any:
    return optional("ray", "ray", "a cluster")


def _connect(where: Cluster) -> bool:
    """Join the cluster; False if this process is already in one."""
    ray = _ray()
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS", "auto") if where.address == "auto" else where.address
    if address != "auto":
        _probe(Cluster(address).address)  # Ray itself would try for minutes
    _knock(address)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ExhumeError(
            f"cannot join a Ray cluster at {address}: {' '.join(str(error).split())}"
        ) from error
    return True


def _probe(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
    except OSError as error:
        raise ExhumeError(
            f"no Ray cluster answers at {address}: {error.strerror or error}"
        ) from error


_KNOCK = """
import sys
from ray._private.services import canonicalize_bootstrap_address_or_die as found
from ray._raylet import GcsClient
GcsClient(address=found(sys.argv[1]))
"""


def _knock(address: str) -> None:
    """Say at once that the cluster refuses our token: Ray tries for 20 s, and says why in its log alone."""
    command = [sys.executable, "-c", _KNOCK, address]
    child = subprocess.Popen(  # noqa: S603 - our own words, and an address that was checked
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    limit = threading.Timer(_KNOCKING, child.kill)
    limit.start()
    try:
        assert child.stderr is not None
        if any("nauthenticated" in line or "AuthToken" in line for line in child.stderr):
            raise ExhumeError(
                f"the Ray cluster at {address} refuses this process: it asks for a token. Set "
                "RAY_AUTH_MODE=token and give the head's token to every node and to exhume "
                "(RAY_AUTH_TOKEN_PATH; docs/scale-out.md)"
            )
    finally:
        limit.cancel()
        child.kill()
        child.communicate()


def _alive_cores() -> list[int]:
    """Cores that each living node offers."""
    return [int(node["Resources"].get("CPU", 0)) for node in _ray().nodes() if node["Alive"]]


def _slots(threads: int, gpus: int = 0) -> int:
    """Jobs that the cluster can run at once, each with so many cores and GPUs."""
    if not gpus:
        return sum(cores // threads for cores in _alive_cores())
    offered = [node["Resources"] for node in _ray().nodes() if node["Alive"]]
    return sum(
        min(int(one.get("CPU", 0)) // threads, int(one.get("GPU", 0)) // gpus) for one in offered
    )


def _first_finished(references: list[Any], threads: int, gpus: int, patience: float) -> Any:
    """Wait for one of them, as long as there is a node that could run it."""
    deserted: float | None = None  # since when
    while True:
        finished, _ = _ray().wait(references, num_returns=1, timeout=_GLANCE)
        if finished:
            return finished[0]
        if _slots(threads, gpus):
            deserted = None
        elif deserted is None:
            deserted = time.monotonic()
        elif time.monotonic() - deserted > patience:
            raise ExhumeError(
                f"the Ray cluster has had no node with {threads} cores{' and a GPU' if gpus else ''} for "
                f"{patience:g} seconds: finished work is kept; add nodes and run it again"
            )


def _taken(reference: Any, index: int) -> Any:
    """The result behind a reference; what a job refused to do is refused here, in the same words."""
    ray = _ray()
    try:
        answer = ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise  # a bug in the job: keep its traceback
    except ray.exceptions.RayError as error:
        raise ExhumeError(
            f"job {index} was lost {RETRIES + 1} times on the Ray cluster "
            f"({type(error).__name__}): finished work is kept; give the nodes more memory, or less work"
        ) from error
    return answer.taken()
