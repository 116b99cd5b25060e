"""Wang23's theorem, measured: the tensor method's error against the number of neurons and of inputs.

dL/da alone, synthetic unit vectors, every point kept; images, whose records are far from orthogonal, and the
ways of decomposing the moment are reported beside it. An odd activation with one output leaves the sign open
((x, y) and (-x, 1 - y) have the same gradient), so tanh is scored up to sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from exhume import data
from exhume.attacks.gradient.tensor.attack import TensorAttack
from exhume.attacks.gradient.tensor.cp import have_tensorly
from exhume.attacks.gradient.tensor.decompose import METHODS
from exhume.contract import Key, Knowledge, Progress, Records
from exhume.models.two_layer import TwoLayer
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.batches import score_batches
from exhume.store import NullStore
from exhume.studies.gradient.start import unit_batches
from exhume.studies.study import Claim, Outcome, Scale, Study, remembered
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

ACTIVATIONS = ("tanh", "relu")
_Row = dict[str, float]
_MOMENTS = {"tanh": 3, "relu": 4}
DEVIATIONS = (
    "Orders 0 and 1 are taken out of dL/da by least squares, and the moments inside the span are fitted "
    "instead of averaged: the rate is the same, the constant smaller.",
    "tanh is scored up to sign: one odd output without biases does not determine it.",
    "The error of a record is |x - y| of unit vectors, averaged over records and seeds; a record that was "
    "not found counts with sqrt(2), the distance of orthogonal vectors.",
    "TensorLy's decomposition is among those compared only where TensorLy is installed.",
)


@dataclass(frozen=True)
class _Setting:
    widths: tuple[int, ...]  # m, at the first of the inputs
    inputs: tuple[int, ...]  # d, at `fixed_width`
    fixed_width: int
    seeds: int
    images: tuple[tuple[str, int, int], ...]  # source, m, batches
    batch: int = 4

    @property
    def places(self) -> list[tuple[int, int]]:
        """All (m, d), each once."""
        first = self.inputs[0]
        found = [(m, first) for m in self.widths] + [(self.fixed_width, d) for d in self.inputs]
        return list(dict.fromkeys(found))


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting((2**13, 2**15), (10, 20), 2**14, 2, (("digits", 2**13, 1),), 2),
    "cpu": _Setting(
        tuple(2**p for p in range(14, 21)),
        (50, 25, 100, 200),
        2**16,
        20,
        (("digits", 2**17, 4),),
    ),
    "paper": _Setting(
        tuple(2**p for p in range(14, 23)),
        (50, 25, 100, 200, 400),
        2**20,
        20,
        (("digits", 2**20, 20), ("mnist", 2**20, 20)),
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed)
    metrics: dict[str, float] = {}
    rows: dict[tuple[int, int], list[_Row]] = {place: [] for place in setting.places}
    total = len(rows) * setting.seeds
    for done, (m, d, i) in enumerate((m, d, i) for m, d in rows for i in range(setting.seeds)):
        progress("tensor method", done, total)
        place = key.fold("gradient-tensor 2", m, d, setting.batch, i)
        records = _vectors(d, setting.batch, key.fold(i))
        rows[m, d].append(remembered(folder, place, partial(_both, records, m, key.fold(i))))
    for (m, d), runs in rows.items():
        metrics[f"expected.m{m}.d{d}"] = math.sqrt(d / m)
        for name, number in product(ACTIVATIONS, ("error", "batch_size_right", "seconds")):
            metrics[f"{number}.{name}.m{m}.d{d}"] = fmean(row[f"{number}.{name}"] for row in runs)
    for name in ACTIVATIONS:
        metrics |= _slopes(name, setting, rows, key.fold("bootstrap"))
    for source, m, batches in setting.images:
        progress(f"images: {source}", 0, 1)
        place = key.fold("gradient-tensor images 2", source, m, batches, setting.batch)
        metrics |= remembered(folder, place, partial(_images, source, m, batches, setting, key))
    methods = [method for method in METHODS if method != "cp" or have_tensorly()]
    place = key.fold("gradient-tensor methods 2", repr(setting), *methods)
    metrics |= remembered(folder, place, partial(_methods, methods, setting, key))
    progress("tensor method", total, total)
    charts = _charts(setting, metrics)
    return Outcome(_claims(metrics), metrics, deviations=list(DEVIATIONS), charts=charts)


def _vectors(d: int, batch: int, key: Key) -> Records:
    """(1, batch, d) of unit norm, uniform."""
    draws = torch.randn(1, batch, d, generator=key.fold("records").generator())
    labels = torch.randint(2, (1, batch), generator=key.fold("labels").generator())
    return Records(draws / draws.norm(dim=2, keepdim=True), labels, ("0", "1"))


def _both(records: Records, m: int, key: Key) -> _Row:
    """Both activations at one query: the weights are the same for both."""
    at = TensorAttack().query(TwoLayer(records.shape, m), key)
    found: _Row = {}
    for name in ACTIVATIONS:
        row = _one(name, records, m, at, key)
        found |= {f"{number}.{name}": value for number, value in row.items()}
    return found


def _one(
    name: str, records: Records, m: int, at: Tensor, key: Key, *, method: str = "joint"
) -> _Row:
    """Mean error of a batch, whether its size was found, and the attack's seconds."""
    batch = records.labels.shape[1]
    attack = TensorAttack(nonnegative=False, largest=2 * batch, method=method)
    network = TwoLayer(records.shape, m, 1, name)
    release, secret = release_batches(network, at, records)
    # the first layer's gradient is not part of this threat model
    release.layout.split(release.values)["fc1.weight"].zero_()
    knowledge = Knowledge(architecture=network)
    found = attack.prepare(knowledge, key=key, store=NullStore()).run(release)
    scores = score_batches(secret, found, up_to_sign=name == "tanh")
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


