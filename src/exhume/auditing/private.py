"""The section of an audit that says what the stated privacy allows, beside what the attacks reached."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from exhume.attacks.informed.prior_aware import PriorAware
from exhume.auditing.findings import Findings, Named, inapplicable
from exhume.auditing.informed import Game
from exhume.auditing.limits import Limits, measure_limits
from exhume.contract import Cost, NotApplicable, Outcome, Progress, Records, Store, silent
from exhume.score.verdict import broken, not_audited
from exhume.train.recipe import FullBatch

__all__ = ["PRIOR_AWARE", "audit_limits"]

PRIOR_AWARE = Named(
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
    progress: Progress = silent,
) -> Findings:
    """The section of the report. Naming one of ten is no reconstruction: only an alarm counts.

    found: the attacks on all targets that were run before. draws: where steps draw their records, whether an
    adversary who sees every step sees which of the known ones it has drawn.
    """
    recipe = game.recipe
    if not isinstance(recipe, FullBatch) or not recipe.privacy.noise:
        why = NotApplicable(
            f"recipe: full-batch private training is needed, not {recipe}", ever=True
        )
        return inapplicable(PRIOR_AWARE, game.knowledge.known(), game.facts, why)
    started = time.perf_counter()
    limits = measure_limits(
        recipe,
        game.victim[0],
        targets,
        game.knowledge,
        {f.section["name"]: f.evidence["reconstructions"] for f in found if f.evidence},
        key=game.key,
        chunk=chunk,
        store=store,
        draws=draws,
        progress=progress,
    )
    best = next(iter(limits.made.values()))  # every step, or the end where steps cannot be undone
    section = {
        "id": PRIOR_AWARE.id,
        "name": PRIOR_AWARE.name,
        "paper": PRIOR_AWARE.paper,
        "sees": PRIOR_AWARE.sees,
        "knows": ["recipe", "initial", "fixed", "candidates"],
        "status": {"outcome": Outcome.CONVERGED.value, "reason": "", "ever": True},
        "metrics": {
            "named": best.rate,
            "named_low": best.low,
            "named_high": best.high,
            "guessing": best.kappa,
            "allowed": best.bound,
        },
        "baselines": [],
        "cost": asdict(
            Cost(time.perf_counter() - started, models=2 * len(targets) + PriorAware.draws)
        ),
        "notes": [],
        "limits": limits_section(limits),
    }
    verdict = broken(limits.alarm) if limits.alarm else not_audited("naming reconstructs nothing")
    return Findings(section, {}, game.facts, verdict, counts=bool(limits.alarm))


def limits_section(limits: Limits) -> dict[str, Any]:
    """The part of result.json: numbers and words, no records."""
    return {
        "alarm": limits.alarm,
        "notes": list(limits.notes),
        "rows": [
            {"attack": attack, "game": game, **asdict(one), "rate": one.rate, "alarm": one.alarm}
            for (attack, game), one in limits.made.items()
        ],
    }
