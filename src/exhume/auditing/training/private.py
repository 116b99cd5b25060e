"""The section of an audit that says what the stated privacy allows, beside what the attacks reached."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace

from torch import Tensor

from exhume.attacks.informed.prior_aware import PriorAware
from exhume.auditing.training.game import Game
from exhume.auditing.training.limits import Measured, limits_of_answers, measure_limits
from exhume.contract import (
    Cost,
    NotApplicable,
    Outcome,
    Progress,
    Records,
    Status,
    Store,
    silent,
)
from exhume.results import AttackSpec, Findings, LimitRow, Limits, Section
from exhume.score.verdict import broken, not_audited
from exhume.train.claimed_privacy import ClaimedPrivacy
from exhume.train.dp import epsilon
from exhume.train.recipe import FullBatch

__all__ = ["PRIOR_AWARE", "audit_limits"]

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
    limits = measure_limits(
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
    limits = limits_of_answers(stated, targets, answers)
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
        limits=limits_section(measured),
    )
    verdict = broken(alarm) if alarm else not_audited("naming reconstructs nothing")
    return Findings(section, verdict, facts=game.facts)


def limits_section(measured: Measured) -> Limits:
    """For the result: numbers and words, no records."""
    rows = []
    for (attack, game), one in measured.made.items():
        numbers = {name: value for name, value in asdict(one).items() if name != "surely"}
        rows.append(LimitRow(attack=attack, game=game, **numbers, rate=one.rate, alarm=one.alarm))
    return Limits(measured.alarm, tuple(measured.notes), tuple(rows))
