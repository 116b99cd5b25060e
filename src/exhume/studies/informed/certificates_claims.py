"""Certificates of attacks on private training: their metrics, claims, charts and deviations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from exhume.bounds.prior import Certificate, certify
from exhume.core.results import Chart, Point
from exhume.settings import DataSettings
from exhume.studies.claims import Claims, prefixed
from exhume.studies.framework import Outcome

__all__ = [
    "AWARE",
    "CLOSED",
    "DRAWS",
    "END",
    "HIDDEN",
    "NAMES",
    "STEPS",
    "Level",
    "concluded",
    "judge",
    "judge_sampled",
    "levels_of",
]

STEPS, END, AWARE, CLOSED = "every_step", "final_weights", "noise_aware", "closed_form"
DRAWS, HIDDEN = "draws_known", "draws_hidden"
NAMES = {
    STEPS: "prior-aware, every step",
    END: "prior-aware, final weights",
    AWARE: "noise-aware",
    CLOSED: "closed form",
    DRAWS: "every step and the others' draws",
    HIDDEN: "every step, draws hidden",
}
_LOSSES = {"naming": (STEPS, END, AWARE, CLOSED), "within": (AWARE, CLOSED)}
_LOSSES_SAMPLED = {"naming": (DRAWS, HIDDEN, END)}
_NEAR = 0.75  # of the bound
_TELLING = 0.99  # a bound above this says nothing


@dataclass(frozen=True)
class Level:
    """One rate and noise."""

    numbers: Mapping[str, float]  # as `play_level` returns them
    compared: int = 1  # certificates that are looked at together

    @property
    def noise(self) -> float:
        return self.numbers["noise"]

    @property
    def sampled(self) -> bool:
        return self.numbers["rate"] < 1

    @property
    def name(self) -> str:
        noise = f"noise {self.noise:g}"
        return f"rate {self.numbers['rate']:g}, {noise}" if self.sampled else noise

    @cached_property
    def made(self) -> dict[tuple[str, str], Certificate]:
        """Every attack's certificate, by its name and the loss."""
        return {
            (attack, loss): certify(
                int(self.numbers[f"{attack}.{loss}"]),
                int(self.numbers["trials"]),
                kappa=self.numbers[f"kappa.{loss}"],
                bound=self.numbers[f"bound.{loss}"],
                comparisons=self.compared,
            )
            for loss, attacks in (_LOSSES_SAMPLED if self.sampled else _LOSSES).items()
            for attack in attacks
        }

    def naming(self, attack: str) -> Certificate:
        return self.made[attack, "naming"]

    def metrics(self) -> dict[str, float]:
        """Where steps are sampled there is one loss, which the names leave out."""
        shown = ["epsilon", "test_accuracy", *([] if self.sampled else ["kappa_low.within"])]
        named = {name: self.numbers[name] for name in shown}
        for (attack, loss), one in self.made.items():
            end = "" if self.sampled else f".{loss}"
            named |= {f"bound{end}": one.bound, **one.metrics(f"{attack}{end}")}
            if not self.sampled:
                named[f"kappa{end}"] = one.kappa
        return prefixed(self.name.replace(", ", ".").replace(" ", "_"), named)


def levels_of(found: Iterable[Mapping[str, float]]) -> list[Level]:
    """Levels whose certificates are looked at together; found: as `play_level` returns it."""
    alone = [Level(numbers) for numbers in found]
    compared = sum(len(level.made) for level in alone)
    return [replace(level, compared=compared) for level in alone]


def concluded(
    found: Iterable[Mapping[str, float]], plain: float, sizes: DataSettings, eta: float
) -> Outcome:
    """plain: accuracy without privacy; eta: the mean squared error that counts as reconstructed."""
    levels = levels_of(found)
    full = [level for level in levels if not level.sampled]
    sampled = [level for level in levels if level.sampled]
    (claims, numbers), (claims_sampled, numbers_sampled) = judge(full), judge_sampled(sampled)
    metrics = {name: value for level in levels for name, value in level.metrics().items()}
    trials = int(levels[0].numbers["trials"])
    return Outcome(
        claims=claims | claims_sampled,
        metrics=metrics | numbers | numbers_sampled | {"accuracy_without_privacy": plain},
        deviations=[
            f"One list of {sizes.targets} MNIST images as the prior, each trained on equally often "
            f"({trials} trainings for each noise); Hayes et al. attack CIFAR-10.",
            "The closed form and the noise-aware attack are not told the list; for naming, their answer is "
            "snapped to it.",
            "The adversary who sees only the final weights takes their noise as independent between "
            "parameters.",
            f"|D-| = {sizes.fixed:,}: small, so that noise costs much accuracy.",
            "Poisson sampling: the adversary to whom draws are hidden takes their effect as isotropic noise.",
        ],
        charts=_charts(full, sampled, plain, eta),
    )


Judged = tuple[Claims, dict[str, float]]


