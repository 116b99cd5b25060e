"""Buzaglo23's victim: a homogeneous network trained on a few images of each class until its loss is tiny."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.contract import ExhumeError, Key, Progress, Records, Secret, Store, Weights, silent
from exhume.defences.margin import ProtectedDescent
from exhume.train.margin import MarginDescent, train_to_margin
from exhume.train.stationarity import stationarity

__all__ = ["MarginVictim", "choose", "release_margin"]


_CPU = torch.device("cpu")


def choose(
    records: Records, classes: int, each: int, decoys: int, key: Key
) -> tuple[Records, Records]:
    """`each` images of the first `classes` classes to train on, and about `decoys` others of them."""
    order = torch.randperm(len(records), generator=key.generator())
    labels = records.labels[order]
    per_class = -(-decoys // classes)
    chosen, left = [], []
    for label in range(classes):
        members = order[labels == label]
        if len(members) < each + per_class:
            raise ExhumeError(
                f"class {records.classes[label]!r}: {len(members)} records, "
                f"{each} + {per_class} decoys needed"
            )
        chosen.append(members[:each])
        left.append(members[each : each + per_class])
    names = records.classes[:classes]
    train, others = records[torch.cat(chosen)], records[torch.cat(left)]
    return (
        Records(train.inputs, train.labels, names),
        Records(others.inputs, others.labels, names),
    )


@dataclass(frozen=True, eq=False)
class MarginVictim:
    """A release, the truth, and how near to a KKT point the training came."""

    release: Weights
    secret: Secret
    centre: Tensor  # (*shape) the training mean, part of the released preprocessing
    report: dict[str, float]
    margins: Tensor  # (n,) of the training images; only for scoring


def release_margin(
    recipe: MarginDescent | ProtectedDescent,
    records: Records,
    *,
    key: Key,
    store: Store,
    progress: Progress = silent,
    device: torch.device = _CPU,
) -> MarginVictim:
    """Subtract the training mean, train one network, and release its weights. device: where both live."""
    centre = records.inputs.mean(0)
    centred = Records(records.inputs - centre, records.labels, records.classes).to(device)
    if isinstance(recipe, ProtectedDescent):
        mlp = recipe.network
        start, own = mlp.initial(key.fold("victim")).to(device), key.fold("defence")
        trained = recipe.train(start, centred, key=own, store=store, progress=progress)
    else:
        mlp = recipe.architecture
        start = mlp.initial(key.fold("victim")).to(device)
        own = key.fold("order")
        trained = train_to_margin(recipe, start, centred, key=own, store=store, progress=progress)
    network = mlp.matrices(trained.parameters)
    flat = centred.inputs.flatten(1)
    soft = stationarity(network, flat, centred.labels, recipe.head)
    hard = stationarity(network, flat, centred.labels, recipe.head, "max")
    smallest = soft.margins.min()
    report = {
        "epochs": float(trained.epochs),
        "loss": trained.loss,
        "turning": float(trained.turning[-1]) if len(trained.turning) else 1.0,
        "residual_at_truth": soft.first_layer,
        "residual_at_truth_all_layers": soft.all_layers,
        "residual_at_truth_eq6": hard.first_layer,
        "residual_at_truth_eq6_all_layers": hard.all_layers,
        "train_errors": float((soft.margins <= 0).sum()),
        "on_margin": float((soft.margins <= 1.1 * smallest).sum()) if smallest > 0 else 0.0,
    }
    release = Weights(trained.parameters[None], mlp.layout)
    return MarginVictim(release, Secret(records), centre, report, soft.margins.cpu())
