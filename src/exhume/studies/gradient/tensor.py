"""The tensor method on dL/da (Wang23): its error against neurons and inputs, and under noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from exhume.attacks.gradient.span import SpanAttack
from exhume.attacks.gradient.tensor import DrawnRows, TensorAttack, blocks
from exhume.core.contract import Attack, Key, Reconstruction, Records, Status
from exhume.core.contract import Outcome as Ended
from exhume.core.errors import NotApplicable
from exhume.core.results import Chart
from exhume.defences.release import NoiseRelease
from exhume.models.two_layer import TwoLayer
from exhume.score.batches import score_batches
from exhume.studies.claims import (
    Paired,
    by_row,
    flattened,
    line,
    mean_of,
    paired,
    prefixed,
    spread,
)
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.gradient.batches import attacked, even_odd_batches, unit_vectors
from exhume.victims import secret_of
from exhume.victims.gradient import release_batches

_Row = dict[str, float]
_ORDERS = {"tanh": 3, "relu": 4}  # of the moment that is decomposed


@dataclass(frozen=True)
class _Images:
    source: str
    width: int
    batches: int


@dataclass(frozen=True)
class _Setting:
    widths: tuple[int, ...]  # m, at the first of the inputs
    inputs: tuple[int, ...]  # d, at `fixed_width`
    fixed_width: int
    seeds: int
    images: tuple[_Images, ...]
    batch: int = 4

    @property
    def places(self) -> list[tuple[int, int]]:
        """All (m, d), each once."""
        first = self.inputs[0]
        found = [(m, first) for m in self.widths] + [(self.fixed_width, d) for d in self.inputs]
        return list(dict.fromkeys(found))


def _powers(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    return tuple(2**p for p in range(first, last + 1, step))


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting((2**13, 2**15), (10, 20), 2**14, 2, (_Images("digits", 2**13, 1),), 2),
    "cpu": _Setting(_powers(14, 20), (50, 25, 100, 200), 2**16, 20, (_Images("digits", 2**17, 4),)),
    "paper": _Setting(
        _powers(14, 22),
        (50, 25, 100, 200, 400),
        2**20,
        20,
        (_Images("digits", 2**20, 20), _Images("mnist", 2**20, 20)),
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    """Wang23's theorem, measured: the tensor method's error against the number of neurons and of inputs.

    dL/da alone, synthetic unit vectors, every point kept; images, whose records are far from orthogonal, are
    reported beside it. An odd activation with one output
    leaves the sign open ((x, y) and (-x, 1 - y) have the same gradient), so tanh is scored up to sign.
    """
    setting, seeds = run.setting, range(run.setting.seeds)
    jobs = {f"m{m}.d{d} {i}": (m, d, i) for m, d in setting.places for i in seeds}
    found = run.arms("tensor method", _place, jobs)
    rows = {(m, d): [found[f"m{m}.d{d} {i}"] for i in seeds] for m, d in setting.places}
    metrics: dict[str, float] = {}
    for (m, d), runs in rows.items():
        metrics[f"expected.m{m}.d{d}"] = math.sqrt(d / m)
        for name, number in product(_ORDERS, ("error", "batch_size_right", "seconds")):
            metrics[f"{number}.{name}.m{m}.d{d}"] = fmean(row[f"{number}.{name}"] for row in runs)
    for name in _ORDERS:
        metrics |= _slopes(name, setting, rows, run.key.fold("bootstrap"))
    images = {f"images.{each.source}.m{each.width}": each for each in setting.images}
    metrics |= flattened(run.arms("images", _images, images))
    return Outcome(
        metrics,
        said={
            "by_width": {m: f"m{m}.d{setting.inputs[0]}" for m in setting.widths},
            "by_inputs": {d: f"m{setting.fixed_width}.d{d}" for d in setting.inputs},
            "fewest": setting.inputs[0],
        },
    )


def _place(run: Run[_Setting], job: tuple[int, int, int]) -> _Row:
    """One number of neurons and of inputs, with one seed."""
    (m, d, i), batch = job, run.setting.batch
    return _both(unit_vectors(d, batch, run.key.fold(i)), m, run.key.fold(i))


def _both(records: Records, m: int, key: Key) -> _Row:
    """Both activations at one query: the weights are the same for both."""
    at = TensorAttack().query(TwoLayer(records.shape, m), key)
    rows = {name: _one(name, records, m, at, key) for name in _ORDERS}
    return {f"{number}.{name}": rows[name][number] for name in rows for number in rows[name]}


def _one(name: str, records: Records, m: int, at: Tensor, key: Key) -> _Row:
    """Mean error of a batch, whether its size was found, and the attack's seconds."""
    batch = records.labels.shape[1]
    attack = TensorAttack(nonnegative=False, largest=2 * batch)
    network = TwoLayer(records.shape, m, 1, name)
    seen, _ = release_batches(network, at, records)
    # the first layer's gradient is not part of this threat model
    seen.layout.split(seen.values)["fc1.weight"].zero_()
    found, scores = attacked(attack, network, seen, records, key, up_to_sign=name == "tanh")
    return {
        "error": float(scores.errors.mean()),
        "batch_size_right": float(scores.sizes[0] == batch),
        "seconds": found.cost.seconds,
        "cosine": float(scores.cosines.mean()),
    }


