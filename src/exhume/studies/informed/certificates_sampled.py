"""The study of certificates where steps draw their records: Poisson sampling at rate q < 1.

Whether a step saw the record is hidden from everybody; that is what lowers the bound. Three adversaries name
the record among K: who sees every step and which of the known records it drew; every step without these
draws; the final weights only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from exhume.attacks.informed.prior_aware import FittedPriorAware, PriorAware
from exhume.auditing.training.certificates import allowed_by
from exhume.bounds.alarm import Certificate, certify
from exhume.contract import Key, Knowledge, Progress, Records, Store, silent
from exhume.data import Split
from exhume.report.charts import Chart, Point
from exhume.score.naming import named_rightly
from exhume.studies.study import Claim
from exhume.train.dp import epsilon
from exhume.train.functional import accuracy
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each, release_trails

__all__ = ["ATTACKS", "DRAWS", "SampledLevel", "chart", "judge_sampled", "play_sampled"]

DRAWS, STEPS, END = "draws_known", "draws_hidden", "final_weights"
ATTACKS = {
    DRAWS: "every step and the others' draws",
    STEPS: "every step, draws hidden",
    END: "final weights",
}
_DELTA = 1e-5
_NEAR = 0.75  # of the bound
_TRAILS = 16  # trainings whose steps are held at once


def play_sampled(
    stated: FullBatch,
    actual: FullBatch,
    parts: Split,
    trials: int,
    *,
    key: Key,
    store: Store,
    chunk: int,
    progress: Progress = silent,
) -> dict[str, float]:
    """Every adversary at one rate and noise: how often it named the record, and what is allowed.

    stated: what the privacy is computed from; actual: what is run, and what the adversary knows to be run.
    """
    listed = parts.target
    targets = listed[torch.arange(trials) % len(listed)]
    initial = stated.architecture.initial(key.fold("victim"))
    release, secret = release_one_each(
        actual,
        initial,
        parts.fixed,
        targets,
        key=key,
        store=store,
        chunk=chunk,
        progress=progress,
    )
    known = Knowledge(recipe=actual, initial=initial, fixed=parts.fixed, candidates=listed)
    prepared = PriorAware(chunk=chunk).prepare(
        known, key=key.fold("attack"), store=store, progress=progress
    )
    ends = named_rightly(secret, prepared.run(release), listed)
    privacy, steps = stated.privacy, stated.descent.steps
    kappa, bound = allowed_by(privacy, steps, listed, 0.0).bound("naming")
    spent = epsilon(privacy.noise, steps, delta=_DELTA, sampling=privacy.sampling)
    return {
        **_by_steps(prepared, actual, targets, key=key, progress=progress),
        END: float(ends.sum()),
        "rate": privacy.sampling,
        "noise": privacy.noise,
        "epsilon": spent,
        "trials": trials,
        "kappa": kappa,
        "bound": bound,
        "test_accuracy": float(
            accuracy(actual.architecture, release.parameters, parts.test).mean()
        ),
    }


def _by_steps(
    prepared: FittedPriorAware, recipe: FullBatch, targets: Records, *, key: Key, progress: Progress
) -> dict[str, float]:
    """The same releases, trained again with every step seen."""
    initial, right = recipe.architecture.initial(key.fold("victim")), {DRAWS: 0.0, STEPS: 0.0}
    stage = "attacking every step"
    progress(stage, 0, len(targets))
    for first in range(0, len(targets), _TRAILS):
        some = targets[first : first + _TRAILS]
        seen, secret = release_trails(recipe, initial, prepared.fixed, some, key=key, first=first)
        for name, release in ((DRAWS, seen), (STEPS, replace(seen, drawn=None))):
            found = named_rightly(secret, prepared.run(release), prepared.candidates)
            right[name] += float(found.sum())
        progress(stage, first + len(some), len(targets))
    return right


@dataclass(frozen=True)
class SampledLevel:
    """One rate and noise: every adversary's certificate."""

    rate: float
    noise: float
    epsilon: float
    accuracy: float
    made: Mapping[str, Certificate]

    @staticmethod
    def of(kept: Mapping[str, float], *, compared: int) -> SampledLevel:
        """kept: as `play_sampled` returns it."""
        made = {
            attack: certify(
                int(kept[attack]),
                int(kept["trials"]),
                kappa=kept["kappa"],
                bound=kept["bound"],
                comparisons=compared,
            )
            for attack in ATTACKS
        }
        return SampledLevel(
            kept["rate"], kept["noise"], kept["epsilon"], kept["test_accuracy"], made
        )

    @property
    def name(self) -> str:
        return f"rate {self.rate:g}, noise {self.noise:g}"

    def metrics(self) -> dict[str, float]:
        prefix = f"rate_{self.rate:g}.noise_{self.noise:g}"
        named: dict[str, float] = {
            f"{prefix}.epsilon": self.epsilon,
            f"{prefix}.test_accuracy": self.accuracy,
        }
        for attack, one in self.made.items():
            named[f"{prefix}.bound"] = one.bound
            named |= one.metrics(f"{prefix}.{attack}")
        return named


