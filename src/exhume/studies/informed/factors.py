"""What makes a record easy to reconstruct: the model's width, depth and rate, and the record's gradient.

Balle22 names these factors and leaves the numbers to a longer version. One factor is varied at a time,
on the same records, starts drawn from the same keys, the same shadows and targets; errors are compared
target by target. The norm of a target's gradient needs the truth: it is computed after the attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from exhume.auditing import Game
from exhume.score.correlation import Correlation, rank_correlation
from exhume.settings import DataSettings, VictimSettings
from exhume.studies.arms import BALLE22, ERROR, Bench, arm_metrics
from exhume.studies.claims import spread
from exhume.studies.framework import Chart, Claims, Outcome, Run, Scale, Stated, Study
from exhume.studies.informed.sweeps import (
    DETAILS,
    MEAN_RECORD,
    NO_NETWORK,
    Swept,
    binned,
    error_chart,
    sweep,
)
from exhume.train.functional import own_gradients

__all__ = ["STUDY"]

_BINS = 8


@dataclass(frozen=True)
class _Setting:
    data: DataSettings  # fixed, target, shadow, public and test records
    factors: Mapping[str, tuple[float, ...]]  # increasing; the usual value is among them
    usual: VictimSettings = BALLE22
    seeds: int = 1


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", 50, 40, 120, 50, 50),
        {"width": (5, 10), "depth": (1, 2), "rate": (0.05, 0.1)},
    ),
    "cpu": _Setting(
        DataSettings("mnist", 200, 100, 500, 200, 1000),
        {"width": (5, 10, 20, 40), "depth": (1, 2, 3), "rate": (0.02, 0.05, 0.1, 0.2)},
        seeds=2,
    ),
    "paper": _Setting(
        DataSettings("mnist", 10_000, 999, 57_000, 1, 1000),
        {"width": (5, 10, 20, 50, 100), "depth": (1, 2, 3), "rate": (0.05, 0.1, 0.2, 0.4)},
        replace(BALLE22, rate=0.2),
    ),
}


def _varied(usual: VictimSettings, factor: str, value: float) -> VictimSettings:
    """The usual model, of one hidden layer, with another width, rate or number of such layers."""
    if factor == "rate":
        return replace(usual, rate=value)
    hidden = (int(value),) if factor == "width" else usual.hidden * int(value)
    return replace(usual, hidden=hidden)


def _run(run: Run[_Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("factors")
    variants = {
        f"{factor}.{value:g}": _varied(setting.usual, factor, value)
        for factor, values in setting.factors.items()
        for value in values
    }
    swept = sweep(
        Bench.of(run, setting.data, setting.usual),
        setting.seeds,
        variants,
        look=_norms,
        intervals=lambda name: key.fold(f"{name}.mse"),
    )
    usual, mean = swept[f"width.{setting.usual.hidden[0]}"], swept[MEAN_RECORD]
    correlations = {
        f"gradient_norm.{where}{kind}": rank_correlation(norm, values, key.fold(where, kind))
        for where, norm in usual.seen.items()
        for kind, values in {"": usual.errors, ".relative": usual.errors / mean.errors}.items()
    }
    metrics: dict[str, float] = {}
    for name in variants:
        metrics |= swept[name].metrics(name, without=DETAILS)
        metrics[f"{name}.mean_record_mse"] = mean.mse
    metrics |= arm_metrics(correlations)
    for factor, values in setting.factors.items():  # target by target
        least, most = (swept[f"{factor}.{v:g}"].errors for v in (values[0], values[-1]))
        metrics |= spread(f"{factor}.change", most - least, key)
    bins = {
        f"at the {where} {'model' if where == 'base' else 'weights'}": binned(
            norm, usual.errors, _BINS, key.fold("bins", where)
        )
        for where, norm in usual.seen.items()
    }
    norms = "Error against gradient norm"
    norm = "gradient norm of the target (bins of equal size)"
    return Outcome(
        claims=_claims(setting, metrics, correlations),
        metrics=metrics,
        deviations=[
            NO_NETWORK,
            f"|D-| = {setting.data.fixed:,}, {setting.data.shadows:,} shadows, {setting.data.targets} "
            f"targets of each of {setting.seeds} seeds.",
            "Every arm trains for 100 steps, whatever accuracy it has reached by then.",
        ],
        charts=[*_charts(setting, swept), Chart(norms, norm, ERROR, bins, x_scale="log")],
    )


def _norms(bench: Bench, game: Game) -> dict[str, Tensor]:
    """Norms of the targets' own gradients, (t,), at the base model and where training starts."""
    fixed, initial = bench.parts.fixed, bench.initial
    base = game.recipe.fit(initial, fixed, fixed.none_for(1), game.key.fold("base"))[0]
    targets, network = bench.parts.target.one_each(), game.recipe.architecture
    return {
        where: own_gradients(network, at.expand(len(targets), -1), targets).norm(dim=1).double()
        for where, at in {"base": base, "initial": initial}.items()
    }


def _charts(setting: _Setting, swept: Swept) -> list[Chart]:
    axes = {
        "width": "neurons of the hidden layer",
        "depth": f"hidden layers of {setting.usual.hidden[0]}",
        "rate": "learning rate",
    }
    return [
        error_chart(
            swept,
            f"Error against {factor}",
            axes[factor],
            {f"{factor}.{v:g}": v for v in values},
            x_scale="linear" if factor == "depth" else "log",
        )
        for factor, values in setting.factors.items()
    ]


def _claims(
    setting: _Setting, metrics: Mapping[str, float], correlations: Mapping[str, Correlation]
) -> Claims:
    def compared(factor: str, statement: str, *, falls: bool) -> Stated:
        values = setting.factors[factor]
        ends = [f"{metrics[f'{factor}.{v:g}.mse']:.4f} at {v:g}" for v in (values[0], values[-1])]
        change, low, high = (metrics[f"{factor}.change{end}"] for end in ("", "_low", "_high"))
        return (
            statement,
            "named as a factor; no number in the excerpt",
            f"MSE {', '.join(ends)}; change {change:+.4f} ({low:+.4f} to {high:+.4f})",
            high < 0 if falls else low > 0,
        )

    norm = correlations["gradient_norm.base"]
    return {
        "width": compared("width", "A wider model gives more of the record away", falls=True),
        "depth": compared("depth", "A deeper model hides the record", falls=False),
        "rate": compared("rate", "A larger learning rate hides the record", falls=False),
        "gradient-norm": (
            "Records with a larger gradient at the base model come back better",
            "named as a factor; no number in the excerpt",
            f"rank correlation with the error {norm}; at the initial weights "
            f"{correlations['gradient_norm.initial']}",
            norm.high < 0,
        ),
    }


_TITLE = "What makes a record easy to reconstruct: width, depth, rate, gradient norm"
STUDY = Study("informed-factors", _TITLE, "Balle22", _SCALES, _run, on_device=True)
