"""Deeper networks: the features that enter the last two layers, and the records behind them.

The seed: if the last two layers are fully connected, the features before them can be recovered, and depth
neither helps nor hurts. With the layers below known, the features are decoded further down to the records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from exhume.attacks.gradient.decoder import decode, features_below
from exhume.attacks.gradient.span.attack import SpanAttack
from exhume.contract import Knowledge
from exhume.models.mlp import MLP
from exhume.report.charts import Chart, Point
from exhume.score.batches import RECOVERED, score_batches
from exhume.studies.arms import mounted
from exhume.studies.claims import Claim, flattened, prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.gradient.batches import even_odd_batches
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "8x8 digits; tanh layers of 96 below the last two, at their own random start.",
    "The decoder knows the parameters below: the server sent them.",
)


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
    least = {
        what: {d: metrics[f"depth{d}.{what}.min_cosine"] for d in run.setting.depths}
        for what in ("features", "records")
    }
    series = {what: [Point(d, c) for d, c in found.items()] for what, found in least.items()}
    chart = Chart("Depth", "layers below the last two", "smallest cosine", series)
    claims = _claims(least["features"], least["records"])
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


def _claims(features: dict[int, float], records: dict[int, float]) -> list[Claim]:
    """By the smallest cosine at each depth."""
    return [
        Claim(
            "features",
            "The features that enter the last two layers come back, at every depth",
            "features of the layer before are recovered; depth neither helps nor hurts",
            ", ".join(f"smallest cosine {c:.5f} above {d} layers" for d, c in features.items()),
            min(features.values()) >= RECOVERED,
        ),
        Claim(
            "records",
            "With the layers below known, so do the records",
            "not in the excerpt",
            ", ".join(f"smallest cosine {c:.5f} below {d} layers" for d, c in records.items()),
            min(records.values()) >= RECOVERED,
        ),
    ]


STUDY = Study(
    name="gradient-deep",
    title="Features of a deeper network from its gradient, and the records behind them",
    paper="Wang23",
    scales=_SCALES,
    run=_run,
)
