"""Buzaglo23's victim: a network trained on a few images of each class until its loss is tiny."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Progress, Records, Secret, Store, Weights, silent
from exhume.models.heads import Head, pulls
from exhume.models.matrices import DenseNetwork
from exhume.store.shards import address, cached, digest
from exhume.train.margin import MarginDescent, TrainedToMargin, stationarity, train_to_margin
from exhume.train.recipe import FullBatch

_CPU = torch.device("cpu")


def choose(
    records: Records, classes: int, each: int | Sequence[int], decoys: int, key: Key
) -> tuple[Records, Records]:
    """`each` images of the first `classes` classes to train on, and about `decoys` others of them.

    each: one number, or one for each class.
    """
    counts = [each] * classes if isinstance(each, int) else list(each)
    if len(counts) != classes:
        raise ExhumeError(f"each: {len(counts)} numbers given for {classes} classes")
    order = torch.randperm(len(records), generator=key.generator())
    labels = records.labels[order]
    per_class = -(-decoys // classes)
    chosen, left = [], []
    for label in range(classes):
        members = order[labels == label]
        own = counts[label]
        if len(members) < own + per_class:
            raise ExhumeError(
                f"class {records.classes[label]!r}: {len(members)} records, "
                f"{own} + {per_class} decoys needed"
            )
        chosen.append(members[:own])
        left.append(members[own : own + per_class])
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
    recipe: MarginDescent | FullBatch,
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
    mlp, trained = _trained(recipe, centred, key=key, store=store, progress=progress)
    head: Head = "multiclass" if isinstance(recipe, FullBatch) else recipe.head
    network = mlp.matrices(trained.parameters)
    flat = centred.inputs.flatten(1)
    soft = stationarity(network, flat, centred.labels, head)
    hard = stationarity(network, flat, centred.labels, head, "max")
    report = {
        "epochs": float(trained.epochs),
        "loss": trained.loss,
        "turning": float(trained.turning[-1]) if len(trained.turning) else 1.0,
        "residual_at_truth": soft.first_layer,
        "residual_at_truth_all_layers": soft.all_layers,
        "residual_at_truth_eq6": hard.first_layer,
        "residual_at_truth_eq6_all_layers": hard.all_layers,
        "train_errors": float((soft.margins <= 0).sum()),
        "on_margin": float(on_margin(soft.margins).sum()),
    }
    release = Weights(trained.parameters[None], mlp.layout)
    return MarginVictim(release, Secret(records), centre, report, soft.margins.cpu())


def on_margin(margins: Tensor) -> Tensor:
    """(n,) which images are on the margin: classified right, at most a tenth further off than the nearest.

    An image that is classified wrong is not on the margin, and does not move it for the others.
    """
    right = margins > 0
    nearest = margins[right].min() if bool(right.any()) else margins.new_tensor(0.0)
    return right & (margins <= 1.1 * nearest)


def _trained(
    recipe: MarginDescent | FullBatch,
    centred: Records,
    *,
    key: Key,
    store: Store,
    progress: Progress,
) -> tuple[DenseNetwork, TrainedToMargin]:
    device = centred.inputs.device
    start = recipe.architecture.initial(key.fold("victim")).to(device)
    if isinstance(recipe, MarginDescent):
        own = key.fold("order")
        trained = train_to_margin(recipe, start, centred, key=own, store=store, progress=progress)
        return recipe.architecture, trained
    mlp = recipe.architecture
    if not isinstance(mlp, DenseNetwork):
        raise ExhumeError(f"architecture: {mlp} is not fully connected")
    flat = trained_in_full(recipe, centred, key=key, store=store, progress=progress).parameters[0]
    losses, _ = pulls(
        "multiclass", mlp.matrices(flat).forward(centred.inputs.flatten(1))[1], centred.labels
    )
    return mlp, TrainedToMargin(flat, recipe.descent.steps, float(losses.mean()), torch.zeros(0))


def trained_in_full(
    recipe: FullBatch, centred: Records, *, key: Key, store: Store, progress: Progress = silent
) -> Weights:
    """One network of any kind, trained on the records as they are, and kept."""
    network = recipe.architecture
    start = network.initial(key.fold("victim")).to(centred.inputs.device)
    name = address("release_margin", recipe, (digest(start), digest(centred)), key, 0)

    def trained() -> dict[str, Tensor]:
        progress("training the network", 0, 1)
        return {"parameters": recipe.fit(start, centred, centred.none_for(1), key)}

    return Weights(cached(store, name, trained)["parameters"], network.layout)