def _images(source: str, m: int, batches: int, setting: _Setting, key: Key) -> dict[str, float]:
    """Images of unit norm in place of the vectors."""
    records = unit_batches(data.load(source), batches, setting.batch, key.fold("images"))
    rows = [_both(records[i : i + 1], m, key.fold("images", i)) for i in range(batches)]
    prefix, d = f"images.{source}.m{m}", math.prod(records.shape)
    found = {f"{prefix}.{name}": fmean(row[name] for row in rows) for name in rows[0]}
    return found | {f"{prefix}.expected": math.sqrt(d / m)}


def _methods(methods: list[str], setting: _Setting, key: Key) -> dict[str, float]:
    """The decompositions on the same gradients."""
    found: dict[str, list[_Row]] = {}
    for batch, i in product((setting.batch, 2 * setting.batch), range(2)):
        own = key.fold("methods", i)
        records, m = _vectors(setting.inputs[0], batch, own), setting.widths[0] * 2
        at = TensorAttack().query(TwoLayer(records.shape, m), own)
        for method, name in product(methods, ACTIVATIONS):
            row = _one(name, records, m, at, own, method=method)
            found.setdefault(f"method.{method}.{name}.b{batch}", []).append(row)
    return {
        f"{prefix}.{number}": fmean(row[number] for row in rows)
        for prefix, rows in found.items()
        for number in ("error", "seconds")
    }


def _charts(setting: _Setting, metrics: dict[str, float]) -> list[Chart]:
    first, fixed = setting.inputs[0], setting.fixed_width

    def series(places: list[tuple[int, int, int]]) -> dict[str, list[Point]]:
        lines = {name: f"error.{name}" for name in ACTIVATIONS} | {"sqrt(d/m)": "expected"}
        return {
            line: [Point(x, metrics[f"{prefix}.m{m}.d{d}"]) for x, m, d in places]
            for line, prefix in lines.items()
        }

    against_m = series([(m, m, first) for m in setting.widths])
    against_d = series([(d, fixed, d) for d in setting.inputs])
    return [
        Chart(f"Error at {first} inputs", "neurons", "error", against_m, "log", "log"),
        Chart(f"Error at {fixed:,} neurons", "inputs", "error", against_d, "log", "log"),
    ]


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
                f"slope {slope_m:.3f} ({metrics[f'slope_m.{name}.low']:.3f} to "
                f"{metrics[f'slope_m.{name}.high']:.3f})",
                abs(slope_m + 0.5) <= 0.1,
            ),
            Claim(
                f"inputs.{name}",
                f"{name} (order {p}): the error grows as sqrt(d)",
                "error <= O(sqrt(d/m))",
                f"slope {slope_d:.3f} ({metrics[f'slope_d.{name}.low']:.3f} to "
                f"{metrics[f'slope_d.{name}.high']:.3f})",
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
