"""Balle22, Table III: which activation of the released model makes reconstruction hard?

A ReLU that is off gives its incoming weights no gradient from the record, so less of the record is stored;
the paper finds ReLU alone to be an outlier among twelve activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from exhume.core.contract import Key
from exhume.core.results import Point
from exhume.settings import DataSettings
from exhume.studies.arms import BALLE22, Bench, arm_metrics
from exhume.studies.claims import said_of
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.informed.sweeps import (
    MEAN_RECORD,
    Pooled,
    Sweep,
    difference,
    error_chart,
    interval_of,
    sweep,
)

__all__ = ["PAPER", "STUDY"]


PAPER: dict[str, float] = said_of("informed-activations")["published"]

_SCALES: dict[Scale, Sweep[str]] = {
    "smoke": Sweep(
        DataSettings("mnist", 60, 60, 150, 50, 100),
        replace(BALLE22, steps=40),
        values=("relu", "elu", "identity"),
    ),
    "cpu": Sweep(
        DataSettings("mnist", 200, 100, 800, 500, 1000), BALLE22, values=tuple(PAPER), seeds=2
    ),
    "paper": Sweep(
        DataSettings("mnist", 10_000, 999, 58_999, 1, 1),
        replace(BALLE22, rate=0.2),
        values=tuple(PAPER),
    ),
}


def _run(run: Run[Sweep[str]]) -> Outcome:
    setting = run.setting
    sizes, victim, seeds = setting.data, setting.victim, setting.seeds
    variants = {name: replace(victim, activation=name) for name in setting.values}
    swept = sweep(Bench.of(run, sizes, victim), seeds, variants)
    found, said = judge(swept, run.key.fold("claims"))
    places = {name: name for name in sorted(variants, key=lambda name: -swept[name].mse)}
    paper = {"RecoNN in the paper": [Point(name, PAPER[name]) for name in places]}
    title = "Error by activation of the released model"
    return Outcome(
        said=said,
        metrics=arm_metrics(swept) | found,
        charts=[error_chart(swept, title, "activation", places, beside=paper)],
    )


def judge(arms: Mapping[str, Pooled], key: Key) -> tuple[dict[str, float], dict[str, object]]:
    """Comparisons target by target, as metrics and as the claims ask for them."""
    relu, names = arms["relu"], [name for name in arms if name not in ("relu", MEAN_RECORD)]
    others = sorted(names, key=lambda name: arms[name].mse)
    gaps = {name: difference(relu, arms[name], key.fold(name)) for name in others}
    excess = interval_of([relu, *(arms[n] for n in others)], _gap_less_spread, key.fold("spread"))
    low, high = arms[others[0]].mse, arms[others[-1]].mse
    found = {f"{name}.below_relu_by_low": gap[0] for name, gap in gaps.items()}
    found |= {f"{name}.below_relu_by_high": gap[1] for name, gap in gaps.items()}
    found |= {"gap_less_spread_low": excess[0], "gap_less_spread_high": excess[1]}
    return found, {
        **{"relu": relu.mse, "low": low, "high": high, "best": others[0], "worst": others[-1]},
        **{"spread": high - low, "gap": relu.mse - high, "gaps": list(gaps.values())},
        **{"certain": sum(g[0] > 0 for g in gaps.values()), "compared": len(gaps)},
    }


def _gap_less_spread(means: Tensor) -> Tensor:
    """(draws, 1 + others), ReLU first: its distance to the worst other, less the others' spread."""
    relu, others = means[:, 0], means[:, 1:]
    worst, best = others.max(1).values, others.min(1).values
    return (relu - worst) - (worst - best)


STUDY = Study("informed-activations", _SCALES, _run, on_device=True)
