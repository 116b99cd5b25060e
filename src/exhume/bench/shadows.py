"""Stacked shadow training against one model at a time with `torch.optim.SGD`, and against the machine.

Same maths, same threads, repeats interleaved, the best of each kept, so that a noisy neighbour costs
both alike.

    peak_fraction = (4·n·d·k + 6·n·k·c)·steps·models / seconds / best GEMM rate at the job's own shapes
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.contract import Key, Progress, Records
from exhume.models.mlp import MLP
from exhume.train.fleet import LARGEST_CHUNK
from exhume.train.stacked import Descent, descend

__all__ = ["run"]

_RECORDS, _INPUTS, _HIDDEN, _CLASSES = 1000, 784, 10, 10
_STEPS, _MODELS, _ALONE, _REPEATS = 100, LARGEST_CHUNK, 2, 5


def run(progress: Progress) -> dict[str, Any]:
    mlp = MLP((_INPUTS,), (_HIDDEN,), _CLASSES)
    descent = Descent(steps=_STEPS)
    key = Key.from_seed(0).fold("bench")
    initial = mlp.initial(key)
    fixed = _records(_RECORDS, key.fold("fixed"))
    extra = _records(_MODELS, key.fold("extra")).one_each()
    ours, alone, gemm = [], [], []
    for repeat in range(_REPEATS):
        progress("bench shadows", repeat, _REPEATS)
        seconds, stacked = _timed(lambda: descend(mlp, descent, initial, fixed, extra))
        ours.append(seconds / _MODELS)
        seconds, single = _timed(
            lambda: torch.stack(
                [
                    one_at_a_time(mlp, descent, initial, fixed, extra[i : i + 1])
                    for i in range(_ALONE)
                ]
            )
        )
        alone.append(seconds / _ALONE)
        gemm.append(_gemm_rate())
    progress("bench shadows", _REPEATS, _REPEATS)
    flops = (4 * _RECORDS * _INPUTS * _HIDDEN + 6 * _RECORDS * _HIDDEN * _CLASSES) * _STEPS
    return {
        "name": "shadows",
        "case": f"MLP {_INPUTS}-{_HIDDEN}-{_CLASSES}, |D-| = {_RECORDS}, {_STEPS} steps",
        "ours": min(ours),
        "baseline": min(alone),
        "ratio": min(alone) / min(ours),
        "peak_fraction": flops / min(ours) / max(gemm),
        "gemm_gflops": max(gemm) / 1e9,
        "largest_difference": float((stacked[:_ALONE] - single).abs().max()),
        "models": _MODELS,
        "threads": torch.get_num_threads(),
        "repeats": _REPEATS,
    }


def one_at_a_time(
    mlp: MLP, descent: Descent, initial: Tensor, fixed: Records, extra: Records
) -> Tensor:
    """The reference: one module, one optimiser, autograd. Returns (p,)."""
    model = mlp.build()
    torch.nn.utils.vector_to_parameters(initial.clone(), model.parameters())
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=descent.rate,
        momentum=descent.momentum,
        weight_decay=descent.weight_decay,
    )
    inputs = torch.cat([fixed.inputs, extra.inputs[0]])
    labels = torch.cat([fixed.labels, extra.labels[0]])
    for _ in range(descent.steps):
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(inputs), labels))
        optimiser.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def _records(count: int, key: Key) -> Records:
    """Images of about MNIST's density that differ by class: training is as stable as on real ones.

    No column is zero throughout, so nothing is skipped that a dense set would pay for.
    """
    generator = key.generator()
    labels = torch.randint(_CLASSES, (count,), generator=generator)
    strokes = torch.rand(_CLASSES, _INPUTS, generator=torch.Generator().manual_seed(0)) < 0.2
    noise = torch.rand(count, _INPUTS, generator=generator)
    inputs = torch.where(strokes[labels], 0.5 + noise / 2, (noise - 0.9).clamp_min(0))
    return Records(inputs, labels, tuple(str(i) for i in range(_CLASSES)))


def _timed(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def _gemm_rate() -> float:
    """The better of the job's two large products, in operations a second."""
    rows = _MODELS * _HIDDEN
    rates = []
    for inner, columns in ((_INPUTS, _RECORDS), (_RECORDS, _INPUTS)):
        left, right = torch.ones(rows, inner), torch.ones(inner, columns)
        out = torch.empty(rows, columns)
        seconds = min(_timed(lambda: torch.mm(left, right, out=out))[0] for _ in range(10))  # noqa: B023
        rates.append(2 * rows * inner * columns / seconds)
    return max(rates)
