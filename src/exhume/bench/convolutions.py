"""Ways to train a stack of small convolutional networks on a processor, beside what the machine allows.

A step of one network of n records is `n·(3·f - f_1)` operations (`shadows.Case`) and moves at least the
activations (written once, read once forward and once back, with a gradient each) and the parameters (read,
gradient, momentum). The roof is the larger of

    sum over layers of operations / rate of that layer's own product,    bytes / rate of a copy,

both measured here, in one thread. Every way ends with the same weights to rounding (`largest_difference`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.bench.entries import each_case, entry, timed
from exhume.bench.shadows import Case, bench_records, one_at_a_time
from exhume.contract import Key, Progress, Records
from exhume.models.activations import activation
from exhume.models.cnn import CNN
from exhume.scale import Processes, run_jobs, spread_over
from exhume.train.functional import activations
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.workers import pinned

__all__ = ["CASES", "convolution_case", "run"]

CASES = (Case(CNN(), 100, steps=5, models=16),)
_REPEATS = 3
_ALONE = "one at a time"


def run(progress: Progress) -> list[dict[str, Any]]:
    cores = torch.get_num_threads()
    return each_case("shadows", CASES, lambda case: convolution_case(case, cores), progress)


def convolution_case(case: Case, cores: int) -> dict[str, Any]:
    """The entry of a stack of convolutional networks: the best way, beside one at a time.

    cores: processes of the last way.
    """
    assert isinstance(case.architecture, CNN)
    key = Key.from_seed(0).fold("bench")
    fixed = bench_records(case.records, case.architecture, key.fold("fixed"))
    extra = bench_records(case.models, case.architecture, key.fold("extra")).one_each()
    job = (case, case.architecture.initial(key), fixed, extra)
    seconds: dict[str, float] = {}
    results: dict[str, Tensor] = {}
    with pinned(1):
        for _ in range(_REPEATS):
            for name, way in _WAYS.items():
                spent, results[name] = timed(lambda: way(*job))  # noqa: B023
                seconds[name] = min(spent / case.models, seconds.get(name, spent))
        roof = _roof(case)
    in_processes = f"{_ALONE}, {cores} processes"
    seconds[in_processes] = _spread(job, cores) / case.models
    best = min(seconds, key=lambda name: seconds[name])
    apart = max(float((found - results[_ALONE]).abs().max()) for found in results.values())
    more = {
        "best": best,
        "seconds_a_model": {name: round(spent, 5) for name, spent in seconds.items()},
        "peak_fraction": roof["roof_seconds"] / min(seconds[name] for name in _WAYS),
        **roof,
        "largest_difference": apart,
        "models": case.models,
    }
    return entry("shadows", f"ways: {case}", seconds[best], seconds[_ALONE], _REPEATS, more)


# Ways


def _grouped(case: Case, initial: Tensor, fixed: Records, extra: Records) -> Tensor:
    """All models at once by `vmap(grad)`, which makes one grouped convolution of theirs."""
    recipe = FullBatch(case.architecture, _descent(case))
    return recipe.fit(initial, fixed, extra, Key.from_seed(0))


def _alone(case: Case, initial: Tensor, fixed: Records, extra: Records) -> Tensor:
    return _each(case, initial, fixed, extra, torch.contiguous_format)


def _channels_last(case: Case, initial: Tensor, fixed: Records, extra: Records) -> Tensor:
    return _each(case, initial, fixed, extra, torch.channels_last)


def _each(
    case: Case, initial: Tensor, fixed: Records, extra: Records, form: torch.memory_format
) -> Tensor:
    trained = [
        one_at_a_time(
            case.architecture, _descent(case), initial, fixed, extra[i : i + 1], form=form
        )
        for i in range(case.models)
    ]
    return torch.stack(trained)


def _im2col(case: Case, initial: Tensor, fixed: Records, extra: Records) -> Tensor:
    """(s, p): every convolution as a product over all models; patches of the shared records made once."""
    net, descent = case.architecture, _descent(case)
    assert isinstance(net, CNN)
    models = extra.labels.shape[0]
    flat = initial.expand(models, -1).clone()
    update = descent.start([flat])
    kernel, stride = net.kernels[0], net.strides[0]
    shared = F.unfold(fixed.inputs, kernel, stride=stride)
    own = F.unfold(extra.inputs.flatten(0, 1), kernel, stride=stride)
    labels = torch.cat([fixed.labels.expand(models, -1), extra.labels], dim=1).flatten()
    for _ in range(descent.steps):
        weights = flat.detach().requires_grad_()
        outputs = _stacked_outputs(net, weights, shared, own)
        loss = F.cross_entropy(outputs.flatten(0, 1), labels, reduction="sum")
        (slope,) = torch.autograd.grad(loss, weights)
        update([slope], labels.numel() / models)
    return flat


def _stacked_outputs(net: CNN, weights: Tensor, shared: Tensor, own: Tensor) -> Tensor:
    """(s, p), (n, i, l) patches of shared records and (s·e, i, l) of the models' own: (s, n + e, c)."""
    models, act = len(weights), activation(net.activation).module()
    named = _split(net, weights)
    first, bias = named["conv1.weight"].flatten(2), named["conv1.bias"]
    there = torch.einsum("soi,nil->snol", first, shared)
    here = torch.einsum("soi,seil->seol", first, own.reshape(models, -1, *own.shape[1:]))
    hidden: Tensor = act(torch.cat([there, here], dim=1) + bias[:, None, :, None])
    for layer in range(1, len(net.channels)):
        records, side = hidden.shape[1], net.outlines[layer]
        image = hidden.reshape(models * records, *side)
        patches = F.unfold(image, net.kernels[layer], stride=net.strides[layer])
        weight, bias = (
            named[f"conv{layer + 1}.weight"].flatten(2),
            named[f"conv{layer + 1}.bias"],
        )
        found = torch.einsum(
            "soi,snil->snol", weight, patches.reshape(models, records, *patches.shape[1:])
        )
        hidden = act(found + bias[:, None, :, None])
    hidden = hidden.flatten(2)
    for layer in range(1, len(net.sizes)):
        weight, bias = named[f"fc{layer}.weight"], named[f"fc{layer}.bias"]
        hidden = torch.baddbmm(bias[:, None], hidden, weight.mT)
        hidden = act(hidden) if layer < len(net.sizes) - 1 else hidden
    return hidden