def _slopes(
    name: str, setting: _Setting, rows: dict[tuple[int, int], list[_Row]], key: Key
) -> dict[str, float]:
    """Slopes of the mean error over seeds; 95% intervals by drawing the seeds afresh."""
    errors = {at: np.array([row[f"error.{name}"] for row in runs]) for at, runs in rows.items()}
    lines = {
        f"slope_m.{name}": [(m, errors[m, setting.inputs[0]]) for m in setting.widths],
        f"slope_d.{name}": [(d, errors[setting.fixed_width, d]) for d in setting.inputs],
    }
    picks = torch.randint(setting.seeds, (1000, setting.seeds), generator=key.generator()).numpy()
    found = {}
    for slope, points in lines.items():
        found[slope] = _slope([(n, e.mean()) for n, e in points])
        again = [_slope([(n, e[pick].mean()) for n, e in points]) for pick in picks]
        low, high = np.quantile(again, (0.025, 0.975))
        found |= {f"{slope}.low": float(low), f"{slope}.high": float(high)}
    return found


def _slope(points: list[tuple[int, float]]) -> float:
    """Slope of a straight line through log error against log size."""
    x, y = np.log([p for p, _ in points]), np.log([e for _, e in points])
    return float(np.polyfit(x, y, 1)[0])


def _images(run: Run[_Setting], images: _Images) -> dict[str, float]:
    """Images of unit norm in place of the vectors."""
    m, size, key = images.width, run.setting.batch, run.key.fold("images")
    records = even_odd_batches(run.records(images.source), images.batches, size, key)
    rows = [_both(records[i : i + 1], m, run.key.fold("images", i)) for i in range(images.batches)]
    return mean_of(rows) | {"expected": math.sqrt(math.prod(records.shape) / m)}


STUDY = Study("gradient-tensor", _SCALES, _run)


_NOISE = {"none": NoiseRelease(), "last": NoiseRelease(1.0, ("fc2",)), "whole": NoiseRelease(1.0)}


@dataclass(frozen=True)
class _NoisyImages:
    """Images of unit norm, at weights that are drawn block by block."""

    source: str
    width: int
    batch: int = 4


