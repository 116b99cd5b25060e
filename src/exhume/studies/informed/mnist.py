"""Balle22 on MNIST, in the setting of the authors' public notebook, with the closed-form reconstructor.

The notebook trains a 9.7M-parameter network on 10,000 shadow models for 200 epochs and reaches a
held-out MAE + MSE of about 0.0583; scale `long` trains it too. The closed form is blind: label, penalties
and kernel are chosen on the shadows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.reconn import RecoNN
from exhume.auditing import DEVIATIONS
from exhume.auditing.plan import Stage, game_stages, reconn_stage
from exhume.settings import DataSettings, VictimSettings
from exhume.studies.arms import BALLE22, Bench, arm_metrics
from exhume.studies.claims import mean_of
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.plan import stand_in

_NOTEBOOK = Training(rate=3e-4, batch=32, epochs=200)
_SPREAD = ("mse", "mae_plus_mse", "label_accuracy", "success")  # over seeds


@dataclass(frozen=True)
class _Setting:
    data: DataSettings  # fixed, target, shadow, public and test records
    victim: VictimSettings
    seeds: int
    network: Training | None = (
        None  # of RecoNN as published, on the first seed; None: it is not run
    )


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", 100, 50, 300, 200, 500),
        BALLE22,
        seeds=2,
        network=replace(_NOTEBOOK, epochs=2),
    ),
    "cpu": _Setting(DataSettings("mnist", 1000, 500, 2000, 1000, 1000), BALLE22, seeds=3),
    "long": _Setting(
        DataSettings("mnist", 1000, 500, 10_000, 1000, 1000), BALLE22, seeds=1, network=_NOTEBOOK
    ),
    "paper": _Setting(
        DataSettings("mnist", 10_000, 999, 58_999, 1, 1), replace(BALLE22, rate=0.2), seeds=1
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting = run.setting
    bench = Bench.of(run, setting.data, setting.victim)
    runs = [own.audited() for own in bench.seeds(setting.seeds)]
    metrics = mean_of((run.metrics for run in runs), _SPREAD)
    if setting.network:
        reconn = RecoNN(training=setting.network, chunk=bench.chunk)
        metrics |= arm_metrics({f"reconn.{setting.data.shadows}": bench.play(bench.game(), reconn)})
    return Outcome(
        metrics=metrics,
        attacks=[runs[0]],
        classes=list(bench.records.classes),
        deviations=[
            *DEVIATIONS,
            f"The gallery and the figures show seed {run.seed}; the metrics are means over "
            f"{setting.seeds} seeds.",
        ],
    )


def _stages(setting: _Setting) -> list[Stage]:
    recipe, shape, classes = stand_in(setting.data, setting.victim)
    stages = game_stages(recipe, setting.data, shape, classes) * setting.seeds
    if setting.network:
        stages += [reconn_stage(RecoNN(training=setting.network), recipe, setting.data, shape)]
    return stages


STUDY = Study("informed-mnist", _SCALES, _run, on_device=True, stages=_stages)
