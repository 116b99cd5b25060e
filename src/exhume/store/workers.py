"""Independent jobs in worker processes of this machine.

Workers inherit nothing of the caller's memory, get what is common to all jobs once, leave Ctrl-C to the
caller and end with it, even where it is killed. A worker that dies takes no finished job along: its job is
begun again in a new one.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait as ended
from multiprocessing.context import BaseContext
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from exhume.core.contract import ExhumeError

RETRIES = 5  # times that a job is begun again after its node or its process was lost

S = TypeVar("S")
J = TypeVar("J")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class JobAnswer(Generic[R]):
    """A result, or the sentence that says why there is none."""

    result: R | None
    refusal: str | None = None
    spent: float = 0.0  # processor seconds

    def taken(self) -> R | None:
        """What a job refused to do is refused here, in the same words."""
        if self.refusal is not None:
            raise ExhumeError(self.refusal)
        return self.result


def attempt(function: Callable[[S, J], R], shared: S, job: J, threads: int) -> JobAnswer[R]:
    """One job with so many threads."""
    try:
        with pinned(threads):
            began = time.process_time()
            result = function(shared, job)
            return JobAnswer(result, spent=time.process_time() - began)
    except ExhumeError as error:
        return JobAnswer(None, str(error))


_spent = 0.0


def processor_seconds() -> float:
    """Processor seconds of this process, of those that it saw end, and of its workers on this machine.

    Workers are children of another process, which outlives them.
    """
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + _spent


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Torch's number of threads inside; before and after, what it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@runtime_checkable
class Crew(Protocol):
    """Those who work on several jobs at once."""

    @property
    def unfinished(self) -> Collection[int]: ...  # indices of jobs begun
    def ahead(self) -> int: ...  # how far the newest may be from the oldest unfinished one
    def begin(self, index: int, job: Any) -> None: ...
    def first(self) -> tuple[int, Any]: ...  # waits for the next that is finished
    def end(self) -> None: ...  # at once, whatever is running


def drive(crew: Crew, jobs: Iterable[J | None]) -> Iterator[tuple[int, Any]]:
    """Yield (index, result) as they finish; a job that is None needs no work and comes back as None."""
    upcoming = enumerate(jobs)
    begun, more = 0, True
    try:
        while more or crew.unfinished:
            while more and begun < min(crew.unfinished, default=begun) + crew.ahead():
                index, job = next(upcoming, (None, None))
                if index is None:
                    more = False
                    break
                begun = index + 1
                if job is None:
                    yield index, None
                else:
                    crew.begin(index, job)
            if crew.unfinished:
                yield crew.first()
    finally:
        crew.end()


def run_in_processes(
    function: Callable[[S, J], R], jobs: Iterable[J | None], *, shared: S, count: int, threads: int
) -> Iterator[tuple[int, R | None]]:
    """Yield (index, function(shared, job)) as they finish, from so many processes of so many threads."""
    common = pickle.dumps((function, shared, threads))
    yield from drive(_Workers(count, common), jobs)


class _Workers:
    """A pool that is made anew where one of its processes was lost."""

    def __init__(self, count: int, common: bytes) -> None:
        self.count, self.common, self.lost = count, common, 0
        self.running: dict[Future[bytes], tuple[int, bytes]] = {}
        self.pool = self._started()

    @property
    def unfinished(self) -> list[int]:
        return [index for index, _ in self.running.values()]

    def ahead(self) -> int:
        return 2 * self.count

    def begin(self, index: int, job: Any) -> None:
        content = pickle.dumps(job)
        self.running[self.pool.submit(_work, content)] = (index, content)

    def first(self) -> tuple[int, Any]:
        global _spent  # noqa: PLW0603 - of this process, like its own processor time
        while True:
            finished = next(iter(wait(self.running, return_when=FIRST_COMPLETED).done))
            try:
                content = finished.result()
            except BrokenProcessPool:
                self._begin_again()
            else:
                self.lost = 0
                answer: JobAnswer[Any] = pickle.loads(content)  # noqa: S301  # our own worker's
                _spent += answer.spent
                return self.running.pop(finished)[0], answer.taken()

    def end(self) -> None:
        for worker in list((self.pool._processes or {}).values()):
            worker.kill()
        self.pool.shutdown(wait=True, cancel_futures=True)

    def _begin_again(self) -> None:
        self.lost += 1
        if self.lost > RETRIES:
            raise ExhumeError(
                f"a worker process was lost {self.lost} times (out of memory?): finished work is kept; "
                "run it again with fewer processes"
            )
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool = self._started()
        self.running = {self.pool.submit(_work, job): (i, job) for i, job in self.running.values()}

    def _started(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self.count, _context(), initializer=_begin, initargs=(self.common,)
        )


def _context() -> BaseContext:
    """Workers are forked off a process that has imported torch and done nothing, where there is one."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", __name__])
    return context


# In a worker

_COMMON: list[tuple[Callable[[Any, Any], Any], Any, int]] = []  # one, once it has begun


def _begin(common: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()
    _COMMON.append(pickle.loads(common))  # noqa: S301  # from the process that started this one


def _follow() -> None:
    """End when the caller ends."""
    caller = multiprocessing.parent_process()
    assert caller is not None
    ended([caller.sentinel])
    os._exit(1)


def _work(job: bytes) -> bytes:
    ((function, shared, threads),) = _COMMON
    return pickle.dumps(attempt(function, shared, pickle.loads(job), threads))  # noqa: S301
