"""Does any attack beat what differential privacy promises? Attacks beside the bound, over a range of noise.

DP gradient descent on MNIST. The unknown record is one of K, each equally often; the adversary knows all
other records. The bound is reconstruction robustness (bounds/dp_sgd.py): no attack succeeds more often.
Success that is certainly above it would be an alarm: the accounting or the training would be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch

from exhume import data
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.noise_aware import NoiseAware
from exhume.attacks.informed.prior_aware import FittedPriorAware, PriorAware
from exhume.auditing import dealt
from exhume.auditing.training.certificates import allowed_by, named_by_steps
from exhume.choices import recipe_for, resolve
from exhume.contract import Attack, Key, Knowledge, Progress, Store, silent
from exhume.data import Split
from exhume.report.folder import RunFolder
from exhume.score.naming import named_rightly
from exhume.score.targets import measure
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.informed.certificates_checked import check_bounds
from exhume.studies.informed.certificates_sampled import (
    ATTACKS,
    SampledLevel,
    chart,
    judge_sampled,
    play_sampled,
)
from exhume.studies.informed.certificates_told import (
    AWARE,
    CLOSED,
    COMPARED,
    END,
    STEPS,
    Level,
    charts,
    deviations,
    judge,
)
from exhume.studies.study import Outcome, Scale, Study, labelled, pinned, remembered
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
    eta: float  # mean squared error that counts as reconstructed
    sampled: tuple[tuple[float, float], ...] = ()  # rates of Poisson sampling, each with a noise


_VICTIM = VictimSettings(steps=50, dp_clip=1.0)
_SCALES: dict[Scale, Setting] = {
    "smoke": Setting(
        DataSettings("mnist", fixed=40, targets=10, shadows=60, public=20, test=200),
        replace(_VICTIM, steps=15),
        noises=(4.0, 0.1),
        trials=40,
        eta=0.02,
        sampled=((0.5, 1.0),),
    ),
    "cpu": Setting(
        DataSettings("mnist", fixed=200, targets=10, shadows=400, public=100, test=1000),
        _VICTIM,
        noises=(20.0, 7.0, 3.5, 2.0, 1.0, 0.3, 0.03),
        trials=400,
        eta=0.02,
        sampled=((0.1, 2.0), (0.1, 1.0), (0.1, 0.5)),
    ),
    "paper": Setting(
        DataSettings("mnist", fixed=1000, targets=10, shadows=10_000, public=1000, test=1000),
        replace(_VICTIM, steps=100),
        noises=(40.0, 20.0, 9.5, 5.0, 2.0, 1.0, 0.3, 0.03),
        trials=2000,
        eta=0.02,
        sampled=tuple((q, s) for q in (0.02, 0.1, 0.5) for s in (4.0, 2.0, 1.0, 0.5)),
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    records = data.load(setting.data.source, progress=progress)
    settings = pinned(
        resolve(Settings(seed=seed, data=setting.data, victim=setting.victim), records), folder
    )
    parts, key = dealt(settings, records), Key.from_seed(seed)
    store, chunk = folder.store(), settings.machine.chunk
    compared = COMPARED * len(setting.noises) + len(ATTACKS) * len(setting.sampled)
    levels = []
    for noise in setting.noises:
        recipe = recipe_for(settings.with_values("victim", dp_noise=noise), records)
        assert isinstance(recipe, FullBatch)  # the settings ask for no batches
        shown = labelled(progress, f"noise {noise:g}")
        level = partial(
            play_level,
            recipe,
            recipe,
            parts,
            setting,
            key=key,
            store=store,
            chunk=chunk,
            progress=shown,
        )
        kept = remembered(folder, key.fold("certificates", scale, f"{noise}"), level)
        levels.append(Level.of(kept, compared=compared))
    sampled = []
    for rate, noise in setting.sampled:
        asked = settings.with_values("victim", dp_noise=noise, dp_sampling=rate)
        recipe = recipe_for(asked, records)
        assert isinstance(recipe, FullBatch)
        drawn = partial(
            play_sampled,
            recipe,
            recipe,
            parts,
            setting.trials,
            key=key,
            store=store,
            chunk=chunk,
            progress=labelled(progress, f"rate {rate:g}, noise {noise:g}"),
        )
        kept = remembered(folder, key.fold("sampled", scale, f"{rate} {noise}"), drawn)
        sampled.append(SampledLevel.of(kept, compared=compared))
    bare = recipe_for(settings.with_values("victim", dp_clip=0.0), records)
    trained = bare.fit(
        bare.architecture.initial(key.fold("victim")), parts.fixed, parts.fixed.none_for(1), key
    )
    plain = float(accuracy(bare.architecture, trained, parts.test).mean())
    claims, found = judge(levels)
    others, counted = judge_sampled(sampled)
    more, checked = check_bounds(setting.victim.steps, key.fold("check"))
    every: list[Level | SampledLevel] = [*levels, *sampled]
    metrics = {name: value for level in every for name, value in level.metrics().items()}
    return Outcome(
        claims=[*claims, *others, *more],
        metrics={**metrics, **found, **counted, **checked, "accuracy_without_privacy": plain},
        deviations=deviations(setting.data, setting.trials),
        charts=[*charts(levels, plain, setting.eta), chart(sampled)],
    )


def play_level(
    stated: FullBatch,
    actual: FullBatch,
    parts: Split,
    setting: Setting,
    *,
    key: Key,
    store: Store,
    chunk: int,
    progress: Progress = silent,
) -> dict[str, float]:
    """Every attack at one noise: its successes, and what guessing and the stated privacy allow.

    stated: what the privacy is computed from; actual: what is run, and what the adversary runs as well. The
    two are the same unless somebody wants to see the alarm.
    """
    listed, trials = parts.target, setting.trials
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
    noisy = actual if actual.privacy.noise else stated  # what noise there is said to be, at least
    known = Knowledge(recipe=noisy, initial=initial, fixed=parts.fixed)
    attacks: dict[str, tuple[Attack, Knowledge]] = {
        END: (PriorAware(chunk=chunk), replace(known, candidates=listed)),
        AWARE: (NoiseAware(chunk=chunk), replace(known, shadow=parts.shadow, public=parts.public)),
        CLOSED: (ClosedForm(chunk=chunk), replace(known, shadow=parts.shadow, public=parts.public)),
    }
    allowed = allowed_by(stated.privacy, stated.descent.steps, listed, setting.eta)
    counts: dict[str, float] = {}
    for name, (attack, knowledge) in attacks.items():
        prepared = attack.prepare(knowledge, key=key.fold("attack"), store=store, progress=progress)
        found = prepared.run(release)
        counts[f"{name}.naming"] = float(named_rightly(secret, found, listed).sum())
        if isinstance(prepared, FittedPriorAware):
            steps = named_by_steps(prepared, actual, initial, targets, key=key, progress=progress)
            counts[f"{STEPS}.naming"] = float(steps.sum())
        else:
            errors = measure(found.candidates[:, 0], targets.inputs).mse
            counts[f"{name}.within"] = float((errors <= setting.eta).sum())
    return {
        **counts,
        "noise": stated.privacy.noise,
        "epsilon": epsilon(stated.privacy.noise, stated.descent.steps, delta=_DELTA),
        "trials": trials,
        "test_accuracy": float(
            accuracy(actual.architecture, release.parameters, parts.test).mean()
        ),
        "kappa_low.within": allowed.within.low,
        **{f"kappa.{loss}": allowed.bound(loss)[0] for loss in ("naming", "within")},
        **{f"bound.{loss}": allowed.bound(loss)[1] for loss in ("naming", "within")},
    }


STUDY = Study(
    name="certificates",
    title="What attacks reach, beside what differential privacy allows",
    paper="Balle22; Hayes et al. 2023",
    run=_run,
)
