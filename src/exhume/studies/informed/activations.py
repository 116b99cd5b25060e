"""Balle22, Table III: which activation of the released model makes reconstruction hard?

A ReLU that is off gives its incoming weights no gradient from the record, so less of the record is stored;
the paper finds ReLU alone to be an outlier among twelve activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from exhume import data
from exhume.choices import resolve
from exhume.contract import Key, Progress
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.informed.sweeps import (
    MEAN_RECORD,
    Pooled,
    difference,
    error_series,
    interval_of,
    sweep,
    sweep_metrics,
)
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned

__all__ = ["PAPER", "STUDY"]

PAPER = {
    "relu": 0.0182,
    "floor": 0.0096,  # max(-0.5, x)
    "elu": 0.0089,
    "sigmoid": 0.0085,
    "softplus": 0.0083,
    "silu": 0.0091,  # Swish
    "leaky-relu": 0.0092,
    "tanh": 0.0086,
    "celu": 0.0077,
    "selu": 0.0083,
    "gelu": 0.0088,
    "identity": 0.0085,
}  # average MSE over 1,000 targets, |D-| = 10,000, 59,000 shadows


@dataclass(frozen=True)
class _Setting:
    data: DataSettings
    victim: VictimSettings
    seeds: int
    activations: tuple[str, ...] = tuple(PAPER)


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=60, targets=60, shadows=150, public=50, test=100),
        VictimSettings(steps=40),
        seeds=1,
        activations=("relu", "elu", "identity"),
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=200, targets=100, shadows=800, public=500, test=1000),
        VictimSettings(),
        seeds=2,
    ),
    "paper": _Setting(
        DataSettings("mnist", fixed=10_000, targets=999, shadows=58_999, public=1, test=1),
        VictimSettings(rate=0.2),
        seeds=1,
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    records = data.load("mnist", progress=progress)
    settings = pinned(
        resolve(Settings(seed=seed, data=setting.data, victim=setting.victim), records), folder
    )
    variants = {name: replace(setting.victim, activation=name) for name in setting.activations}
    arms = sweep(variants, settings, setting.seeds, records, folder, progress=progress)
    claims, found = judge(arms, Key.from_seed(seed).fold("claims"))
    return Outcome(
        claims=claims,
        metrics=sweep_metrics(arms) | found,
        classes=list(records.classes),
        deviations=[
            "The reconstructor is a ridge regression per label in closed form instead of a network.",
            f"|D-| = {setting.data.fixed:,}, rate {setting.victim.rate:g}, {setting.data.shadows:,} "
            "shadow models per activation; the paper: 10,000, 0.2 and 59,000.",
            f"{setting.data.targets} targets on each of {setting.seeds} seeds, the same for all "
            "activations; the paper: 1,000.",
        ],
        charts=[_chart(arms)],
    )


def judge(arms: Mapping[str, Pooled], key: Key) -> tuple[list[Claim], dict[str, float]]:
    """Both claims, decided by comparisons target by target; and the numbers they rest on."""
    others = sorted(
        (name for name in arms if name not in ("relu", MEAN_RECORD)),
        key=lambda name: arms[name].mse,
    )
    relu = arms["relu"]
    gaps = {name: difference(relu, arms[name], key.fold(name)) for name in others}
    least = min(gaps, key=lambda name: gaps[name][0])
    excess = interval_of([relu, *(arms[n] for n in others)], _gap_less_spread, key.fold("spread"))
    low, high = arms[others[0]].mse, arms[others[-1]].mse
    claims = [
        Claim(
            "relu",
            "A ReLU network gives its record away least: its error is above that of every other "
            "activation",
            "0.0182, the others 0.0077 to 0.0096",
            f"{relu.mse:.4f}, the others {low:.4f} ({others[0]}) to {high:.4f} ({others[-1]}); "
            f"above {sum(g[0] > 0 for g in gaps.values())} of {len(gaps)} for certain",
            gaps[least][0] > 0,
        ),
        Claim(
            "close",
            "The others lie close together: all of them differ by less than ReLU differs from the "
            "nearest of them",
            "spread 0.0019, gap 0.0086",
            f"spread {high - low:.4f}, gap {relu.mse - high:.4f}; gap minus spread {excess[0]:.4f} "
            f"to {excess[1]:.4f}",
            excess[0] > 0,
        ),
    ]
    found = {f"{name}.below_relu_by_low": gap[0] for name, gap in gaps.items()}
    found |= {f"{name}.below_relu_by_high": gap[1] for name, gap in gaps.items()}
    found |= {"gap_less_spread_low": excess[0], "gap_less_spread_high": excess[1]}
    return claims, found


def _gap_less_spread(means: Tensor) -> Tensor:
    """(draws, 1 + others), ReLU first: its distance to the worst other, less the others' spread."""
    relu, others = means[:, 0], means[:, 1:]
    worst, best = others.max(1).values, others.min(1).values
    return (relu - worst) - (worst - best)


def _chart(arms: Mapping[str, Pooled]) -> Chart:
    ordered = sorted(set(PAPER) & set(arms), key=lambda name: -arms[name].mse)
    return Chart(
        "Error by activation of the released model",
        "activation",
        "mean squared error",
        {
            **error_series(arms, {name: name for name in ordered}),
            "RecoNN in the paper": [Point(name, PAPER[name]) for name in ordered],
        },
        y_scale="log",
    )


STUDY = Study(
    name="informed-activations",
    title="The activation decides how much a network stores of a record (Table III)",
    paper="Balle22",
    run=_run,
)
