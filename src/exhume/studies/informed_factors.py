"""What makes a record easy to reconstruct: the model's width, depth and rate, and the record's gradient.

Balle22 names these factors and leaves the numbers to a longer version. One factor is varied at a time,
on the same records, starts drawn from the same keys, the same shadows and targets; errors are compared
target by target. The norm of a target's gradient needs the truth: it is computed after the attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume import data
from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.auditing import Game, informed_game
from exhume.contract import Key, Progress, Records
from exhume.plan import resolve
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.correlation import Correlation, rank_correlation
from exhume.score.intervals import bootstrap
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.arms import Arm, play
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned
from exhume.train.functional import own_gradients

__all__ = ["STUDY"]

WHERE = ("base", "initial")  # the parameters at which a target's gradient is taken
_BINS = 8


@dataclass(frozen=True)
class _Setting:
    data: DataSettings
    widths: tuple[int, ...]
    depths: tuple[int, ...]  # hidden layers of the usual width
    rates: tuple[float, ...]
    seeds: int
    width: int = 10  # the usual model: one hidden layer of 10, at this rate
    rate: float = 0.1

    def victims(self) -> dict[str, VictimSettings]:
        """One factor away from the usual model each; the usual one is a part of every factor."""
        usual = VictimSettings(hidden=(self.width,), rate=self.rate)
        return {
            **{f"width.{k}": replace(usual, hidden=(k,)) for k in self.widths},
            **{f"depth.{k}": replace(usual, hidden=(self.width,) * k) for k in self.depths},
            **{f"rate.{r:g}": replace(usual, rate=r) for r in self.rates},
        }

    @property
    def usual(self) -> str:
        return f"width.{self.width}"


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=50, targets=40, shadows=120, public=50, test=50),
        widths=(5, 10),
        depths=(1, 2),
        rates=(0.05, 0.1),
        seeds=1,
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=200, targets=100, shadows=500, public=200, test=1000),
        widths=(5, 10, 20, 40),
        depths=(1, 2, 3),
        rates=(0.02, 0.05, 0.1, 0.2),
        seeds=2,
    ),
    "paper": _Setting(
        DataSettings("mnist", fixed=10_000, targets=999, shadows=57_000, public=1, test=1000),
        widths=(5, 10, 20, 50, 100),
        depths=(1, 2, 3),
        rates=(0.05, 0.1, 0.2, 0.4),
        seeds=1,
        rate=0.2,
    ),
}


@dataclass(frozen=True, eq=False)
class _Pooled:
    """An arm's targets over all seeds."""

    mse: Tensor  # (t,)
    mean_record: Tensor  # (t,) errors of the mean record on the same targets
    norms: dict[str, Tensor]  # (t,) each, by where the gradient was taken
    arms: list[Arm]
    accuracy: float

    def metrics(self, name: str, key: Key) -> dict[str, float]:
        shown = ("label_accuracy", "success", "null_success", "oracle_mse")
        low, high = bootstrap(self.mse, key)
        return {
            f"{name}.mse": float(self.mse.mean()),
            f"{name}.mse_low": low,
            f"{name}.mse_high": high,
            f"{name}.targets": len(self.mse),
            f"{name}.test_accuracy": self.accuracy,
            f"{name}.mean_record_mse": float(self.mean_record.mean()),
            **{
                f"{name}.{metric}": _mean([arm.scores.metrics[metric] for arm in self.arms])
                for metric in shown
            },
        }


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    records = data.load("mnist", progress=progress)
    settings = pinned(resolve(Settings(seed, setting.data), records), folder)
    key = Key.from_seed(seed).fold("factors")
    pooled = {
        name: _pooled(setting, settings, name, victim, records, folder, progress)
        for name, victim in setting.victims().items()
    }
    metrics = {
        metric: value
        for name, arm in pooled.items()
        for metric, value in arm.metrics(name, key.fold(name)).items()
    }
    usual = pooled[setting.usual]
    correlations = {
        f"gradient_norm.{where}{kind}": rank_correlation(norm, error, key.fold(where, kind))
        for where, norm in usual.norms.items()
        for kind, error in {"": usual.mse, ".relative": usual.mse / usual.mean_record}.items()
    }
    for name, found in correlations.items():
        metrics |= found.metrics(name)
    changes = _changes(setting, pooled, key)
    for name, (change, low, high) in changes.items():
        metrics |= {f"{name}.change": change, f"{name}.change_low": low}
        metrics[f"{name}.change_high"] = high
    return Outcome(
        claims=_claims(setting, metrics, changes, correlations),
        metrics=metrics,
        classes=list(records.classes),
        deviations=[
            "The closed form attacks instead of the published network.",
            f"|D-| = {setting.data.fixed:,}, {setting.data.shadows:,} shadows, {setting.data.targets} "
            f"targets of each of {setting.seeds} seeds.",
            "Every arm trains for 100 steps, whatever accuracy it has reached by then.",
        ],
        charts=_charts(setting, metrics, usual, key),
    )