def _split(net: CNN, weights: Tensor) -> dict[str, Tensor]:
    sizes = [torch.Size(shape).numel() for shape in net.layout.shapes]
    parts = torch.split(weights, sizes, dim=1)
    named = zip(net.layout.names, net.layout.shapes, parts, strict=True)
    return {name: part.reshape(-1, *shape) for name, shape, part in named}


_WAYS: dict[str, Callable[[Case, Tensor, Records, Records], Tensor]] = {
    _ALONE: _alone,
    "channels last, one at a time": _channels_last,
    "grouped convolutions": _grouped,
    "im2col products over models": _im2col,
}


def _descent(case: Case) -> Descent:
    return Descent(steps=case.steps, momentum=0.9)


Job = tuple[Case, Tensor, Records, Records]


def _spread(job: Job, cores: int) -> float:
    """Seconds from the first begin to the last end of one part in each process, their start left out."""
    with spread_over(Processes(cores)), pinned(1):
        parts = run_jobs(_part, [(i, cores) for i in range(cores)], shared=job)
        times = [span for _, span in parts if span is not None]
    return max(end for _, end in times) - min(begin for begin, _ in times)


def _part(job: Job, which: tuple[int, int]) -> tuple[float, float]:
    case, initial, fixed, extra = job
    index, of = which
    mine = range(index, case.models, of)
    warm = Case(case.architecture, case.records, 1, models=1)
    _alone(warm, initial, fixed, extra)
    began = time.time()
    for model in mine:
        one_at_a_time(case.architecture, _descent(case), initial, fixed, extra[model : model + 1])
    return began, time.time()


# The machine


def _roof(case: Case) -> dict[str, float]:
    """What one thread of this machine allows one model's training."""
    net, rows = case.architecture, case.records
    by_products = 0.0
    for place, (outputs, inputs, places) in enumerate(case.layers()):
        operations = 2 * outputs * inputs * places * rows * case.steps
        times = 2 if place == 0 else 3  # the input's gradient is not needed
        by_products += times * operations / _product_rate(outputs, inputs, rows * places)
    moved = 4.0 * case.steps * (5 * rows * activations(net) + 6 * net.layout.size)
    by_bytes = moved / _copy_rate()
    return {
        "operations": float(case.operations()),
        "bytes": moved,
        "operations_a_byte": case.operations() / moved,
        "peak_gflops": case.operations() / by_products / 1e9,
        "copy_gbytes": _copy_rate() / 1e9,
        "roof_seconds": max(by_products, by_bytes),
    }


def _product_rate(rows: int, inner: int, columns: int) -> float:
    left, right = torch.ones(rows, inner), torch.ones(inner, columns)
    out = torch.empty(rows, columns)
    seconds = min(timed(lambda: torch.mm(left, right, out=out))[0] for _ in range(7))
    return 2 * rows * inner * columns / seconds


def _copy_rate() -> float:
    """Bytes read and written a second, of more than the caches hold."""
    source = torch.ones(1 << 26)
    target = torch.empty_like(source)
    seconds = min(timed(lambda: target.copy_(source))[0] for _ in range(4))
    return 2 * 4 * source.numel() / seconds
