"""One thing about the victim varied: the same targets attacked by the closed form under each variant.

The variants of a seed share records, targets, initial weights and the adversary's records, so that two of
them are compared target by target. Several seeds are taken together; their targets are pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Generic, TypeVar

import torch
from torch import Tensor

from exhume.attacks.baseline import MeanRecord
from exhume.auditing import Game
from exhume.auditing.plan import Stage, game_stages
from exhume.core.contract import Attack, ExhumeError, Key
from exhume.core.results import Point
from exhume.score.intervals import bootstrap, clopper_pearson
from exhume.settings import DataSettings, VictimSettings
from exhume.studies.arms import Arm, Bench
from exhume.studies.claims import prefixed
from exhume.studies.plan import stand_in

MEAN_RECORD = "mean_record"  # the arm of the average record, which reads no release

DETAILS = {"mae", "null_mse", "seconds", "success_low", "success_high", "null_success_high"}
"""Metrics of an arm that a study with more to say leaves out."""

V = TypeVar("V")

Start = Callable[[str, Bench], Tensor]
"""(variant, bench) to the (p,) parameters at which its training starts."""

Further = Callable[[Bench], Mapping[str, Attack]]
"""More attacks on a variant; the arm of one is called `variant.attack`."""

Look = Callable[[Bench, Game], Mapping[str, Tensor]]
"""What else is seen of a game: tensors whose last dimension runs over targets, or over seeds."""


@dataclass(frozen=True)
class Sweep(Generic[V]):
    """Sizes of a study that varies one thing."""

    data: DataSettings  # fixed, target, shadow, public and test records
    victim: VictimSettings
    values: tuple[V, ...]  # of what is varied
    seeds: int = 1

    def stages(self, variants: Mapping[str, VictimSettings]) -> list[Stage]:
        """The game of every variant on every seed, by the closed form."""
        stages = list[Stage]()
        for name, victim in variants.items():
            recipe, shape, classes = stand_in(self.data, victim)
            stages += game_stages(recipe, self.data, shape, classes, f" ({name})") * self.seeds
        return stages


@dataclass(frozen=True, eq=False)
class Pooled:
    """One variant over all seeds."""

    errors: Tensor  # (t,) mean squared error of every target, seed after seed
    interval: tuple[float, float]  # of its mean, 95%
    measured: dict[str, float]
    successes: int
    lucky: int  # successes on unrelated records: the null
    trials: int
    seen: dict[str, Tensor] = field(default_factory=dict)  # by a `Look`

    @property
    def mse(self) -> float:
        return float(self.errors.mean())

    @property
    def rate(self) -> float:
        return self.successes / max(1, self.trials)

    @property
    def null_rate(self) -> float:
        return self.lucky / max(1, self.trials)

    @property
    def success(self) -> tuple[float, float]:
        """The rate's exact 95% interval."""
        return clopper_pearson(self.successes, self.trials)

    @property
    def spoken(self) -> str:
        return f"{self.rate:.1%} ({self.success[0]:.1%} to {self.success[1]:.1%})"

    @property
    def chance(self) -> tuple[float, float]:
        return clopper_pearson(self.lucky, self.trials)

    @property
    def above_chance(self) -> tuple[float, float]:
        """The success rate's interval less the null's: above 0 it leaks, by the audit's rule."""
        return self.success[0] - self.chance[1], self.success[1] - self.chance[0]

    @property
    def leaks(self) -> bool:
        return self.above_chance[0] > 0

    def metrics(self, prefix: str, without: Collection[str] = ()) -> dict[str, float]:
        named = {
            "mse": self.mse,
            "mse_low": self.interval[0],
            "mse_high": self.interval[1],
            "success": self.rate,
            "success_low": self.success[0],
            "success_high": self.success[1],
            "null_success": self.null_rate,
            "null_success_high": self.chance[1],
            "targets": len(self.errors),
            **self.measured,
        }
        return prefixed(prefix, {n: named[n] for n in named if n not in without})

    def point(self, x: float | str) -> Point:
        return Point(x, self.mse, *self.interval)


