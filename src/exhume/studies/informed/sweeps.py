"""One thing about the victim varied: the same targets attacked by the closed form under each variant.

The variants of a seed share records, targets, initial weights and the adversary's records, so that two of
them are compared target by target. Several seeds are taken together; their targets are pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.auditing import informed_game
from exhume.contract import Attack, ExhumeError, Key, Progress, Records
from exhume.report.charts import Point
from exhume.report.folder import RunFolder
from exhume.score.intervals import bootstrap, clopper_pearson
from exhume.settings import Settings, VictimSettings
from exhume.studies.arms import Arm, play
from exhume.studies.study import labelled

__all__ = [
    "MEAN_RECORD",
    "Pooled",
    "difference",
    "error_series",
    "interval_of",
    "pool",
    "sweep",
    "sweep_metrics",
]

MEAN_RECORD = "mean_record"  # the arm of the average record, which reads no release

Start = Callable[[str, Settings], Tensor]
"""(variant, settings) to the (p,) parameters at which its training starts."""

Further = Callable[[str, Settings], Mapping[str, Attack]]
"""(variant, settings) to more attacks on it; the arm of one is called `variant.attack`."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """One variant over all seeds."""

    errors: Tensor  # (t,) mean squared error of every target, seed after seed
    interval: tuple[float, float]  # of its mean, 95%
    measured: dict[str, float]
    successes: int
    lucky: int  # successes on unrelated records: the null
    trials: int

    @property
    def mse(self) -> float:
        return float(self.errors.mean())

    @property
    def success(self) -> tuple[float, float]:
        """The rate's exact 95% interval."""
        return clopper_pearson(self.successes, self.trials)

    @property
    def chance(self) -> tuple[float, float]:
        return clopper_pearson(self.lucky, self.trials)

    @property
    def leaks(self) -> bool:
        """The rule of the audit's verdict: the success rate's interval lies above the null's."""
        return self.success[0] > self.chance[1]

    def metrics(self, prefix: str) -> dict[str, float]:
        named = {
            "mse": self.mse,
            "mse_low": self.interval[0],
            "mse_high": self.interval[1],
            "success": self.successes / max(1, self.trials),
            "success_low": self.success[0],
            "success_high": self.success[1],
            "null_success": self.lucky / max(1, self.trials),
            "null_success_high": self.chance[1],
            "targets": len(self.errors),
            **self.measured,
        }
        return {f"{prefix}.{name}": value for name, value in named.items()}

    def point(self, x: float | str) -> Point:
        return Point(x, self.mse, *self.interval)


def pool(arms: Sequence[Arm], accuracies: Sequence[float], key: Key) -> Pooled:
    """The same variant on several seeds; accuracies: the released models', one a seed, or none."""
    scores = [arm.scores.metrics for arm in arms]
    trials = [int(found["targets"] - found["duplicates"]) for found in scores]

    def count(rate: str) -> int:
        return sum(round(s.get(rate, 0.0) * n) for s, n in zip(scores, trials, strict=True))

    errors = torch.cat([arm.scores.attack.mse for arm in arms]).double().cpu()
    means = ("mae", "oracle_mse", "null_mse", "label_accuracy")
    measured = {
        name: fmean(s[name] for s in scores) for name in means if all(name in s for s in scores)
    }
    measured["seconds"] = sum(arm.seconds for arm in arms)
    if accuracies:
        measured["test_accuracy"] = fmean(accuracies)
    return Pooled(
        errors,
        bootstrap(errors, key.fold("interval")),
        measured,
        count("success"),
        count("null_success"),
        sum(trials),
    )


def interval_of(
    arms: Sequence[Pooled], statistic: Callable[[Tensor], Tensor], key: Key, *, draws: int = 2000
) -> tuple[float, float]:
    """Bootstrap interval, 95%, of a statistic of the arms' mean errors; all arms draw the same targets.

    statistic: (draws, a) mean errors to (draws,).
    """
    sizes = {len(arm.errors) for arm in arms}
    if len(sizes) != 1:
        raise ExhumeError(f"arms: {sorted(sizes)} targets; only arms of the same targets compare")
    errors = torch.stack([arm.errors for arm in arms], dim=1)  # (t, a)
    picks = torch.randint(len(errors), (draws, len(errors)), generator=key.generator())
    ones = torch.ones(picks.shape, dtype=errors.dtype)
    times = torch.zeros_like(ones).scatter_add_(1, picks, ones)  # each target was drawn
    means = times @ errors / len(errors)
    ends = torch.tensor([0.025, 0.975], dtype=means.dtype)
    low, high = torch.quantile(statistic(means), ends)
    return float(low), float(high)


def difference(arm: Pooled, other: Pooled, key: Key) -> tuple[float, float]:
    """How much larger the first one's mean error is, 95%, target by target."""
    return interval_of([arm, other], lambda means: means[:, 0] - means[:, 1], key)


def sweep_metrics(arms: Mapping[str, Pooled]) -> dict[str, float]:
    return {key: value for name, arm in arms.items() for key, value in arm.metrics(name).items()}


def error_series(
    arms: Mapping[str, Pooled], places: Mapping[str, float | str]
) -> dict[str, list[Point]]:
    """Series of a chart: each variant at its place, beside what needs no release."""
    mean = arms[MEAN_RECORD]
    return {
        "closed form": [arms[name].point(x) for name, x in places.items()],
        "mean record": [mean.point(x) for x in places.values()],
        "oracle (knows the truth)": [
            Point(x, arms[name].measured["oracle_mse"]) for name, x in places.items()
        ],
    }


def sweep(
    variants: Mapping[str, VictimSettings],
    settings: Settings,
    seeds: int,
    records: Records,
    folder: RunFolder,
    *,
    progress: Progress,
    start: Start | None = None,
    further: Further | None = None,
) -> dict[str, Pooled]:
    """Every variant on every seed, and the mean record beside them."""
    key = Key.from_seed(settings.seed).fold("sweep")
    played: dict[str, list[Arm]] = {}
    accuracies: dict[str, list[float]] = {MEAN_RECORD: []}
    own, store = ClosedForm(chunk=settings.machine.chunk), folder.store()
    for index in range(seeds):
        seeded = settings.with_seed(settings.seed + index)
        for name, victim in variants.items():
            chosen = replace(seeded, victim=victim)
            shown = labelled(progress, f"{name}, seed {index + 1}")
            initial = start(name, chosen) if start else None
            game = informed_game(chosen, records, store=store, progress=shown, initial=initial)
            attacks: dict[str, Attack] = {name: own}
            if further is not None:
                attacks |= {f"{name}.{more}": a for more, a in further(name, chosen).items()}
            for arm, attack in attacks.items():
                found = play(game, attack, store=store, progress=shown)
                played.setdefault(arm, []).append(found)
                accuracies.setdefault(arm, []).append(float(game.facts["test_accuracy"]))
        mean = play(game, MeanRecord(), store=store, progress=progress)
        played.setdefault(MEAN_RECORD, []).append(mean)
    return {name: pool(several, accuracies[name], key) for name, several in played.items()}
