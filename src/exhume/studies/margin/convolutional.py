"""A convolutional victim of `margin-ordinary`: trained until weight decay has removed its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from exhume.attacks.margin.feature_span import FeatureSpan
from exhume.core.contract import Knowledge, Records
from exhume.core.contract import Outcome as Ended
from exhume.models.cnn import CNN
from exhume.score.places import line_up, places_for
from exhume.studies.arms import mounted
from exhume.studies.framework import Run
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.victims.margin import choose, trained_in_full

__all__ = ["Convolutional", "convolutional"]


@dataclass(frozen=True)
class Convolutional:
    """Balle22's convolutions with ReLU, and a wider layer behind them."""

    network: CNN = field(
        default_factory=lambda: CNN(hidden=(256,), activation="relu", init="torch")
    )
    each: int = 5  # images of a class
    descent: Descent = field(default_factory=lambda: Descent(5000, 0.05, 0.9, 0.01))
    attack: FeatureSpan = field(default_factory=FeatureSpan)
    strangers: int = 100  # of each class


def convolutional(run: Run[Any], source: str, arm: Convolutional) -> dict[str, float]:
    """How many training images are recognised among strangers of their class, beside chance."""
    key, records = run.key.fold("margin-ordinary", "cnn"), run.records(source)
    classes = arm.network.outputs
    train, others = choose(records, classes, arm.each, arm.strangers * classes, key.fold("choose"))
    centre, here = train.inputs.mean(0), run.part("victim cnn")
    centred = Records(train.inputs - centre, train.labels, train.classes)
    recipe, own = FullBatch(arm.network, arm.descent), here.key.fold("margin-ordinary", "cnn")
    release = trained_in_full(recipe, centred, key=own, store=here.store, progress=here.progress)
    knowledge = Knowledge(architecture=arm.network, centre=centre)
    found = mounted(arm.attack, knowledge, release, key.fold("attack"), here)
    if found.status.outcome is Ended.NOT_APPLICABLE:
        return {"identified": 0.0, "records": float(len(train)), "refused": 1.0}
    one = torch.zeros(len(train), dtype=torch.long)
    places = places_for(train, one, others, key.fold("places"))
    row, _ = line_up(places, [found.found(0).clamp(0, 1)], key.fold("line-up"))
    return {
        "identified": row.share,
        "chance": row.chance,
        "p": row.p,
        "strangers": float(row.strangers),
        "records": float(len(train)),
        "records_guessed": found.observed["records"],
        "distance": found.observed["residual"],
        "refused": 0.0,
    }
