"""Wang23's theorem, measured: the tensor method's error against the number of neurons and of inputs.

dL/da alone, synthetic unit vectors, every point kept; images, whose records are far from orthogonal, and the
ways of decomposing the moment are reported beside it. An odd activation with one output leaves the sign open
((x, y) and (-x, 1 - y) have the same gradient), so tanh is scored up to sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from exhume.attacks.gradient.decompose import METHODS, have_tensorly
from exhume.attacks.gradient.tensor import TensorAttack
from exhume.core.contract import Key, Records
from exhume.models.two_layer import TwoLayer
from exhume.studies.claims import flattened, mean_of
from exhume.studies.framework import Chart, Claims, Outcome, Point, Run, Scale, Study
from exhume.studies.gradient.batches import attacked, even_odd_batches, unit_vectors
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

_Row = dict[str, float]
_ORDERS = {"tanh": 3, "relu": 4}  # of the moment that is decomposed
DEVIATIONS = (
    "Orders 0 and 1 are taken out of dL/da by least squares, and the moments inside the span are fitted "
    "instead of averaged: the rate is the same, the constant smaller.",
    "tanh is scored up to sign: one odd output without biases does not determine it.",
    "The error of a record is |x - y| of unit vectors, averaged over records and seeds; a record that was "
    "not found counts with sqrt(2), the distance of orthogonal vectors.",
    "TensorLy's decomposition is among those compared only where TensorLy is installed.",
)


_LAWS = {  # the slope of log error against log size, and how far off it may be
    "slope_m": ("neurons", "the error falls as 1/sqrt(m)", -0.5, 0.1),
    "slope_d": ("inputs", "the error grows as sqrt(d)", 0.5, 0.15),
}


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


def _powers(first: int, last: int) -> tuple[int, ...]:
    return tuple(2**p for p in range(first, last + 1))


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
    there = [method for method in METHODS if method != "cp" or have_tensorly()]
    metrics |= flattened(run.arms("decompositions", _method, {f"method.{m}": m for m in there}))
    charts = _charts(setting, metrics)
    return Outcome(_claims(metrics), metrics, deviations=list(DEVIATIONS), charts=charts)


def _place(run: Run[_Setting], job: tuple[int, int, int]) -> _Row:
    """One number of neurons and of inputs, with one seed."""
    (m, d, i), batch = job, run.setting.batch
    return _both(unit_vectors(d, batch, run.key.fold(i)), m, run.key.fold(i))


def _both(records: Records, m: int, key: Key) -> _Row:
    """Both activations at one query: the weights are the same for both."""
    at = TensorAttack().query(TwoLayer(records.shape, m), key)
    rows = {name: _one(name, records, m, at, key) for name in _ORDERS}
    return {f"{number}.{name}": rows[name][number] for name in rows for number in rows[name]}


def _one(
    name: str, records: Records, m: int, at: Tensor, key: Key, *, method: str = "joint"
) -> _Row:
    """Mean error of a batch, whether its size was found, and the attack's seconds."""
    batch = records.labels.shape[1]
    attack = TensorAttack(nonnegative=False, largest=2 * batch, method=method)
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
    for line, points in lines.items():
        found[line] = _slope([(n, e.mean()) for n, e in points])
        again = [_slope([(n, e[pick].mean()) for n, e in points]) for pick in picks]
        low, high = np.quantile(again, (0.025, 0.975))
        found |= {f"{line}.low": float(low), f"{line}.high": float(high)}
    return found


def _slope(points: list[tuple[int, float]]) -> float:
    """Of a straight line through log error against log size."""
    x, y = np.log([p for p, _ in points]), np.log([e for _, e in points])
    return float(np.polyfit(x, y, 1)[0])


def _images(run: Run[_Setting], images: _Images) -> dict[str, float]:
    """Images of unit norm in place of the vectors."""
    m, size, key = images.width, run.setting.batch, run.key.fold("images")
    records = even_odd_batches(run.records(images.source), images.batches, size, key)
    rows = [_both(records[i : i + 1], m, run.key.fold("images", i)) for i in range(images.batches)]
    return mean_of(rows) | {"expected": math.sqrt(math.prod(records.shape) / m)}


def _method(run: Run[_Setting], method: str) -> dict[str, float]:
    """One decomposition on the same gradients as the others."""
    setting, m, found = run.setting, run.setting.widths[0] * 2, dict[str, float]()
    for batch, name in product((setting.batch, 2 * setting.batch), _ORDERS):
        rows = []
        for key in (run.key.fold("methods", i) for i in range(2)):
            records = unit_vectors(setting.inputs[0], batch, key)
            at = TensorAttack().query(TwoLayer(records.shape, m), key)
            rows.append(_one(name, records, m, at, key, method=method))
        mean = mean_of(rows)
        found |= {f"{name}.b{batch}.{number}": mean[number] for number in ("error", "seconds")}
    return found


def _charts(setting: _Setting, metrics: dict[str, float]) -> list[Chart]:
    first, fixed = setting.inputs[0], setting.fixed_width
    lines = {name: f"error.{name}" for name in _ORDERS} | {"sqrt(d/m)": "expected"}

    def chart(title: str, sizes: str, places: dict[int, str]) -> Chart:
        series = {
            label: [Point(x, metrics[f"{number}.{place}"]) for x, place in places.items()]
            for label, number in lines.items()
        }
        return Chart(title, sizes, "error", series, "log", "log")

    by_width = {m: f"m{m}.d{first}" for m in setting.widths}
    by_inputs = {d: f"m{fixed}.d{d}" for d in setting.inputs}
    return [
        chart(f"Error at {first} inputs", "neurons", by_width),
        chart(f"Error at {fixed:,} neurons", "inputs", by_inputs),
    ]


def _claims(metrics: dict[str, float]) -> Claims:
    claims: Claims = {}
    for (name, order), (line, law) in product(_ORDERS.items(), _LAWS.items()):
        sizes, statement, expected, tolerance = law
        slope, low, high = (metrics[f"{line}.{name}{end}"] for end in ("", ".low", ".high"))
        claims[f"{sizes}.{name}"] = (
            f"{name} (order {order}): {statement}",
            "error <= O(sqrt(d/m))",
            f"slope {slope:.3f} ({low:.3f} to {high:.3f})",
            abs(slope - expected) <= tolerance,
        )
    return claims


_TITLE = "The tensor method's error against neurons and inputs"
STUDY = Study("gradient-tensor", _TITLE, "Wang23", _SCALES, _run)
