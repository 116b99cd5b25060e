"""Does any attack beat what differential privacy promises? Attacks beside the bound, over a range of noise.

DP gradient descent on MNIST. The unknown record is one of K, each equally often; the adversary knows all
other records. The bound is reconstruction robustness (bounds/dp_sgd.py): no attack succeeds more often.
Success that is certainly above it would be an alarm: the accounting or the training would be wrong.

Under Poisson sampling at rate q < 1, whether a step saw the record is hidden from everybody; that is what
lowers the bound. Three adversaries then name the record: who sees every step and which of the known records
it drew; every step without these draws; the final weights only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from exhume.attacks.informed.noise_aware import NoiseAware
from exhume.attacks.informed.prior_aware import PriorAware
from exhume.auditing.limits import allowed_by, named_by_steps
from exhume.core.contract import Attack, Knowledge
from exhume.score.measures import measure
from exhume.score.targets import named_rightly
from exhume.settings import DataSettings, VictimSettings
from exhume.studies.arms import BALLE22, Bench, mounted
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.informed.certificates_claims import (
    AWARE,
    CLOSED,
    DRAWS,
    END,
    HIDDEN,
    STEPS,
    concluded,
)
from exhume.train.dp import epsilon
from exhume.train.functional import accuracy
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each

__all__ = ["STUDY", "Setting", "play_level"]

_DELTA = 1e-5


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
    return concluded(found, _accuracy_without_privacy(run), setting.data, setting.eta)


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


STUDY = Study("certificates", _SCALES, _run, on_device=True)
