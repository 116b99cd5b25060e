"""N bodies on the same features: one after another, on threads, or stacked into one. Which is fastest depends
on the machine and the sizes, so it is measured.

Stacked, all bodies' weights get a leading axis and `torch.func.vmap` runs them as one: convolutions become
grouped ones. It saves calls where these dominate (small bodies, one input) and loses where they do not.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from exhume.core.contract import ExhumeError

__all__ = ["WAYS", "ParallelBodies", "Way", "fastest", "timed_ways"]

Way = Literal["one after another", "threads", "stacked"]
WAYS: tuple[Way, ...] = get_args(Way)


class ParallelBodies:
    """Answers of all bodies, (n, *answer) each, to features (n, *feature). Bodies are in eval mode."""

    def __init__(
        self, bodies: Sequence[nn.Module], way: Way, *, workers: int | None = None
    ) -> None:
        if not bodies:
            raise ExhumeError("bodies: at least one is needed")
        self.way = way
        run: dict[Way, Callable[[Sequence[nn.Module], int], Callable[[Tensor], list[Tensor]]]] = {
            "one after another": _in_turn,
            "threads": _on_threads,
            "stacked": _stacked,
        }
        self._run = run[way](tuple(bodies), workers or torch.get_num_threads())

    def __call__(self, features: Tensor) -> list[Tensor]:
        return self._run(features)


def timed_ways(
    bodies: Sequence[nn.Module], features: Tensor, *, repeats: int = 5
) -> dict[Way, float]:
    """Seconds of each way, interleaved, the best of the repeats; after one call that does not count.

    Not every body can be stacked; one that `vmap` refuses has no such way.
    """
    runs = {way: ParallelBodies(bodies, way) for way in WAYS}
    with torch.inference_mode():
        try:
            runs["stacked"](features)
        except RuntimeError:
            del runs["stacked"]
        seconds: dict[Way, float] = dict.fromkeys(runs, float("inf"))
        runs["threads"](features)
        for _ in range(repeats):
            for way, run in runs.items():
                started = time.perf_counter()
                run(features)
                seconds[way] = min(seconds[way], time.perf_counter() - started)
    return seconds


def fastest(seconds: Mapping[Way, float]) -> Way:
    return min(seconds, key=lambda way: seconds[way])


def _in_turn(bodies: Sequence[nn.Module], _: int) -> Callable[[Tensor], list[Tensor]]:
    return lambda features: [body(features) for body in bodies]


def _on_threads(bodies: Sequence[nn.Module], workers: int) -> Callable[[Tensor], list[Tensor]]:
    """Run as many bodies at once as there are threads; each then computes on one."""
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def one(body: nn.Module, features: Tensor) -> Tensor:
        with torch.inference_mode():
            answer: Tensor = body(features)
        return answer

    def run(features: Tensor) -> list[Tensor]:
        before = torch.get_num_threads()
        try:
            return list(pool.map(one, bodies, [features] * len(bodies)))
        finally:
            torch.set_num_threads(before)  # a new worker's own setting reaches BLAS everywhere

    return run


def _stacked(bodies: Sequence[nn.Module], _: int) -> Callable[[Tensor], list[Tensor]]:
    own = [{n: tuple(t.shape) for n, t in body.state_dict().items()} for body in bodies]
    if any(shapes != own[0] for shapes in own):
        raise ExhumeError("bodies: they differ in shape, so they cannot be stacked")
    states = [body.state_dict() for body in bodies]  # traced: a class each, so stacked by name
    state = {name: torch.stack([one[name] for one in states]) for name in states[0]}
    bare = copy.deepcopy(bodies[0]).to("meta")

    def one(own: dict[str, Tensor], x: Tensor) -> Tensor:
        answer: Tensor = functional_call(bare, own, (x,))
        return answer

    run = vmap(one, (0, None))
    return lambda features: list(run(state, features).unbind(0))