def _pooled(  # noqa: PLR0917
    setting: _Setting,
    settings: Settings,
    name: str,
    victim: VictimSettings,
    records: Records,
    folder: RunFolder,
    progress: Progress,
) -> _Pooled:
    store, arms, means, accuracy = folder.store(), [], [], []
    norms: dict[str, list[Tensor]] = {where: [] for where in WHERE}
    own = replace(settings, victim=victim)
    chunk = min(
        settings.machine.chunk, resolve(_unchunked(own), records).machine.chunk
    )  # wider models take more memory
    for index in range(setting.seeds):

        def shown(stage: str, done: int, total: int, index: int = index) -> None:
            progress(f"{name.replace('.', ' ')}, seed {index + 1}: {stage}", done, total)

        game = informed_game(
            own.with_seed(settings.seed + index).with_values("machine", chunk=chunk),
            records,
            store=store,
            progress=shown,
        )
        arm = play(game, ClosedForm(chunk=chunk), store=store, progress=shown)
        arms.append(arm)
        means.append(play(game, MeanRecord(), store=store, progress=shown).scores.attack.mse)
        accuracy.append(float(game.facts["test_accuracy"]))
        for where, found in _norms(game, arm, records.classes).items():
            norms[where].append(found)
    return _Pooled(
        torch.cat([arm.scores.attack.mse for arm in arms]),
        torch.cat(means),
        {where: torch.cat(found) for where, found in norms.items()},
        arms,
        _mean(accuracy),
    )


def _unchunked(settings: Settings) -> Settings:
    return replace(settings, machine=replace(settings.machine, chunk=0))


def _norms(game: Game, arm: Arm, classes: tuple[str, ...]) -> dict[str, Tensor]:
    """Norms of the targets' own gradients, (t,), at the base model and where training starts."""
    fixed, initial = game.knowledge.fixed, game.knowledge.initial
    assert fixed is not None
    assert initial is not None
    base = game.recipe.fit(initial, fixed, fixed.none_for(1), game.key.fold("base"))[0]
    seen = arm.scores.evidence
    targets = Records(seen["targets"], seen["labels"], classes).one_each()
    return {
        where: own_gradients(game.recipe.architecture, at.expand(len(targets), -1), targets)
        .norm(dim=1)
        .double()
        for where, at in zip(WHERE, (base, initial), strict=True)
    }


