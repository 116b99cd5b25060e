"""Measured success beside what the stated privacy allows, in the audit of a privately trained model.

The targets come in lists of ten. The adversary is told which list its record is on, and has to say which of
the ten it is: by guessing, one time in ten. The same releases answer this question to the prior-aware attack,
from their final weights and from every step, and to the attacks that reconstruct, whose answer is snapped
to the list. For the latter, being within a mean squared error of eta counts as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from exhume.attacks.informed.prior_aware import PriorAware
from exhume.auditing.training.certificates import Allowed, allowed_by, named_by_steps
from exhume.bounds.alarm import ALARM_LEVEL, Certificate, certify
from exhume.bounds.dp_sgd import dp_sgd
from exhume.bounds.prior import kappa_of_naming
from exhume.contract import (
    Key,
    Knowledge,
    Progress,
    Records,
    Store,
    Weights,
    silent,
)
from exhume.score.naming import nearest_is_right
from exhume.score.pixels import mse
from exhume.train.claimed_privacy import ClaimedPrivacy
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

__all__ = ["LISTED", "Measured", "measure_limits"]

LISTED = 10  # candidates on a list
_STEPS, _END = "Prior-aware attack, every step seen", "Prior-aware attack, final weights"
_NAMING = "the record named among {}"


@dataclass(frozen=True, eq=False)
class Measured:
    """Every comparison, by attack and game, and what has to be said about them."""

    made: Mapping[tuple[str, str], Certificate]
    notes: tuple[str, ...]

    @property
    def alarm(self) -> str:
        """In words; empty where there is none."""
        loud = [
            f"{attack} ({game}): {one.sentence()}"
            for (attack, game), one in self.made.items()
            if one.alarm
        ]
        return " ".join(loud)


def measure_limits(
    recipe: FullBatch,
    release: Weights,
    targets: Records,
    known: Knowledge,
    answers: Mapping[str, Tensor],
    *,
    key: Key,
    chunk: int,
    store: Store,
    draws: bool = True,
    progress: Progress = silent,
) -> Measured:
    """The audit's own releases, asked another question.

    release: one model per target, by `release_one_each` with this key; known: recipe, start, fixed set.

    answers: (t, *shape) of each attack that reconstructs, by its name. draws: see `named_by_steps`.
    """
    size, groups = _lists(targets)
    listed = _shuffled(targets, groups, key.fold("lists"))
    attack = PriorAware(chunk=chunk)
    prepared = attack.prepare(
        replace(known, shadow=None, public=None, candidates=listed),
        key=key.fold("prior-aware"),
        store=store,
        progress=progress,
    )
    naming = _NAMING.format(size)
    right: dict[tuple[str, str], Tensor] = {}
    ends, steps = [], []
    for group in groups:
        own, among = targets[group], prepared.among(group)
        found = among.run(Weights(release.parameters[group], release.layout)).candidates[:, 0]
        ends.append(nearest_is_right(found, own.inputs, own.inputs))
        if isinstance(recipe.descent, Descent):
            assert known.initial is not None  # or it could not have been prepared
            steps.append(
                named_by_steps(
                    among, recipe, known.initial, own, key=key, first=group.start, draws=draws
                )
            )
            progress("attacking every step", group.stop, len(listed))
    if steps:
        right[_STEPS, naming] = torch.cat(steps)
    right[_END, naming] = torch.cat(ends)
    right |= _snapped(targets, answers)
    stated = ClaimedPrivacy(recipe.privacy, recipe.descent.steps)
    undone = "" if steps else "only steps of gradient descent can be undone"
    return _certified(right, stated, targets, answers, undone)


def limits_of_answers(
    stated: ClaimedPrivacy, targets: Records, answers: Mapping[str, Tensor]
) -> Measured:
    """Of training that only its owner can do: the attacks that reconstruct, with their answers snapped."""
    why = "training that cannot be done without its noise cannot be reckoned with"
    return _certified(_snapped(targets, answers), stated, targets, answers, why)


def _lists(targets: Records) -> tuple[int, list[slice]]:
    size = min(LISTED, len(targets))
    return size, [slice(start, start + size) for start in range(0, len(targets) - size + 1, size)]


def _snapped(targets: Records, answers: Mapping[str, Tensor]) -> dict[tuple[str, str], Tensor]:
    """Which answers are nearest to the right record of their list."""
    size, groups = _lists(targets)
    right = {}
    for name, given in answers.items():
        found = [nearest_is_right(given[g], targets[g].inputs, targets[g].inputs) for g in groups]
        right[name, _NAMING.format(size)] = torch.cat(found)
    return right


def _shuffled(targets: Records, groups: Sequence[slice], key: Key) -> Records:
    """The lists, each in an order that says nothing: copies, list after list."""
    generator = key.generator()
    orders = [
        torch.arange(g.start, g.stop)[torch.randperm(g.stop - g.start, generator=generator)]
        for g in groups
    ]
    rows = torch.cat(orders).to(targets.labels.device)
    return Records(targets.inputs[rows], targets.labels[rows], targets.classes)


def _certified(
    right: dict[tuple[str, str], Tensor],
    stated: ClaimedPrivacy,
    targets: Records,
    answers: Mapping[str, Tensor],
    undone: str,
) -> Measured:
    privacy, steps = stated.privacy, stated.steps
    kappas = [kappa_of_naming(targets[group].inputs) for group in _lists(targets)[1]]
    eta = _reach(targets.inputs)
    within = allowed_by(privacy, steps, targets, eta)
    listed, naming = len(right[next(iter(right))]), set(right)
    for name, given in answers.items():
        right[name, f"mean squared error of at most {eta:.3g}"] = mse(given, targets.inputs) <= eta
    # lists may differ in kappa; what is allowed on average is the average of what is allowed
    bounds = [dp_sgd(kappa, privacy.noise, steps, privacy.sampling).gamma for kappa in kappas]
    named = fmean(kappas), fmean(bounds)
    made = {}
    for (attack, game), success in right.items():
        kappa, bound = named if (attack, game) in naming else within.bound("within")
        made[attack, game] = certify(
            int(success.sum()), len(success), kappa=kappa, bound=bound, comparisons=len(right)
        )
    return Measured(made, _notes(stated, within, len(targets) - listed, undone))


def _reach(records: Tensor) -> float:
    """A quarter of the usual squared distance to the nearest other record: balls of two hardly meet."""
    flat = records.flatten(1).double()
    apart = torch.cdist(flat, flat).square().fill_diagonal_(torch.inf) / flat.shape[1]
    return float(apart.min(1).values.median()) / 4


def _notes(stated: ClaimedPrivacy, within: Allowed, left_out: int, undone: str) -> tuple[str, ...]:
    kappa = within.within
    privacy = stated.privacy
    formula = "Phi(Phi^-1(kappa) + sqrt(T)/sigma)"
    drawn = ""
    if privacy.samples:
        formula = "that of the sampled Gaussian mechanism (its loss distribution)"
        drawn = f", sampling rate {privacy.sampling:g}"
    notes = [
        f"The bound is {formula} for T = {stated.steps} steps, noise "
        f"multiplier {privacy.noise:g}{drawn} and clip {privacy.clip:g}; kappa is what guessing "
        "reaches. No attack exceeds it if training is as stated, not even one that sees every step.",
        f"For a mean squared error of {within.eta:.3g}, the best single guess is right for {kappa.low:.2%} "
        f"to {kappa.high:.2%} of the targets; the bound takes the larger.",
        f"An alarm means that the exact lower limit of the success, at {ALARM_LEVEL:g} over the number of "
        "rows, is above the bound.",
    ]
    if within.bound("naming")[1] > 0.99:
        notes.append("At this noise the stated privacy forbids practically nothing.")
    if undone:
        notes.append(f"Every step: not tried, since {undone}.")
    if left_out:
        notes.append(
            f"{left_out} targets that fill no list of {LISTED} were left out of the naming."
        )
    return tuple(notes)
