"""Deeper networks: the features that enter the last two layers, and the records behind them.

The seed: if the last two layers are fully connected, the features before them can be recovered, and depth
neither helps nor hurts. With the layers below known, the features are decoded further down to the records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from exhume.attacks.gradient.reading import decode, features_below
from exhume.attacks.gradient.span import SpanAttack
from exhume.core.contract import Knowledge
from exhume.models.mlp import MLP
from exhume.score.batches import RECOVERED, score_batches
from exhume.studies.arms import mounted
from exhume.studies.claims import flattened, line, prefixed
from exhume.studies.framework import Chart, Outcome, Point, Run, Scale, Stated, Study
from exhume.studies.gradient.batches import even_odd_batches
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "8x8 digits; tanh layers of 96 below the last two, at their own random start.",
    "The decoder knows the parameters below: the server sent them.",
)


_CLAIMS = {  # what comes back: what is claimed, the paper's words, where the layers lie
    "features": (
        "The features that enter the last two layers come back, at every depth",
        "features of the layer before are recovered; depth neither helps nor hurts",
        "above",
    ),
    "records": ("With the layers below known, so do the records", "not in the excerpt", "below"),
}


@dataclass(frozen=True)
class _Setting:
    width: int
    batch: int
    batches: int
    depths: tuple[int, ...]  # layers below the last two
    below: int = 96
    source: str = "digits"


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(1200, 3, 1, (1,)),
    "cpu": _Setting(4000, 6, 5, (1, 2, 3)),
    "paper": _Setting(5000, 8, 50, (1, 2, 3, 5)),
}


def _run(run: Run[_Setting]) -> Outcome:
    metrics = flattened(
        run.arms("layers below", _one, {f"depth{d}": d for d in run.setting.depths})
    )
    depths = {d: f"depth{d}" for d in run.setting.depths}
    series = {what: line(depths, f"{what}.min_cosine", metrics) for what in _CLAIMS}
    chart = Chart("Depth", "layers below the last two", "smallest cosine", series)
    claims = {what: _claim(what, points) for what, points in series.items()}
    return Outcome(claims, metrics, deviations=list(DEVIATIONS), charts=[chart])


def _one(run: Run[_Setting], depth: int) -> dict[str, float]:
    setting, key = run.setting, run.key
    records = run.records(setting.source)
    batches = even_odd_batches(records, setting.batches, setting.batch, key.fold("records"))
    network = MLP(batches.shape, (*[setting.below] * depth, setting.width), 1, "tanh")
    attack = SpanAttack(nonnegative=False)
    at = attack.query(network, key.fold("depth", depth))
    release, secret = release_batches(network, at, batches)
    found = mounted(attack, Knowledge(architecture=network), release, key)
    scores = score_batches(secret, found, through=partial(features_below, network, at))
    decoded = decode(network, at, found.candidates.flatten(0, 1), key.fold("decode"))
    shaped = decoded.reshape(*found.candidates.shape[:2], *batches.shape)
    behind = score_batches(secret, replace(found, candidates=shaped.to(batches.inputs.dtype)))
    return prefixed("features", scores.metrics()) | prefixed("records", behind.metrics())


def _claim(what: str, points: list[Point]) -> Stated:
    """By the smallest cosine at each depth."""
    statement, paper, side = _CLAIMS[what]
    least = ", ".join(f"smallest cosine {p.y:.5f} {side} {p.x} layers" for p in points)
    return statement, paper, least, min(p.y for p in points) >= RECOVERED


_TITLE = "Features of a deeper network from its gradient, and the records behind them"
STUDY = Study("gradient-deep", _TITLE, "Wang23", _SCALES, _run)