@dataclass(frozen=True)
class _NoiseSetting:
    widths: tuple[int, ...]  # m; at the first, also other attacks and several outputs
    fixed_width: int  # for the batch sizes
    batches: tuple[int, ...]  # B; the middle one for the widths
    outputs: int  # C, where they are several
    seeds: int
    images: _NoisyImages
    inputs: int = 50  # d
    activations: tuple[str, ...] = ("relu", "leaky-relu", "tanh", "sigmoid")

    @property
    def batch(self) -> int:
        return self.batches[len(self.batches) // 2]

    @property
    def narrowest(self) -> int:
        return self.widths[0]

    @property
    def widest(self) -> int:
        return max(self.widths)

    @property
    def first(self) -> str:
        return f"m{self.narrowest}.b{self.batch}"


@dataclass(frozen=True)
class _Arm:
    activation: str
    width: int
    inputs: int
    batch: int
    noise: str  # one of `_NOISE`
    seed: int
    outputs: int = 1
    jointly: bool = False


_NOISE_SCALES: dict[Scale, _NoiseSetting] = {
    "smoke": _NoiseSetting(
        _powers(12, 14, 2), 2**12, (1, 2), 3, 1, _NoisyImages("digits", 2**13), 10, ("relu", "tanh")
    ),
    "cpu": _NoiseSetting(_powers(14, 18, 2), 2**16, (2, 4, 8), 10, 5, _NoisyImages("mnist", 2**20)),
    "paper": _NoiseSetting(
        _powers(14, 22, 2), 2**18, (2, 4, 8), 10, 20, _NoisyImages("mnist", 2**22)
    ),
}


def _run_noise(run: Run[_NoiseSetting]) -> Outcome:
    """Noise against the paper's own method: the tensor method on dL/da, with the span attack beside it.

    Noise as large as what it is added to: on the last layer alone, all that the tensor method reads, or on
    the whole update. By neurons, activation, batch size and outputs; and images at a width that fills no
    memory.
    """
    setting = run.setting
    rows = by_row(run.arms("tensor method under noise", _one_noisy, _arms(setting)))
    metrics, key = dict[str, float](), run.key.fold("bootstrap")
    for name, seeds in rows.items():
        for number in seeds[0]:
            each = torch.tensor([one[number] for one in seeds], dtype=torch.float64)
            metrics |= spread(f"{name}.{number}", each, key)
    images = setting.images
    pictures = run.arms("images", _of_images, {"last": 1.0})
    metrics |= prefixed(f"images.{images.source}.m{images.width}", flattened(pictures))
    said = {"joint": _joint(setting, rows, key)}
    return Outcome(metrics, said=said, charts=[_noise_chart(setting, metrics)])


def _arms(setting: _NoiseSetting) -> dict[str, _Arm]:
    """All, by name and seed."""
    fixed, batch, inputs = setting.fixed_width, setting.batch, setting.inputs
    found: dict[str, _Arm] = {}
    for name, seed in product(setting.activations, range(setting.seeds)):
        for m, noise in product(setting.widths, _NOISE):
            if noise == "whole" and m == max(setting.widths):
                continue  # it is a small part of this noise that falls on dL/da
            arm = _Arm(name, m, inputs, batch, noise, seed)
            found[f"{name}.m{m}.b{batch}.{noise} {seed}"] = arm
        for b in setting.batches:
            arm = _Arm(name, fixed, inputs, b, "last", seed)
            found.setdefault(f"{name}.m{fixed}.b{b}.last {seed}", arm)
        for way in ("combined", "joint"):
            several = (setting.outputs, way == "joint")
            arm = _Arm(name, setting.widths[0], inputs, batch, "last", seed, *several)
            found[f"{name}.{setting.first}.last.c{setting.outputs}.{way} {seed}"] = arm
    return found


def _one_noisy(run: Run[_NoiseSetting], arm: _Arm) -> _Row:
    """Mean errors over one batch, and whether its size was counted."""
    own = run.key.fold("noise", arm.seed)
    records = unit_vectors(arm.inputs, arm.batch, own, classes=max(2, arm.outputs))
    network = TwoLayer(records.shape, arm.width, arm.outputs, arm.activation)
    made, _ = release_batches(network, TensorAttack().query(network, own), records)
    seen = _NOISE[arm.noise].protect(made, own.fold("defence"))
    free = arm.activation == "tanh"
    tensor = TensorAttack(nonnegative=False, largest=2 * arm.batch, jointly=arm.jointly)
    attacks: dict[str, Attack] = {"error": tensor}
    if arm.width == min(run.setting.widths) and arm.outputs == 1:
        attacks["fitted_error"] = replace(tensor, refined=True)
        attacks["span_error"] = SpanAttack(nonnegative=False, largest=2 * arm.batch)
    scores = {
        name: attacked(attack, network, seen, records, own, up_to_sign=free)[1]
        for name, attack in attacks.items()
    }
    errors = {name: float(each.errors.mean()) for name, each in scores.items()}
    return errors | {"counted": float(scores["error"].sizes[0] == arm.batch)}


def _of_images(run: Run[_NoiseSetting], noise: float) -> _Row:
    """ReLU, one output. The weights are drawn afresh at every pass: no more than a block is ever held."""
    images, key = run.setting.images, run.key.fold("images")
    records = run.records(images.source)
    private = even_odd_batches(records, 1, images.batch, key.fold("images"))
    network = TwoLayer(private.shape, images.width, 1, "relu")
    rows = DrawnRows(key.fold("query"), images.width, network.inputs)
    seen = _last_layer(rows, private, network)
    drawn = torch.randn(seen.shape, dtype=seen.dtype, generator=key.fold("defence").generator())
    seen = seen + noise * seen.square().mean().sqrt() * drawn
    attack = TensorAttack(largest=2 * images.batch)
    try:
        records_found = attack.records_behind(network, rows, seen[None], key)
    except NotApplicable:  # nothing stands out from the noise
        records_found = torch.zeros(0, *network.input_shape)
    found = Reconstruction(
        records_found[None], torch.zeros(1, len(records_found)), Status(Ended.CONVERGED)
    )
    scores = score_batches(secret_of(private), found)
    counted = float(scores.sizes[0] == images.batch)
    return {
        "error": float(scores.errors.mean()),
        "worst_error": float(scores.errors.max()),
        "counted": counted,
    }


def _last_layer(rows: DrawnRows, private: Records, network: TwoLayer) -> Tensor:
    """(m,) dL/da of the mean logistic loss at a_j = 1/m, in two passes over the neurons."""
    inputs = private.inputs[0].flatten(1)
    total = torch.zeros(len(inputs), dtype=torch.float64)
    for block in blocks(rows):
        total += network.sigma.apply(inputs @ block.T).double().sum(1)
    slopes = (torch.sigmoid(total / len(rows)) - private.labels[0]) / len(inputs)
    heights = (network.sigma.apply(inputs @ block.T).double() for block in blocks(rows))
    return torch.cat([slopes @ height for height in heights])


def _joint(setting: _NoiseSetting, rows: dict[str, list[_Row]], key: Key) -> Paired:
    def errors(way: str) -> Tensor:
        names = [
            f"{name}.{setting.first}.last.c{setting.outputs}.{way}" for name in setting.activations
        ]
        return torch.tensor([one["error"] for name in names for one in rows[name]])

    return paired(errors("joint"), errors("combined"), key.fold("joint"), "error")


def _noise_chart(setting: _NoiseSetting, metrics: dict[str, float]) -> Chart:
    series = {
        f"{name}{words}": line(
            {m: f"{name}.m{m}.b{setting.batch}.{noise}" for m in setting.widths}, "error", metrics
        )
        for name in setting.activations
        for noise, words in (("none", ""), ("last", ", noise on dL/da"))
    }
    title = f"The tensor method under noise, {setting.inputs} inputs, {setting.batch} records"
    return Chart(title, "neurons", "error", series, "log", "log")


NOISE = Study("gradient-noise", _NOISE_SCALES, _run_noise, threads={"smoke": 1, "cpu": 1})
