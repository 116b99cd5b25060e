"""Balle22's victim: models trained on the fixed set and one private record each."""

from __future__ import annotations

import warnings

import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from exhume.core.contract import (
    ExhumeError,
    Key,
    Progress,
    Recipe,
    Records,
    Secret,
    Store,
    Weights,
    silent,
)
from exhume.readers.fitted import release_of_sklearn
from exhume.train.fleet import train_fleet
from exhume.train.glm import Optimum
from exhume.train.recipe import FullBatch

Victim = tuple[Weights, Secret]


def first_of(victim: Victim, targets: int) -> Victim:
    """The first releases and the records behind them."""
    release, secret = victim
    trail = None if release.trail is None else release.trail[:targets]
    drawn = None if release.drawn is None else release.drawn[:targets]
    part = Weights(release.parameters[:targets], release.layout, trail, drawn)
    return part, Secret(secret.open()[:targets])


def release_one_each(
    recipe: Recipe,
    initial: Tensor,
    fixed: Records,
    targets: Records,
    *,
    key: Key,
    store: Store,
    chunk: int,
    copies: int = 1,
    progress: Progress = silent,
) -> Victim:
    """One released model per target, each trained on `fixed` and that target alone, so many times.

    Auditing r targets needs r releases: an adversary who lacks one record faces one of them.
    """
    trained = train_fleet(
        recipe,
        initial,
        fixed,
        targets.one_each(copies),
        key=key.fold("victim"),
        store=store,
        chunk=chunk,
        stage="training the released models",
        progress=progress,
    )
    return Weights(torch.cat(list(trained)), recipe.architecture.layout), Secret(targets)


def release_trails(
    recipe: FullBatch,
    initial: Tensor,
    fixed: Records,
    targets: Records,
    *,
    key: Key,
    first: int = 0,
    draws: bool = True,
) -> Victim:
    """The models of `release_one_each` with these targets from place `first` on, every step seen.

    draws: where steps draw their records, also which of the fixed ones each has drawn; whether the target was
    drawn is never shown, since that is what sampling hides.
    Memory: 4·T·p bytes for each target.
    """
    seen: list[Tensor] = []
    trained = recipe.fit(
        initial,
        fixed,
        targets.one_each(),
        key.fold("victim"),
        first,
        watch=lambda parameters: seen.append(parameters.clone()),
    )
    trail = torch.stack(seen, dim=1) if seen else trained.new_zeros(len(trained), 0, 1)
    drawn = recipe.drawn(len(fixed), len(targets), key.fold("victim"), first) if draws else None
    return Weights(trained, recipe.architecture.layout, trail, drawn), Secret(targets)


def release_one_sklearn_each(
    model: LogisticRegression, fixed: Records, targets: Records, *, progress: Progress = silent
) -> tuple[Weights, Optimum, Secret]:
    """One released copy of `model` per target, each fitted on `fixed` and that target alone.

    A copy that ran into its `max_iter` is released as it is; how far that is from the optimum shows in
    the attack's certificate. Every class must be among the fixed records, so that all copies agree.
    """
    inputs, labels = fixed.inputs.flatten(1).double(), fixed.labels
    absent = set(range(len(fixed.classes))) - set(labels.tolist())
    if absent:
        names = ", ".join(fixed.classes[index] for index in sorted(absent))
        raise ExhumeError(f"fixed: no record of {names}; scikit-learn would leave the class out")
    rows, recipe = [], None
    stage = "fitting scikit-learn's models"
    progress(stage, 0, len(targets))
    for index in range(len(targets)):
        target = targets[index : index + 1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = clone(model).fit(
                torch.cat([inputs, target.inputs.flatten(1).double()]).numpy(),
                torch.cat([labels, target.labels]).numpy(),
            )
        release, recipe = release_of_sklearn(fitted, fixed.shape)
        rows.append(release.parameters)
        progress(stage, index + 1, len(targets))
    if recipe is None:
        raise ExhumeError("targets: 0 given, at least 1 needed")
    return Weights(torch.cat(rows), recipe.architecture.layout), recipe, Secret(targets)
