"""Balle22, Fig. 12: does it matter when the adversary first sees the model?

The adversary knows the parameters at which the training it attacks begins: fresh ones, or a model trained
before on other records. Nearer to convergence the unknown record changes the weights less and differently;
the paper finds reconstruction harder there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from exhume.auditing import Game
from exhume.core.contract import Key
from exhume.settings import DataSettings
from exhume.studies.arms import BALLE22, Bench, arm_metrics
from exhume.studies.claims import Range
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.informed.sweeps import (
    Pooled,
    Sweep,
    difference,
    error_chart,
    increases,
    sweep,
)
from exhume.train.functional import accuracy

__all__ = ["STUDY"]

_STEPS = (0, 10, 100, 1000)  # of earlier training, on the public records
_SCALES: dict[Scale, Sweep[int]] = {
    "smoke": Sweep(
        DataSettings("mnist", 60, 50, 150, 300, 200), replace(BALLE22, steps=40), _STEPS[:3]
    ),
    "cpu": Sweep(DataSettings("mnist", 300, 100, 800, 10_000, 1000), BALLE22, _STEPS, seeds=2),
    "paper": Sweep(
        DataSettings("mnist", 10_000, 1000, 48_000, 10_000, 1000),
        replace(BALLE22, rate=0.2),
        _STEPS,
    ),
}


def _run(run: Run[Sweep[int]]) -> Outcome:
    setting, sizes = run.setting, run.setting.data
    steps = {f"before_{count}": count for count in setting.values}
    swept = sweep(
        Bench.of(run, sizes, setting.victim),
        setting.seeds,
        dict.fromkeys(steps, setting.victim),
        start=lambda name, own: trained_before(own, steps[name]),
        look=_reached,
    )
    reached = {name: float(swept[name].seen["reached"].mean()) for name in steps}
    by_steps = {count: swept[name] for name, count in steps.items()}
    found, said = judge(by_steps, run.key.fold("claims"))
    found |= {f"{name}.start_accuracy": value for name, value in reached.items()}
    title = "Error against where the attacked training starts"
    axis = "test accuracy of the model at the start"
    return Outcome(
        said=said,
        metrics=arm_metrics(swept) | found,
        charts=[error_chart(swept, title, axis, reached)],
    )


def trained_before(bench: Bench, steps: int) -> Tensor:
    """(p,) parameters after so many steps on the public records alone."""
    recipe = bench.of_victim(replace(bench.settings.victim, steps=max(1, steps))).recipe
    public, begun = bench.parts.public, bench.initial
    if not steps:
        return begun
    return recipe.fit(begun, public, public.none_for(1), bench.key.fold("before"))[0]


def _reached(bench: Bench, game: Game) -> dict[str, Tensor]:
    """Test accuracy of the parameters at which training starts."""
    initial = game.knowledge.initial
    assert initial is not None  # the informed adversary has it
    return {"reached": accuracy(game.recipe.architecture, initial[None], bench.parts.test)}


def judge(arms: Mapping[int, Pooled], key: Key) -> tuple[dict[str, float], dict[str, object]]:
    """arms: by the steps of earlier training, increasing from 0."""
    found, said = increases(arms, key)
    fresh, late = min(arms), max(arms)
    low, high = difference(arms[late], arms[fresh], key.fold("whole"))
    found |= {"late_minus_fresh_low": low, "late_minus_fresh_high": high}
    said |= {"fresh": fresh, "late": late, "success": Range(*arms[late].success)}
    return found, said | {"chance": arms[late].chance[1], "above_chance": arms[late].above_chance}


STUDY = Study("informed-start", _SCALES, _run, on_device=True)