def judge_sampled(levels: Sequence[SampledLevel]) -> tuple[list[Claim], dict[str, float]]:
    alarms = [
        f"{ATTACKS[attack]} at {level.name}: {one.sentence()}"
        for level in levels
        for attack, one in level.made.items()
        if one.alarm
    ]
    made = [one for level in levels for one in level.made.values()]
    closest = min(made, key=lambda one: one.bound - one.surely)
    share = min(level.made[DRAWS].rate / level.made[DRAWS].bound for level in levels)
    widest = max(levels, key=lambda level: level.made[DRAWS].rate - level.made[STEPS].rate)
    seen, hidden = widest.made[DRAWS], widest.made[STEPS]
    claims = [
        Claim(
            "no-alarm-sampled",
            "Under Poisson sampling, no attack succeeds more often than the stated privacy allows",
            "a theorem, where accounting and training are right",
            "; ".join(alarms)
            or f"no alarm in {len(made)} comparisons; the closest: {closest.rate:.1%}, certainly above "
            f"{closest.surely:.1%}, where {closest.bound:.1%} are allowed",
            not alarms,
        ),
        Claim(
            "near-sampled",
            f"Who sees every step and the others' draws reaches at least {_NEAR:.0%} of the bound",
            "the prior-aware attack comes close to the bound (Hayes et al. 2023)",
            f"at least {share:.0%}: "
            + ", ".join(
                f"{level.name}: {level.made[DRAWS].rate:.1%} of {level.made[DRAWS].bound:.1%}"
                for level in levels
            ),
            share >= _NEAR,
        ),
        Claim(
            "hidden-draws",
            "Who does not know which of the others a step drew names the record less often",
            "not stated: the accounting gives no credit for it",
            f"at {widest.name} {hidden.rate:.1%} ({hidden.low:.1%} to {hidden.high:.1%}) instead of "
            f"{seen.rate:.1%} ({seen.low:.1%} to {seen.high:.1%})",
            hidden.high < seen.low,
        ),
    ]
    return claims, {"alarms_sampled": float(len(alarms)), "smallest_share_of_bound_sampled": share}


def chart(levels: Sequence[SampledLevel]) -> Chart:
    series: dict[str, list[Point]] = {}
    for level in levels:
        drawn = f"q = {level.rate:g}"
        series.setdefault(f"bound, {drawn}", []).append(Point(level.noise, level.made[DRAWS].bound))
        for attack in (DRAWS, END):
            one = level.made[attack]
            series.setdefault(f"{ATTACKS[attack]}, {drawn}", []).append(
                Point(level.noise, one.rate, one.low, one.high)
            )
    title = "The record is named, where each step draws its records"
    return Chart(title, "noise multiplier", "share of the trainings", series, x_scale="log")
