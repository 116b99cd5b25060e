"""Deeper networks: the features that enter the last two layers, and the records behind them.

The seed: if the last two layers are fully connected, the features before them can be recovered, and depth
neither helps nor hurts. With the layers below known, the features are decoded further down to the records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from exhume import data
from exhume.attacks.gradient.decoder import decode, features_below
from exhume.attacks.gradient.span.attack import SpanAttack
from exhume.contract import Key, Knowledge, Progress, Records
from exhume.models.mlp import MLP
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.batches import score_batches
from exhume.store import NullStore
from exhume.studies.gradient.start import unit_batches
from exhume.studies.study import Claim, Outcome, Scale, Study, remembered
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


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(1200, 3, 1, (1,)),
    "cpu": _Setting(4000, 6, 5, (1, 2, 3)),
    "paper": _Setting(5000, 8, 50, (1, 2, 3, 5)),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed)
    records = data.load("digits")
    batches = unit_batches(records, setting.batches, setting.batch, key.fold("records"))
    metrics: dict[str, float] = {}
    for depth in setting.depths:
        progress(f"{depth} layers below", 0, 1)
        place = key.fold("gradient-deep 2", repr(setting), depth)
        metrics |= remembered(folder, place, partial(_one, setting, depth, batches, key))
        progress(f"{depth} layers below", 1, 1)
    charts = [_chart(setting, metrics)]
    claims = _claims(setting, metrics)
    return Outcome(claims, metrics, deviations=list(DEVIATIONS), charts=charts)


def _one(setting: _Setting, depth: int, batches: Records, key: Key) -> dict[str, float]:
    hidden = (*[setting.below] * depth, setting.width)
    network = MLP(batches.shape, hidden, 1, "tanh")
    attack = SpanAttack(nonnegative=False)
    at = attack.query(network, key.fold("depth", depth))
    release, secret = release_batches(network, at, batches)
    prepared = attack.prepare(Knowledge(architecture=network), key=key, store=NullStore())
    found = prepared.run(release)
    scores = score_batches(secret, found, through=partial(features_below, network, at))
    decoded = decode(network, at, found.candidates.flatten(0, 1), key.fold("decode"))
    shaped = decoded.reshape(*found.candidates.shape[:2], *batches.shape)
    behind = score_batches(secret, replace(found, candidates=shaped.to(batches.inputs.dtype)))
    metrics = {f"depth{depth}.features.{k}": v for k, v in scores.metrics().items()}
    return metrics | {f"depth{depth}.records.{k}": v for k, v in behind.metrics().items()}


def _claims(setting: _Setting, metrics: dict[str, float]) -> list[Claim]:
    told = {d: metrics[f"depth{d}.features.min_cosine"] for d in setting.depths}
    behind = {d: metrics[f"depth{d}.records.min_cosine"] for d in setting.depths}
    return [
        Claim(
            "features",
            "The features that enter the last two layers come back, at every depth",
            "features of the layer before are recovered; depth neither helps nor hurts",
            ", ".join(f"smallest cosine {c:.5f} above {d} layers" for d, c in told.items()),
            min(told.values()) >= 0.99,
        ),
        Claim(
            "records",
            "With the layers below known, so do the records",
            "not in the excerpt",
            ", ".join(f"smallest cosine {c:.5f} below {d} layers" for d, c in behind.items()),
            min(behind.values()) >= 0.99,
        ),
    ]


def _chart(setting: _Setting, metrics: dict[str, float]) -> Chart:
    series = {
        what: [Point(d, metrics[f"depth{d}.{what}.min_cosine"]) for d in setting.depths]
        for what in ("features", "records")
    }
    return Chart("Depth", "layers below the last two", "smallest cosine", series)


STUDY = Study(
    name="gradient-deep",
    title="Features of a deeper network from its gradient, and the records behind them",
    paper="Wang23",
    run=_run,
)
