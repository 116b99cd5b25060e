"""Gradient matching from noise against matching from the tensor estimate (Wang23, its last step)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.tensor import TensorAttack
from exhume.core.contract import Attack
from exhume.models.two_layer import TwoLayer
from exhume.score.batches import RECOVERED
from exhume.score.intervals import bootstrap
from exhume.studies.claims import ranged
from exhume.studies.framework import Chart, Outcome, Point, Run, Scale, Stated, Study
from exhume.studies.gradient.batches import attacked, even_odd_batches
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "8x8 digits of unit norm, two classes (even, odd), one output.",
    "Both starts get the same number of steps; noise gets several restarts, the estimate several rates, of "
    "which matching's own mismatch chooses.",
    "Matching sees dL/da and dL/dW, the tensor estimate and the fit that goes on from it dL/da alone.",
)

_CLAIMS = {  # name: what is claimed, the better arm, the other
    "better-start": (
        "Matching ends closer to the records from the tensor estimate than from noise",
        "tensor_start",
        "noise_start",
    ),
    "polish": ("Matching improves the tensor estimate", "tensor_start", "tensor"),
    "fit": ("A fit of dL/da improves the tensor estimate", "fitted", "tensor"),
}


@dataclass(frozen=True)
class _Setting:
    width: int
    batch: int
    batches: int
    matching: GradientMatching
    rates: tuple[float, ...]  # for a good start
    source: str = "digits"

    @property
    def tensor(self) -> TensorAttack:
        return TensorAttack(largest=2 * self.batch)

    def attacks(self) -> dict[str, list[Attack]]:
        """By name: one, or several of which the smallest mismatch of its own decides."""
        started = replace(self.matching, start=self.tensor)
        return {
            "tensor": [self.tensor],
            "fitted": [replace(self.tensor, refined=True)],
            "noise_start": [self.matching],
            "tensor_start": [replace(started, rate=rate) for rate in self.rates],
        }


_RATES = (0.02, 0.005, 0.0005)
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(8000, 2, 1, GradientMatching(steps=20, rate=0.02, restarts=2), (0.02, 0.002)),
    "cpu": _Setting(20_000, 3, 8, GradientMatching(steps=100, rate=0.02, restarts=2), _RATES),
    "paper": _Setting(160_000, 4, 50, GradientMatching(steps=2000, rate=0.02, restarts=8), _RATES),
}


def _run(run: Run[_Setting]) -> Outcome:
    jobs = {f"batch {i}": i for i in range(run.setting.batches)}
    rows, attacks = list(run.tensors("matching", _one, jobs).values()), run.setting.attacks()
    metrics: dict[str, float] = {}
    for name in attacks:
        right = [(row[name] >= RECOVERED).double() for row in rows]
        metrics[f"{name}.mean_cosine"] = fmean(float(row[name].mean()) for row in rows)
        metrics[f"{name}.recovered"] = fmean(float(each.mean()) for each in right)
    for name, (_, after, before) in _CLAIMS.items():
        gains = torch.stack([row[after].mean() - row[before].mean() for row in rows])
        low, high = bootstrap(gains, run.key.fold("bootstrap"))
        metrics |= {f"{name}.gain_low": low, f"{name}.gain_high": high}
    points = [Point(name.replace("_", " "), metrics[f"{name}.mean_cosine"]) for name in attacks]
    chart = Chart("How close each comes", "attack", "mean cosine", {"ReLU, digits": points})
    claims = {name: _claim(name, metrics) for name in _CLAIMS}
    return Outcome(claims, metrics, deviations=list(DEVIATIONS), charts=[chart])


def _one(run: Run[_Setting], i: int) -> dict[str, Tensor]:
    """Cosines of one batch's records, by attack."""
    setting, key = run.setting, run.key.fold("batch", i)
    records, own = run.records(setting.source), run.key.fold("records")
    private = even_odd_batches(records, setting.batches, setting.batch, own)[i : i + 1]
    network = TwoLayer(private.shape, setting.width, 1, "relu")
    seen, _ = release_batches(network, setting.tensor.query(network, key), private)
    cosines = {}
    for name, several in setting.attacks().items():
        tried = [
            attacked(attack, network, seen, private, key, size=setting.batch) for attack in several
        ]
        _, scores = min(tried, key=lambda pair: pair[0].observed.get("mismatch", 0.0))
        cosines[name] = scores.cosines[0]
    return cosines


def _claim(name: str, metrics: dict[str, float]) -> Stated:
    statement, after, before = _CLAIMS[name]
    one, other = metrics[f"{after}.mean_cosine"], metrics[f"{before}.mean_cosine"]
    gain = f"difference {ranged(f'{name}.gain', metrics)}"
    return (
        statement,
        "the estimate can be used as initialisation",
        f"mean cosine {one:.3f} against {other:.3f} ({gain})",
        metrics[f"{name}.gain_low"] > 0,
    )


_TITLE = "Gradient matching from noise and from the tensor estimate"
STUDY = Study("gradient-start", _TITLE, "Wang23", _SCALES, _run, threads={"smoke": 1, "cpu": 1})
