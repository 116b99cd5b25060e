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
from exhume.choices import resolve
from exhume.contract import Key, Progress, Records
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.correlation import Correlation, rank_correlation
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.arms import Arm, play
from exhume.studies.informed.pooled import Pooled, binned, point, spread
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
    def factors(self) -> dict[str, tuple[float, ...]]:
        return {"width": self.widths, "depth": self.depths, "rate": self.rates}

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
class _Seen:
    """One victim's targets over all seeds."""

    attack: Pooled
    mean_record: Tensor  # (t,) errors of the mean record on the same targets
    norms: dict[str, Tensor]  # (t,) each, by where the gradient was taken
    accuracy: float

    def metrics(self, name: str, key: Key) -> dict[str, float]:
        return {
            **self.attack.metrics(name, key),
            f"{name}.test_accuracy": self.accuracy,
            f"{name}.mean_record_mse": float(self.mean_record.mean()),
        }


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    records = data.load("mnist", progress=progress)
    settings = pinned(resolve(Settings(seed, setting.data), records), folder)
    key = Key.from_seed(seed).fold("factors")
    pooled = {
        name: _seen(setting, settings, name, victim, records, folder, progress)
        for name, victim in setting.victims().items()
    }
    metrics = {
        metric: value
        for name, arm in pooled.items()
        for metric, value in arm.metrics(name, key).items()
    }
    usual = pooled[setting.usual]
    error = usual.attack.mse
    correlations = {
        f"gradient_norm.{where}{kind}": rank_correlation(norm, values, key.fold(where, kind))
        for where, norm in usual.norms.items()
        for kind, values in {"": error, ".relative": error / usual.mean_record}.items()
    }
    for name, found in correlations.items():
        metrics |= found.metrics(name)
    metrics |= _changes(setting, pooled, key)
    return Outcome(
        claims=_claims(setting, metrics, correlations),
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


def _seen(  # noqa: PLR0917
    setting: _Setting,
    settings: Settings,
    name: str,
    victim: VictimSettings,
    records: Records,
    folder: RunFolder,
    progress: Progress,
) -> _Seen:
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
    return _Seen(
        Pooled(arms),
        torch.cat(means),
        {where: torch.cat(found) for where, found in norms.items()},
        sum(accuracy) / len(accuracy),
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


def _changes(setting: _Setting, pooled: Mapping[str, _Seen], key: Key) -> dict[str, float]:
    """Error at the largest value of a factor minus that at the smallest, target by target."""
    changes: dict[str, float] = {}
    for factor, values in setting.factors.items():
        least, most = (pooled[f"{factor}.{v:g}"].attack.mse for v in (values[0], values[-1]))
        changes |= spread(f"{factor}.change", most - least, key)
    return changes


def _charts(setting: _Setting, metrics: Mapping[str, float], usual: _Seen, key: Key) -> list[Chart]:
    axes = {
        "width": "neurons of the hidden layer",
        "depth": f"hidden layers of {setting.width}",
        "rate": "learning rate",
    }

    def flat(factor: str, name: str) -> list[Point]:
        return [Point(v, metrics[f"{factor}.{v:g}.{name}"]) for v in setting.factors[factor]]

    charts = [
        Chart(
            f"Error against {factor}",
            axes[factor],
            "mean squared error",
            {
                "closed form": [point(v, f"{factor}.{v:g}.mse", metrics) for v in values],
                "nearest-neighbour oracle": flat(factor, "oracle_mse"),
                "mean record": flat(factor, "mean_record_mse"),
            },
            x_scale="linear" if factor == "depth" else "log",
            y_scale="log",
        )
        for factor, values in setting.factors.items()
    ]
    bins = {
        f"at the {where} {'model' if where == 'base' else 'weights'}": binned(
            norm, usual.attack.mse, _BINS, key.fold("bins", where)
        )
        for where, norm in usual.norms.items()
    }
    norm = "gradient norm of the target (bins of equal size)"
    last = Chart("Error against gradient norm", norm, "mean squared error", bins, x_scale="log")
    return [*charts, last]


def _claims(
    setting: _Setting, metrics: Mapping[str, float], correlations: Mapping[str, Correlation]
) -> list[Claim]:
    def compared(factor: str, statement: str, *, falls: bool) -> Claim:
        values = setting.factors[factor]
        ends = [f"{metrics[f'{factor}.{v:g}.mse']:.4f} at {v:g}" for v in (values[0], values[-1])]
        change, low, high = (metrics[f"{factor}.change{end}"] for end in ("", "_low", "_high"))
        return Claim(
            factor,
            statement,
            "named as a factor; no number in the excerpt",
            f"MSE {', '.join(ends)}; change {change:+.4f} ({low:+.4f} to {high:+.4f})",
            high < 0 if falls else low > 0,
        )

    norm = correlations["gradient_norm.base"]
    return [
        compared("width", "A wider model gives more of the record away", falls=True),
        compared("depth", "A deeper model hides the record", falls=False),
        compared("rate", "A larger learning rate hides the record", falls=False),
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