def judge(levels: Sequence[Level]) -> Judged:
    """Claims where every step sees the record."""
    statements = {
        "no-alarm": "No attack succeeds more often than the stated privacy allows",
        "near": f"An adversary who sees every step reaches at least {_NEAR:.0%} of the bound at every "
        "noise",
    }
    claims, numbers = _judged(levels, STEPS, statements)
    telling = [level for level in levels if level.naming(STEPS).bound < _TELLING]
    if telling:
        widest = _widest(telling, STEPS, END)
        every, last = widest.naming(STEPS), widest.naming(END)
        claims["final-weights"] = (
            "Who sees the final weights only is well below what the accounting allows",
            "not stated: the accounting assumes that every step is seen",
            f"at {widest.name} the record is named in {_rate(last)} of the cases from the end, "
            f"{_rate(every)} from every step",
            last.high < every.low,
        )
    return claims, numbers


def judge_sampled(levels: Sequence[Level]) -> Judged:
    """Claims under Poisson sampling."""
    statements = {
        "no-alarm-sampled": "Under Poisson sampling, no attack succeeds more often than the stated "
        "privacy allows",
        "near-sampled": f"Who sees every step and the others' draws reaches at least {_NEAR:.0%} of the "
        "bound",
    }
    claims, numbers = _judged(levels, DRAWS, statements)
    widest = _widest(levels, DRAWS, HIDDEN)
    seen, hidden = widest.naming(DRAWS), widest.naming(HIDDEN)
    claims["hidden-draws"] = (
        "Who does not know which of the others a step drew names the record less often",
        "not stated: the accounting gives no credit for it",
        f"at {widest.name} {_rate(hidden)} instead of {_rate(seen)}",
        hidden.high < seen.low,
    )
    return claims, {f"{name}_sampled": value for name, value in numbers.items()}


def _judged(levels: Sequence[Level], best: str, statements: Mapping[str, str]) -> Judged:
    """No success is certainly above its bound, and the best attack comes near; statements: by claim."""
    alarms = [
        f"{NAMES[attack]}{' (within)' if loss == 'within' else ''} at {level.name}: {one.sentence()}"
        for level in levels
        for (attack, loss), one in level.made.items()
        if one.alarm
    ]
    made = [one for level in levels for one in level.made.values()]
    telling = [one for one in made if one.bound < _TELLING] or made
    closest = min(telling, key=lambda one: one.bound - one.surely)
    near = {
        level.name if level.sampled else f"{level.noise:g}": level.naming(best) for level in levels
    }
    share = min(one.rate / one.bound for one in near.values())
    (sound_id, sound), (near_id, nearly) = statements.items()
    claims = {
        sound_id: (
            sound,
            "a theorem, where accounting and training are right",
            "; ".join(alarms)
            or f"no alarm in {len(made)} comparisons; the closest: {closest.rate:.1%}, certainly above "
            f"{closest.surely:.1%}, where {closest.bound:.1%} are allowed",
            not alarms,
        ),
        near_id: (
            nearly,
            "the prior-aware attack comes close to the bound (Hayes et al. 2023)",
            f"at least {share:.0%}: "
            + ", ".join(f"{at}: {one.rate:.1%} of {one.bound:.1%}" for at, one in near.items()),
            share >= _NEAR,
        ),
    }
    return claims, {"alarms": float(len(alarms)), "smallest_share_of_bound": share}


def _widest(levels: Sequence[Level], more: str, less: str) -> Level:
    """Where two attacks are farthest apart."""
    return max(levels, key=lambda level: level.naming(more).rate - level.naming(less).rate)


def _rate(one: Certificate) -> str:
    return f"{one.rate:.1%} ({one.low:.1%} to {one.high:.1%})"


def _charts(
    full: Sequence[Level], sampled: Sequence[Level], plain: float, eta: float
) -> list[Chart]:
    def curve(levels: Sequence[Level], attack: str, loss: str = "naming") -> list[Point]:
        made = [(level.noise, level.made[attack, loss]) for level in levels]
        return [Point(noise, one.rate, one.low, one.high) for noise, one in made]

    def bounds(levels: Sequence[Level], loss: str = "naming") -> list[Point]:
        return [Point(level.noise, level.numbers[f"bound.{loss}"]) for level in levels]

    def series(loss: str) -> dict[str, list[Point]]:
        curves = {NAMES[attack]: curve(full, attack, loss) for attack in _LOSSES[loss]}
        return {"bound": bounds(full, loss), **curves}

    accuracies = {
        "private": [Point(level.noise, level.numbers["test_accuracy"]) for level in full],
        "not private": [Point(level.noise, plain) for level in full],
    }
    by_rate = {}
    for rate in dict.fromkeys(level.numbers["rate"] for level in sampled):
        some = [level for level in sampled if level.numbers["rate"] == rate]
        by_rate[f"bound, q = {rate:g}"] = bounds(some)
        by_rate |= {
            f"{NAMES[attack]}, q = {rate:g}": curve(some, attack) for attack in (DRAWS, END)
        }
    x, share = "noise multiplier", "share of the trainings"
    drawn = "The record is named, where each step draws its records"
    return [
        Chart("The record is named", x, share, series("naming"), x_scale="log"),
        Chart(f"Mean squared error of at most {eta:g}", x, share, series("within"), x_scale="log"),
        Chart("Accuracy", x, "test accuracy", accuracies, x_scale="log"),
        Chart(drawn, x, share, by_rate, x_scale="log"),
    ]
