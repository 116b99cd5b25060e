"""What the study of certificates says: claims, charts and deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exhume.bounds.alarm import Certificate, certify
from exhume.report.charts import Chart, Point
from exhume.settings import DataSettings
from exhume.studies.study import Claim

__all__ = [
    "AWARE",
    "CLOSED",
    "COMPARED",
    "END",
    "STEPS",
    "Level",
    "charts",
    "deviations",
    "judge",
]

STEPS, END, AWARE, CLOSED = "every_step", "final_weights", "noise_aware", "closed_form"
NAMES = {
    STEPS: "prior-aware, every step",
    END: "prior-aware, final weights",
    AWARE: "noise-aware",
    CLOSED: "closed form",
}
_LOSSES = {
    "naming": (STEPS, END, AWARE, CLOSED),
    "within": (AWARE, CLOSED),
}
COMPARED = sum(len(attacks) for attacks in _LOSSES.values())  # certificates at each noise
_NEAR = 0.75  # of the bound
_TELLING = 0.99  # a bound above this says nothing


@dataclass(frozen=True)
class Level:
    """One noise: every attack's certificate, by its name and the loss."""

    noise: float
    epsilon: float
    accuracy: float
    kappa_low: float  # of the ball, by search; the certificates have the sound one
    made: Mapping[tuple[str, str], Certificate]

    @staticmethod
    def of(kept: Mapping[str, float], *, compared: int) -> Level:
        """kept: as `play_level` returns it."""
        made = {
            (attack, loss): certify(
                int(kept[f"{attack}.{loss}"]),
                int(kept["trials"]),
                kappa=kept[f"kappa.{loss}"],
                bound=kept[f"bound.{loss}"],
                comparisons=compared,
            )
            for loss, attacks in _LOSSES.items()
            for attack in attacks
        }
        return Level(
            kept["noise"], kept["epsilon"], kept["test_accuracy"], kept["kappa_low.within"], made
        )

    @property
    def bound(self) -> float:
        """For naming."""
        return self.made[STEPS, "naming"].bound

    def metrics(self) -> dict[str, float]:
        prefix = f"noise_{self.noise:g}"
        named: dict[str, float] = {
            f"{prefix}.epsilon": self.epsilon,
            f"{prefix}.test_accuracy": self.accuracy,
            f"{prefix}.kappa_low.within": self.kappa_low,
        }
        for (attack, loss), one in self.made.items():
            named[f"{prefix}.kappa.{loss}"] = one.kappa
            named[f"{prefix}.bound.{loss}"] = one.bound
            named |= one.metrics(f"{prefix}.{attack}.{loss}")
        return named


def judge(levels: Sequence[Level]) -> tuple[list[Claim], dict[str, float]]:
    alarms = [
        f"{NAMES[attack]} ({loss}) at noise {level.noise:g}: {one.sentence()}"
        for level in levels
        for (attack, loss), one in level.made.items()
        if one.alarm
    ]
    made = [one for level in levels for one in level.made.values()]
    telling = [one for one in made if one.bound < _TELLING] or made
    closest = min(telling, key=lambda one: one.bound - one.surely)
    near = {level.noise: level.made[STEPS, "naming"] for level in levels}
    share = min(one.rate / one.bound for one in near.values())
    apart = [
        (level, level.made[STEPS, "naming"], level.made[END, "naming"])
        for level in levels
        if level.bound < _TELLING
    ]
    widest = max(apart, key=lambda three: three[1].rate - three[2].rate, default=None)
    claims = [
        Claim(
            "no-alarm",
            "No attack succeeds more often than the stated privacy allows",
            "a theorem, where accounting and training are right",
            "; ".join(alarms)
            or f"no alarm in {len(made)} comparisons; the closest: {closest.rate:.1%}, certainly above "
            f"{closest.surely:.1%}, where {closest.bound:.1%} are allowed",
            not alarms,
        ),
        Claim(
            "near",
            f"An adversary who sees every step reaches at least {_NEAR:.0%} of the bound at every noise",
            "the prior-aware attack comes close to the bound (Hayes et al. 2023)",
            f"at least {share:.0%}: "
            + ", ".join(f"{n:g}: {one.rate:.1%} of {one.bound:.1%}" for n, one in near.items()),
            share >= _NEAR,
        ),
    ]
    if widest is not None:
        level, every, last = widest
        claims.append(
            Claim(
                "final-weights",
                "Who sees the final weights only is well below what the accounting allows",
                "not stated: the accounting assumes that every step is seen",
                f"at noise {level.noise:g} the record is named in {last.rate:.1%} ({last.low:.1%} to "
                f"{last.high:.1%}) of the cases from the end, {every.rate:.1%} ({every.low:.1%} to "
                f"{every.high:.1%}) from every step",
                last.high < every.low,
            )
        )
    return claims, {"alarms": float(len(alarms)), "smallest_share_of_bound": share}


def charts(levels: Sequence[Level], plain: float, eta: float) -> list[Chart]:
    def series(loss: str) -> dict[str, list[Point]]:
        first = _LOSSES[loss][0]
        bound = [Point(level.noise, level.made[first, loss].bound) for level in levels]
        measured = {
            NAMES[attack]: [
                Point(level.noise, one.rate, one.low, one.high)
                for level in levels
                for one in [level.made[attack, loss]]
            ]
            for attack in _LOSSES[loss]
        }
        return {"bound": bound, **measured}

    accuracies = {
        "private": [Point(level.noise, level.accuracy) for level in levels],
        "not private": [Point(level.noise, plain) for level in levels],
    }
    x, share = "noise multiplier", "share of the trainings"
    return [
        Chart("The record is named", x, share, series("naming"), x_scale="log"),
        Chart(f"Mean squared error of at most {eta:g}", x, share, series("within"), x_scale="log"),
        Chart("Accuracy", x, "test accuracy", accuracies, x_scale="log"),
    ]


def deviations(chosen: DataSettings, trials: int) -> list[str]:
    return [
        f"One list of {chosen.targets} MNIST images as the prior, each trained on equally often "
        f"({trials} trainings for each noise); Hayes et al. attack CIFAR-10.",
        "The closed form and the noise-aware attack are not told the list; for naming, their answer is "
        "snapped to it.",
        "The adversary who sees only the final weights takes their noise as independent between parameters.",
        f"|D-| = {chosen.fixed:,}: small, so that noise costs much accuracy.",
        "Poisson sampling: the adversary to whom draws are hidden takes their effect as isotropic noise.",
    ]
