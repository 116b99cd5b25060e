"""Where to ask for a gradient: at random, moderately trained or well trained weights.

Folklore says that a random network has not seen the data and a well trained one has no gradient left. The
seed of Wang23 calls both wrong impressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from exhume import data
from exhume.attacks.gradient.span.attack import SpanAttack
from exhume.contract import Key, Knowledge, Progress, Records
from exhume.models.two_layer import TwoLayer
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.batches import score_batches
from exhume.score.intervals import clopper_pearson
from exhume.store import NullStore
from exhume.studies.gradient.start import unit_batches
from exhume.studies.study import Claim, Outcome, Scale, Study, remembered
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "8x8 digits of unit norm, even against odd; full-batch gradient descent from the queried start.",
    "The attacked batches are part of the training set: the case in which the gradient is smallest.",
)
_MOST = 0.5  # of the records, at least and for certain, for a network to give them away


@dataclass(frozen=True)
class _Setting:
    width: int
    batch: int
    batches: int
    steps: tuple[int, ...]  # of training before the query; the first is random
    rate: float
    activations: tuple[str, ...] = ("tanh", "relu")


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(800, 3, 2, (0, 5), 0.01, ("tanh",)),
    "cpu": _Setting(2000, 6, 10, (0, 50, 1000), 0.005),
    "paper": _Setting(5000, 8, 50, (0, 50, 500, 5000), 0.002),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed)
    records = data.load("digits")
    metrics: dict[str, float] = {}
    for name in setting.activations:
        network = TwoLayer(records.shape, setting.width, 1, name)
        batches = unit_batches(records, setting.batches, setting.batch, key.fold("records"))
        here, done = SpanAttack().query(network, key), 0
        for steps in setting.steps:
            progress(f"{name} after {steps} steps", 0, 1)
            here = _trained(network, here, batches, steps - done, setting.rate)
            done = steps
            metrics |= remembered(
                folder,
                key.fold("gradient-query 3", repr(setting), name, steps),
                partial(_measured, f"{name}.steps{steps}", network, here, batches, key),
            )
            progress(f"{name} after {steps} steps", 1, 1)
    charts = [_chart(setting, metrics)]
    claims = _claims(setting, metrics)
    return Outcome(claims, metrics, deviations=list(DEVIATIONS), charts=charts)


def _trained(network: TwoLayer, start: Tensor, batches: Records, steps: int, rate: float) -> Tensor:
    if not steps:
        return start
    whole = Records(
        batches.inputs.flatten(0, 1)[None], batches.labels.flatten()[None], batches.classes
    )
    update, _ = release_batches(network, start, whole, steps=steps, rate=rate)
    # for one step the update is the gradient, for several their mean: the same formula
    return start - rate * steps * update.values[0]


def _measured(
    name: str, network: TwoLayer, at: Tensor, batches: Records, key: Key
) -> dict[str, float]:
    release, secret = release_batches(network, at, batches)
    attack = SpanAttack().prepare(
        Knowledge(architecture=network), key=key.fold("attack"), store=NullStore()
    )
    found = attack.run(release)
    scores = score_batches(secret, found).metrics()
    module = network.build()
    named = network.layout.split(at)
    logits = torch.func.functional_call(module, named, (batches.inputs.flatten(0, 1),))[:, 0]
    right = ((logits > 0) == (batches.labels.flatten() == 1)).double().mean()
    return {
        f"{name}.min_cosine": scores["min_cosine"],
        f"{name}.mean_cosine": scores["mean_cosine"],
        f"{name}.recovered": scores["recovered"],
        f"{name}.train_accuracy": float(right),
        f"{name}.gradient_norm": float(release.values.norm(dim=1).mean()),
    }


def _claims(setting: _Setting, metrics: dict[str, float]) -> list[Claim]:
    found = []
    for name in setting.activations:
        shares = [metrics[f"{name}.steps{s}.recovered"] for s in setting.steps]
        told = ", ".join(
            f"{share:.0%} ({low:.0%} to {high:.0%}) after {s} steps"
            for share, (low, high), s in zip(
                shares, (_interval(share, setting) for share in shares), setting.steps, strict=True
            )
        )
        found += [
            Claim(
                f"random.{name}",
                f"{name}: a random network gives the records away",
                "'a random network has not memorised the data' is a wrong impression",
                told,
                _interval(shares[0], setting)[0] >= _MOST,
            ),
            Claim(
                f"trained.{name}",
                f"{name}: so does a trained one",
                "'a well trained model makes the gradient vanish' is a wrong impression",
                told,
                _interval(shares[-1], setting)[0] >= _MOST,
            ),
        ]
    return found


def _interval(share: float, setting: _Setting) -> tuple[float, float]:
    records = setting.batch * setting.batches
    return clopper_pearson(round(share * records), records)


def _chart(setting: _Setting, metrics: dict[str, float]) -> Chart:
    series = {
        name: [
            Point(f"{s} steps", share, *_interval(share, setting))
            for s in setting.steps
            for share in [metrics[f"{name}.steps{s}.recovered"]]
        ]
        for name in setting.activations
    }
    return Chart("Where the gradient is asked for", "training before it", "recovered", series)


STUDY = Study(
    name="gradient-query",
    title="Where to ask for a gradient: random, moderately and well trained weights",
    paper="Wang23",
    run=_run,
)