def _changes(
    setting: _Setting, pooled: Mapping[str, _Pooled], key: Key
) -> dict[str, tuple[float, float, float]]:
    """Error at the largest value of a factor minus that at the smallest, target by target."""
    ends = {
        "width": (setting.widths[0], setting.widths[-1]),
        "depth": (setting.depths[0], setting.depths[-1]),
        "rate": (setting.rates[0], setting.rates[-1]),
    }
    changes = {}
    for factor, (least, most) in ends.items():
        paired = pooled[f"{factor}.{most:g}"].mse - pooled[f"{factor}.{least:g}"].mse
        changes[factor] = (float(paired.mean()), *bootstrap(paired, key.fold("change", factor)))
    return changes


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _charts(
    setting: _Setting, metrics: Mapping[str, float], usual: _Pooled, key: Key
) -> list[Chart]:
    def curve(factor: str, values: tuple[float, ...]) -> list[Point]:
        names = [f"{factor}.{value:g}" for value in values]
        return [
            Point(value, *(metrics[f"{n}.{m}"] for m in ("mse", "mse_low", "mse_high")))
            for value, n in zip(values, names, strict=True)
        ]

    def flat(factor: str, values: tuple[float, ...], name: str) -> list[Point]:
        return [Point(value, metrics[f"{factor}.{value:g}.{name}"]) for value in values]

    factors = {
        "width": ("Width", "neurons of the hidden layer", setting.widths),
        "depth": ("Depth", f"hidden layers of {setting.width}", setting.depths),
        "rate": ("Learning rate", "learning rate", setting.rates),
    }
    charts = [
        Chart(
            f"{title} of the released model",
            axis,
            "mean squared error",
            {
                "closed form": curve(factor, values),
                "nearest-neighbour oracle": flat(factor, values, "oracle_mse"),
                "mean record": flat(factor, values, "mean_record_mse"),
            },
            x_scale="linear" if factor == "depth" else "log",
            y_scale="log",
        )
        for factor, (title, axis, values) in factors.items()
    ]
    binned = {
        f"at the {where} {'model' if where == 'base' else 'weights'}": _binned(
            norm, usual.mse, key.fold("bins", where)
        )
        for where, norm in usual.norms.items()
    }
    norm = "gradient norm of the target (medians of equal bins)"
    return [
        *charts,
        Chart("Gradient of the target", norm, "mean squared error", binned, x_scale="log"),
    ]


def _binned(norms: Tensor, errors: Tensor, key: Key) -> list[Point]:
    """Mean error of targets with about the same norm, bins of equal size."""
    order = torch.argsort(norms)
    points = []
    for index, rows in enumerate(torch.tensor_split(order, _BINS)):
        low, high = bootstrap(errors[rows], key.fold(index))
        points.append(Point(float(norms[rows].median()), float(errors[rows].mean()), low, high))
    return points


def _claims(
    setting: _Setting,
    metrics: Mapping[str, float],
    changes: Mapping[str, tuple[float, float, float]],
    correlations: Mapping[str, Correlation],
) -> list[Claim]:
    def compared(factor: str, statement: str, values: tuple[float, ...], *, falls: bool) -> Claim:
        change, low, high = changes[factor]
        least, most = (metrics[f"{factor}.{value:g}.mse"] for value in (values[0], values[-1]))
        return Claim(
            factor,
            statement,
            "named as a factor; no number in the excerpt",
            f"MSE {least:.4f} at {values[0]:g}, {most:.4f} at {values[-1]:g}; change {change:+.4f} "
            f"({low:+.4f} to {high:+.4f})",
            high < 0 if falls else low > 0,
        )

    norm = correlations["gradient_norm.base"]
    return [
        compared(
            "width", "A wider model gives more of the record away", setting.widths, falls=True
        ),
        compared("depth", "A deeper model hides the record", setting.depths, falls=False),
        compared("rate", "A larger learning rate hides the record", setting.rates, falls=False),
        Claim(
            "gradient-norm",
            "Records with a larger gradient at the base model come back better",
            "named as a factor; no number in the excerpt",
            f"rank correlation with the error {norm}; at the initial weights "
            f"{correlations['gradient_norm.initial']}",
            norm.high < 0,
        ),
    ]


STUDY = Study(
    name="informed-factors",
    title="What makes a record easy to reconstruct: width, depth, rate, gradient norm",
    paper="Balle22",
    run=_run,
)
