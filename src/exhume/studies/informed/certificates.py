"""Does any attack beat what differential privacy promises? Attacks beside the bound, over a range of noise.

DP gradient descent on MNIST. The unknown record is one of K, each equally often; the adversary knows all
other records. The bound is reconstruction robustness (bounds/dp_sgd.py): no attack succeeds more often.
Success that is certainly above it would be an alarm: the accounting or the training would be wrong.

Under Poisson sampling at rate q < 1, whether a step saw the record is hidden from everybody; that is what
lowers the bound. Three adversaries then name the record: who sees every step and which of the known records
it drew; every step without these draws; the final weights only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from exhume.attacks.informed.noise_aware import NoiseAware
from exhume.attacks.informed.prior_aware import PriorAware
from exhume.auditing.limits import allowed_by, named_by_steps
from exhume.bounds.prior import Certificate, certify
from exhume.core.contract import Attack, Knowledge
from exhume.score.measures import measure
from exhume.score.targets import named_rightly
from exhume.settings import DataSettings, VictimSettings
from exhume.studies.arms import BALLE22, Bench, mounted
from exhume.studies.claims import prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.train.dp import epsilon
from exhume.train.functional import accuracy
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each

_DELTA = 1e-5
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
_TELLING = 0.99  # a bound above this says nothing


@dataclass(frozen=True)
class Setting:
    data: DataSettings  # `targets` are the candidates
    victim: VictimSettings
    noises: tuple[float, ...]  # multipliers, falling
    trials: int  # a multiple of the candidates
    sampled: tuple[tuple[float, float], ...]  # rates of Poisson sampling, each with a noise
    eta: float = 0.02  # mean squared error that counts as reconstructed


_VICTIM = replace(BALLE22, steps=50, dp_clip=1.0)
_SCALES: dict[Scale, Setting] = {
    "smoke": Setting(
        DataSettings("mnist", fixed=40, targets=10, shadows=60, public=20, test=200),
        replace(_VICTIM, steps=15),
        noises=(4.0, 0.1),
        trials=40,
        sampled=((0.5, 1.0),),
    ),
    "cpu": Setting(
        DataSettings("mnist", fixed=200, targets=10, shadows=400, public=100, test=1000),
        _VICTIM,
        noises=(20.0, 7.0, 3.5, 2.0, 1.0, 0.3, 0.03),
        trials=400,
        sampled=((0.1, 2.0), (0.1, 1.0), (0.1, 0.5)),
    ),
    "paper": Setting(
        DataSettings("mnist", fixed=1000, targets=10, shadows=10_000, public=1000, test=1000),
        replace(_VICTIM, steps=100),
        noises=(40.0, 20.0, 9.5, 5.0, 2.0, 1.0, 0.3, 0.03),
        trials=2000,
        sampled=tuple((q, s) for q in (0.02, 0.1, 0.5) for s in (4.0, 2.0, 1.0, 0.5)),
    ),
}


def _run(run: Run[Setting]) -> Outcome:
    setting = run.setting
    jobs = {f"noise {noise:g}": (1.0, noise) for noise in setting.noises}
    jobs |= {f"rate {rate:g}, noise {noise:g}": (rate, noise) for rate, noise in setting.sampled}
    found = run.arms("rates and noises", _level, jobs).values()
    return concluded(found, _accuracy_without_privacy(run))


def _accuracy_without_privacy(run: Run[Setting]) -> float:
    bench = Bench.of(run, run.setting.data, replace(run.setting.victim, dp_clip=0.0))
    recipe, fixed = bench.recipe, bench.parts.fixed
    trained = recipe.fit(bench.initial, fixed, fixed.none_for(1), run.key)
    return float(accuracy(recipe.architecture, trained, bench.parts.test).mean())


def _level(run: Run[Setting], job: tuple[float, float]) -> dict[str, float]:
    (rate, noise), setting = job, run.setting
    part = run.part(f"rate {rate:g}, noise {noise:g}")
    private = replace(setting.victim, dp_noise=noise, dp_sampling=rate)
    return play_level(Bench.of(part, setting.data, setting.victim).of_victim(private), setting)


def play_level(bench: Bench, setting: Setting, actual: FullBatch | None = None) -> dict[str, float]:
    """Every attack's successes, and what guessing and the stated privacy allow.

    The bench's recipe is what the privacy is computed from; actual: what is run, and what the adversary runs
    as well. The two are the same unless somebody wants to see the alarm.
    """
    stated, parts, key, run = bench.recipe, bench.parts, bench.key, bench.run
    assert isinstance(stated, FullBatch)  # the settings ask for no batches
    actual, privacy, steps = actual or stated, stated.privacy, stated.descent.steps
    listed = parts.target
    targets = listed[torch.arange(setting.trials) % len(listed)]
    initial = bench.initial
    release, secret = release_one_each(
        actual, initial, parts.fixed, targets, chunk=bench.chunk, **run.working(key)
    )
    noisy = actual if actual.privacy.noise else stated  # what noise there is said to be, at least
    known = Knowledge(recipe=noisy, initial=initial, fixed=parts.fixed)
    own, sampled = key.fold("attack"), privacy.sampling < 1
    listing = replace(known, candidates=listed)
    naming = PriorAware(chunk=bench.chunk).prepare(listing, **run.working(own))
    right = {f"{END}.naming": named_rightly(secret, naming.run(release), listed)}
    for name, draws in ((DRAWS, True), (HIDDEN, False)) if sampled else ((STEPS, True),):
        right[f"{name}.naming"] = named_by_steps(
            naming, actual, initial, targets, key=key, draws=draws, progress=run.progress
        )
    held = replace(known, shadow=parts.shadow, public=parts.public)
    drawing: dict[str, Attack] = {AWARE: NoiseAware(chunk=bench.chunk), CLOSED: bench.closed_form}
    for name, attack in () if sampled else drawing.items():
        found = mounted(attack, held, release, own, run)
        right[f"{name}.naming"] = named_rightly(secret, found, listed)
        errors = measure(found.candidates[:, 0], targets.inputs).mse
        right[f"{name}.within"] = errors <= setting.eta
    allowed = allowed_by(privacy, steps, listed, setting.eta)
    accuracies = accuracy(actual.architecture, release.parameters, parts.test)
    numbers = {
        "rate": privacy.sampling,
        "noise": privacy.noise,
        "epsilon": epsilon(privacy.noise, steps, delta=_DELTA, sampling=privacy.sampling),
        "trials": setting.trials,
        "test_accuracy": float(accuracies.mean()),
        "kappa_low.within": allowed.within.low,
    }
    for loss in ("naming", "within"):
        numbers[f"kappa.{loss}"], numbers[f"bound.{loss}"] = allowed.bound(loss)
    return numbers | {name: float(won.sum()) for name, won in right.items()}


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

    @property
    def arm(self) -> str:
        """As its metrics call it."""
        return self.name.replace(", ", ".").replace(" ", "_")

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
        return prefixed(self.arm, named)


def levels_of(found: Iterable[Mapping[str, float]]) -> list[Level]:
    """Levels whose certificates are looked at together; found: as `play_level` returns it."""
    alone = [Level(numbers) for numbers in found]
    compared = sum(len(level.made) for level in alone)
    return [replace(level, compared=compared) for level in alone]


def concluded(found: Iterable[Mapping[str, float]], plain: float) -> Outcome:
    """plain: accuracy without privacy."""
    levels = levels_of(found)
    full = [level for level in levels if not level.sampled]
    sampled = [level for level in levels if level.sampled]
    said = {"full": judge(full), "sampled": judge_sampled(sampled)}
    metrics = {name: value for level in levels for name, value in level.metrics().items()}
    for end, group in (("", said["full"]), ("_sampled", said["sampled"])):
        metrics[f"alarms{end}"] = group["alarms"]
        metrics[f"smallest_share_of_bound{end}"] = group["share"]
    metrics["accuracy_without_privacy"] = plain
    rates = dict.fromkeys(level.numbers["rate"] for level in sampled)
    places: dict[str, object] = {
        "noises": {level.noise: level.arm for level in full},
        "rates": [
            {"rate": q, "drawn": {s.noise: s.arm for s in sampled if s.numbers["rate"] == q}}
            for q in rates
        ],
    }
    return Outcome(metrics, said={**said, **places})


def judge(levels: Sequence[Level]) -> dict[str, Any]:
    """What the claims ask for where every step sees the record."""
    telling = [level for level in levels if level.naming(STEPS).bound < _TELLING]
    return _judged(levels, STEPS) | (_apart(telling, STEPS, END) if telling else {})


def judge_sampled(levels: Sequence[Level]) -> dict[str, Any]:
    """What they ask for under Poisson sampling."""
    return _judged(levels, DRAWS) | _apart(levels, DRAWS, HIDDEN)


def _judged(levels: Sequence[Level], best: str) -> dict[str, Any]:
    """Successes that are certainly above their bound, and how near the best attack comes."""
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
    return {
        "alarms": float(len(alarms)),
        "alarmed": alarms
        or f"no alarm in {len(made)} comparisons; the closest: {closest.rate:.1%}, certainly above "
        f"{closest.surely:.1%}, where {closest.bound:.1%} are allowed",
        "share": min(one.rate / one.bound for one in near.values()),
        "near": ", ".join(f"{at}: {one.rate:.1%} of {one.bound:.1%}" for at, one in near.items()),
    }


def _apart(levels: Sequence[Level], more: str, less: str) -> dict[str, Any]:
    """Two attacks where they are farthest apart: the second's rate less the first's."""
    widest = max(levels, key=lambda level: level.naming(more).rate - level.naming(less).rate)
    above, below = widest.naming(more), widest.naming(less)
    spoken = {
        name: f"{one.rate:.1%} ({one.low:.1%} to {one.high:.1%})"
        for name, one in {"more": above, "less": below}.items()
    }
    apart = (below.low - above.high, below.high - above.low)
    return {"widest": widest.name, "apart": apart, **spoken}


STUDY = Study("certificates", _SCALES, _run, on_device=True)
