"""Measured success beside what the stated privacy allows, in the audit of a privately trained model.

The targets come in lists of ten. The adversary is told which list its record is on, and has to say which of
the ten it is: by guessing, one time in ten. The same releases answer this question to the prior-aware attack,
from their final weights and from every step, and to the attacks that reconstruct, whose answer is snapped
to the list. For the latter, being within a mean squared error of eta counts as well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from exhume.attacks.informed.prior_aware import PriorAware
from exhume.auditing.measured import Measured
from exhume.auditing.training.certificates import Allowed, allowed_by, named_by_steps
from exhume.auditing.training.game import Game
from exhume.bounds.dp_sgd import dp_sgd
from exhume.bounds.prior import ALARM_LEVEL, certify, kappa_of_naming
from exhume.core.contract import (
    Cost,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Records,
    Status,
    Store,
    Weights,
    silent,
)
from exhume.core.results import AttackSpec, Findings, Section
from exhume.score.measures import mse
from exhume.score.targets import nearest_is_right
from exhume.score.verdict import broken, not_audited
from exhume.train.dp import ClaimedPrivacy, epsilon
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

__all__ = ["LISTED", "PRIOR_AWARE", "audit_limits"]

LISTED = 10  # candidates on a list
_STEPS, _END = "Prior-aware attack, every step seen", "Prior-aware attack, final weights"
_NAMING = "the record named among {}"


_DELTA = 1e-5
PRIOR_AWARE = AttackSpec(
    "prior-aware",
    "Naming the record among ten",
    "Hayes et al. 2023",
    "the weights, after every step and at the end",
)


def audit_limits(
    game: Game,
    targets: Records,
    found: Sequence[Findings],
    *,
    chunk: int,
    store: Store,
    draws: bool = True,
    stated: ClaimedPrivacy | None = None,
    progress: Progress = silent,
) -> Findings:
    """The section of the report. Naming one of ten is no reconstruction: only an alarm counts.

    found: the attacks on all targets that were run before. draws: where steps draw their records, whether an
    adversary who sees every step sees which of the known ones it has drawn. stated: of training that is the
    owner's own.
    """
    recipe = game.recipe
    answers = {f.section.spec.name: f.evidence["reconstructions"] for f in found if f.evidence}
    if stated is not None and not isinstance(recipe, FullBatch):
        return _by_answers(game, stated, targets, answers)
    if not isinstance(recipe, FullBatch) or not recipe.privacy.noise:
        why = NotApplicable(
            f"recipe: full-batch private training is needed, not {recipe}", ever=True
        )
        return _refused(game, why)
    started = time.perf_counter()
    limits = _measured(
        recipe,
        game.victim[0],
        targets,
        game.knowledge,
        answers,
        key=game.key,
        chunk=chunk,
        store=store,
        draws=draws,
        progress=progress,
    )
    seconds = time.perf_counter() - started
    knows = ["recipe", "initial", "fixed", "candidates"]
    cost = Cost(seconds, models=2 * len(targets) + PriorAware.draws)
    return _findings(game, limits, knows, cost)


def _by_answers(
    game: Game, stated: ClaimedPrivacy, targets: Records, answers: dict[str, Tensor]
) -> Findings:
    """Training that cannot be done without its noise: what the other attacks found, beside the bound."""
    if not answers:
        why = NotApplicable("no attack before it has reconstructed anything to compare", ever=True)
        return _refused(game, why)
    privacy, steps = stated.privacy, stated.steps
    spent = epsilon(privacy.noise, steps, delta=_DELTA, sampling=privacy.sampling)
    facts = {**game.facts, "privacy": str(stated), "epsilon": spent, "delta": _DELTA}
    limits = _of_answers(stated, targets, answers)
    known = list(game.knowledge.known())
    return _findings(replace(game, facts=facts), limits, known, Cost(), sees="the released weights")


def _refused(game: Game, why: NotApplicable) -> Findings:
    section = Section.inapplicable(PRIOR_AWARE, why, game.knowledge.known())
    return Findings(section, not_audited(why.why), facts=game.facts)


def _findings(
    game: Game, measured: Measured, knows: list[str], cost: Cost, sees: str = PRIOR_AWARE.sees
) -> Findings:
    best = next(iter(measured.made.values()))  # the strongest that could be tried comes first
    alarm = measured.alarm
    section = Section(
        replace(PRIOR_AWARE, sees=sees),
        Status(Outcome.CONVERGED),
        tuple(knows),
        {
            "named": best.rate,
            "named_low": best.low,
            "named_high": best.high,
            "guessing": best.kappa,
            "allowed": best.bound,
        },
        counts=bool(alarm),
        cost=cost,
        limits=measured.section(),
    )
    verdict = broken(alarm) if alarm else not_audited("naming reconstructs nothing")
    return Findings(section, verdict, facts=game.facts)


def _measured(
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


def _of_answers(
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
