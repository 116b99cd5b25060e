"""Wang23's theorem, measured: the tensor method's error against the number of neurons and of inputs.

dL/da alone, synthetic unit vectors, every point kept. An odd activation with one output leaves the sign open
((x, y) and (-x, 1 - y) have the same gradient), so tanh is scored up to sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from exhume.attacks.gradient.decompose import METHODS
from exhume.attacks.gradient.tensor import TensorAttack
from exhume.contract import Key, Knowledge, Progress, Records
from exhume.models.two_layer import TwoLayer
from exhume.report.folder import RunFolder
from exhume.score.batches import score_batches
from exhume.store import NullStore
from exhume.studies.study import Claim, Outcome, Scale, Study, remembered
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

ACTIVATIONS = ("tanh", "relu")
_MOMENTS = {"tanh": 3, "relu": 4}
DEVIATIONS = (
    "Orders 0 and 1 are taken out of dL/da by least squares, and the moments inside the span are fitted "
    "instead of averaged: the rate is the same, the constant smaller.",
    "tanh is scored up to sign: one odd output without biases does not determine it.",
    "The error of a record is |x - y| of unit vectors, averaged over records and seeds; a record that was "
    "not found counts with sqrt(2), the distance of orthogonal vectors.",
)


@dataclass(frozen=True)
class _Setting:
    widths: tuple[int, ...]  # m, at the first of the inputs
    inputs: tuple[int, ...]  # d, at `fixed_width`
    fixed_width: int
    seeds: int
    batch: int = 4


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting((2**13, 2**15), (10, 20), 2**14, 1, 2),
    "cpu": _Setting(tuple(2**p for p in range(14, 21)), (50, 25, 100, 200), 2**18, 20),
    "paper": _Setting(tuple(2**p for p in range(14, 23)), (50, 25, 100, 200, 400), 2**20, 20),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed)
    store = folder.store()
    metrics: dict[str, float] = {}
    first = setting.inputs[0]
    places = [(m, first) for m in setting.widths]
    places += [(setting.fixed_width, d) for d in setting.inputs if d != first]
    if (setting.fixed_width, first) not in places:
        places.append((setting.fixed_width, first))
    total, done = len(ACTIVATIONS) * len(places) * setting.seeds, 0
    for name in ACTIVATIONS:
        errors: dict[tuple[int, int], float] = {}
        for m, d in places:
            runs = []
            for i in range(setting.seeds):
                progress("tensor method", done, total)
                address = key.fold("gradient-tensor 1", name, m, d, setting.batch, i).digest
                kept = store.load(address)
                if kept is None:
                    kept = {"row": _one(name, m, d, setting.batch, Key.from_seed(seed).fold(i))}
                    store.save(address, kept)
                runs.append(kept["row"].tolist())
                done += 1
            errors[m, d] = fmean(row[0] for row in runs)
            metrics[f"error.{name}.m{m}.d{d}"] = errors[m, d]
            metrics[f"batch_size_right.{name}.m{m}.d{d}"] = fmean(row[1] for row in runs)
            metrics[f"expected.m{m}.d{d}"] = math.sqrt(d / m)
        metrics[f"slope_m.{name}"] = _slope([(m, errors[m, first]) for m in setting.widths])
        metrics[f"slope_d.{name}"] = _slope(
            [(d, errors[setting.fixed_width, d]) for d in setting.inputs]
        )
    place = key.fold("gradient-tensor methods 1", repr(setting))
    metrics |= remembered(folder, place, partial(_methods, setting, key))
    progress("tensor method", total, total)
    return Outcome(_claims(metrics), metrics, deviations=list(DEVIATIONS))


def _one(name: str, m: int, d: int, batch: int, key: Key, *, method: str = "joint") -> Tensor:
    """(2,) mean error of a batch, and whether its size was found."""
    attack = TensorAttack(nonnegative=False, largest=2 * batch, method=method)
    network = TwoLayer((d,), m, 1, name)
    draws = torch.randn(1, batch, d, generator=key.fold("records").generator())
    labels = torch.randint(2, (1, batch), generator=key.fold("labels").generator())
    records = Records(draws / draws.norm(dim=2, keepdim=True), labels, ("0", "1"))
    release, secret = release_batches(network, attack.query(network, key), records)
    # the first layer's gradient is not part of this threat model
    release.layout.split(release.values)["fc1.weight"].zero_()
    knowledge = Knowledge(architecture=network)
    found = attack.prepare(knowledge, key=key, store=NullStore()).run(release)
    scores = score_batches(secret, found, up_to_sign=name == "tanh")
    right = float(scores.sizes[0] == batch)
    return torch.tensor([float(scores.errors.mean()), right], dtype=torch.float64)


def _slope(points: list[tuple[int, float]]) -> float:
    """Of a straight line through log error against log size."""
    x, y = np.log([p for p, _ in points]), np.log([e for _, e in points])
    return float(np.polyfit(x, y, 1)[0])


def _methods(setting: _Setting, key: Key) -> dict[str, float]:
    """The three decompositions on the same gradients, at the smallest m."""
    few = replace(setting, seeds=min(setting.seeds, 5))
    return {
        f"method.{method}.{name}": fmean(
            float(
                _one(name, few.widths[0], few.inputs[0], few.batch, key.fold(i), method=method)[0]
            )
            for i in range(few.seeds)
        )
        for method in METHODS
        for name in ACTIVATIONS
    }


def _claims(metrics: dict[str, float]) -> list[Claim]:
    found = []
    for name in ACTIVATIONS:
        p = _MOMENTS[name]
        slope_m, slope_d = metrics[f"slope_m.{name}"], metrics[f"slope_d.{name}"]
        found += [
            Claim(
                f"neurons.{name}",
                f"{name} (order {p}): the error falls as 1/sqrt(m)",
                "error <= O(sqrt(d/m))",
                f"slope {slope_m:.3f}",
                abs(slope_m + 0.5) <= 0.1,
            ),
            Claim(
                f"inputs.{name}",
                f"{name} (order {p}): the error grows as sqrt(d)",
                "error <= O(sqrt(d/m))",
                f"slope {slope_d:.3f}",
                abs(slope_d - 0.5) <= 0.15,
            ),
        ]
    return found


STUDY = Study(
    name="gradient-tensor",
    title="The tensor method's error against neurons and inputs",
    paper="Wang23",
    run=_run,
)