Swept = Mapping[str, Pooled]
"""Every variant over all seeds, and the mean record beside them."""


def sweep(
    bench: Bench,
    seeds: int,
    variants: Mapping[str, VictimSettings],
    *,
    start: Start | None = None,
    further: Further | None = None,
    look: Look | None = None,
    intervals: Callable[[str], Key] | None = None,
) -> Swept:
    """Attack every variant on every seed, and the mean record beside them.

    intervals: the key by which an arm's interval is drawn; None: one key for all arms.
    """
    arms: dict[str, list[Arm]] = {}
    accuracies: dict[str, list[float]] = {}
    seen: dict[str, list[Mapping[str, Tensor]]] = {}
    for index in range(seeds):
        for name, victim in variants.items():
            own = bench.seeded(index, f"{name}, seed {index + 1}").of_victim(victim).rechunked()
            game = own.game(start(name, own) if start else None)
            attacks: dict[str, Attack] = {name: own.closed_form}
            if further is not None:
                attacks |= {f"{name}.{more}": attack for more, attack in further(own).items()}
            for arm, attack in attacks.items():
                arms.setdefault(arm, []).append(own.play(game, attack))
                accuracies.setdefault(arm, []).append(float(game.facts["test_accuracy"]))
            if look is not None:
                seen.setdefault(name, []).append(look(own, game))
        arms.setdefault(MEAN_RECORD, []).append(own.play(game, MeanRecord()))
    usual = bench.run.key.fold("sweep").fold("interval")
    keys = {name: intervals(name) if intervals else usual for name in arms}
    return {
        name: pool(several, keys[name], accuracies.get(name, ()), seen.get(name, ()))
        for name, several in arms.items()
    }


def pool(
    arms: Sequence[Arm],
    key: Key,
    accuracies: Sequence[float] = (),
    seen: Sequence[Mapping[str, Tensor]] = (),
) -> Pooled:
    """One variant on several seeds. accuracies: the released models', one a seed, or none."""
    scores = [arm.scores.metrics for arm in arms]
    trials = [int(found["targets"] - found["duplicates"]) for found in scores]

    def count(rate: str) -> int:
        return sum(round(s.get(rate, 0.0) * n) for s, n in zip(scores, trials, strict=True))

    errors = torch.cat([arm.errors for arm in arms]).double().cpu()
    means = ("mae", "oracle_mse", "null_mse", "label_accuracy")
    measured = {
        name: fmean(s[name] for s in scores) for name in means if all(name in s for s in scores)
    }
    measured["seconds"] = sum(arm.seconds for arm in arms)
    if accuracies:
        measured["test_accuracy"] = fmean(accuracies)
    return Pooled(
        errors,
        bootstrap(errors, key),
        measured,
        count("success"),
        count("null_success"),
        sum(trials),
        {name: torch.cat([s[name] for s in seen], dim=-1).cpu() for name in (seen or [{}])[0]},
    )


# Comparisons, target by target


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


def increases(arms: Mapping[int, Pooled], key: Key) -> tuple[dict[str, float], dict[str, object]]:
    """The change of the error at each increase of a number, as metrics and as claims ask for it.

    arms: by the number, increasing.
    """
    steps = {
        f"from_{fewer}_to_{more}": difference(arms[more], arms[fewer], key.fold(fewer, more))
        for fewer, more in pairwise(arms)
    }
    ends = {f"{step}_low": low for step, (low, _) in steps.items()}
    ends |= {f"{step}_high": high for step, (_, high) in steps.items()}
    rises = sum(low > 0 for low, _ in steps.values())
    return ends, {"rises": rises, "increases": len(steps), "each": list(steps.values())}


def binned(values: Tensor, errors: Tensor, bins: int, key: Key) -> list[Point]:
    """Mean error of targets with about the same value: bins of equal size, each at its median."""
    points = []
    for index, rows in enumerate(torch.tensor_split(torch.argsort(values), bins)):
        low, high = bootstrap(errors[rows], key.fold(index))
        points.append(Point(float(values[rows].median()), float(errors[rows].mean()), low, high))
    return points
