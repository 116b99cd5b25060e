"""Balle22, Fig. 15: does it help to train the released model longer?

On CIFAR-10 the paper finds an error that grows slowly with the released model's epochs and jumps at 240 to
250 of them. One epoch is one step here, since every step sees every record. The jump is tested at the
paper's scale only; below it the same sweep runs on the MNIST network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exhume.core.contract import Key
from exhume.core.results import Chart, Point
from exhume.settings import DataSettings
from exhume.studies.arms import BALLE22, BALLE22_CNN, Bench, arm_metrics
from exhume.studies.claims import Range
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.informed.sweeps import (
    Pooled,
    Sweep,
    difference,
    error_chart,
    increases,
    ridge_on,
    sweep,
)

__all__ = ["STUDY"]

_BEFORE, _AFTER = 230, 260  # epochs on either side of the paper's jump


_SCALES: dict[Scale, Sweep[int]] = {  # values: steps
    "smoke": Sweep(DataSettings("mnist", 60, 50, 150, 50, 200), BALLE22, (1, 10, 60)),
    "cpu": Sweep(
        DataSettings("mnist", 300, 100, 800, 500, 1000), BALLE22, (1, 3, 10, 30, 100, 200, 300), 2
    ),
    "paper": Sweep(
        DataSettings("cifar10", 5000, 999, 53_999, 1, 1),
        BALLE22_CNN,
        (1, 10, 50, 100, 150, 200, _BEFORE, 240, 250, _AFTER),
    ),
}


def _run(run: Run[Sweep[int]]) -> Outcome:
    setting = run.setting
    steps = {f"steps_{count}": count for count in setting.values}
    variants = {name: replace(setting.victim, steps=count) for name, count in steps.items()}
    swept = sweep(Bench.of(run, setting.data, setting.victim), setting.seeds, variants)
    by_steps = {count: swept[name] for name, count in steps.items()}
    found, said = judge(by_steps, run.key.fold("claims"))
    title, axis = "Error against the released model's steps", "steps of full-batch training"
    points = [Point(count, arm.measured["test_accuracy"]) for count, arm in by_steps.items()]
    accuracies = {"released models": points}
    return Outcome(
        said=said,
        metrics=arm_metrics(swept) | found,
        deviations=_deviations(setting),
        charts=[
            error_chart(swept, title, axis, steps, x_scale="log"),
            Chart("The released model's accuracy", axis, "test accuracy", accuracies, "log"),
        ],
    )


def judge(arms: Mapping[int, Pooled], key: Key) -> tuple[dict[str, float], dict[str, object]]:
    """arms: by the number of steps, increasing."""
    found, said = increases(arms, key)
    first, last = min(arms), max(arms)
    said |= {"first": first, "last": last}
    said["whole"] = Range(*difference(arms[last], arms[first], key.fold("whole")))
    said["above_chance"] = [arm.above_chance for arm in arms.values()]
    said["least"] = min(arm.success[0] for arm in arms.values())
    said["chance"] = max(arm.chance[1] for arm in arms.values())
    if {_BEFORE, _AFTER} <= set(arms):
        said["jump"] = arms[_AFTER].mse / arms[_BEFORE].mse
    return found, said


def _deviations(setting: Sweep[int]) -> list[str]:
    sizes = setting.data
    return [
        *ridge_on(sizes, " Its jump near 240 epochs is not tested here (--scale paper does)."),
        f"{sizes.targets} targets on each of {setting.seeds} seeds, {sizes.shadows:,} shadow models "
        "for each number of steps.",
    ]


STUDY = Study("informed-epochs", _SCALES, _run, on_device=True)
