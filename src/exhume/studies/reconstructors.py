"""How well and how fast: every reconstructor of the informed adversary, on the authors' notebook setting.

Error against the number of shadow models and against seconds, for the closed form, the published
network, and differentiating through training, which needs no shadow model and no data of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from exhume import data
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.reconn import RecoNN
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.auditing import Game, informed_game
from exhume.contract import Progress, Records, Store
from exhume.plan import resolve
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.arms import Arm, play
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Large:
    """The paper's own |D-| and rate."""

    data: DataSettings
    shadows: tuple[int, ...]
    through: int = (
        0  # targets differentiated through training; preparing that takes a quarter of an hour
    )
    rate: float = 0.2


@dataclass(frozen=True)
class _Setting:
    data: DataSettings
    shadows: tuple[int, ...]  # of the closed form, ELU; the largest is data.shadows
    relu: int  # shadows of the closed form, ReLU
    reconn: int  # shadows of the published network, first seed only
    through: int  # targets differentiated through training
    seeds: int
    epochs: int = 100
    rate: float = 0.1
    large: _Large | None = None


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=100, targets=30, shadows=200, public=100, test=100),
        shadows=(100, 200),
        relu=100,
        reconn=100,
        through=2,
        seeds=1,
        epochs=2,
        large=_Large(
            DataSettings("mnist", fixed=150, targets=10, shadows=40, public=1, test=1), (20, 40)
        ),
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=1000, targets=500, shadows=8000, public=1000, test=1000),
        shadows=(500, 2000, 8000),
        relu=2000,
        reconn=2000,
        through=16,
        seeds=3,
        large=_Large(
            DataSettings("mnist", fixed=10_000, targets=100, shadows=1000, public=1, test=1),
            shadows=(250, 500, 1000),
        ),
    ),
    "paper": _Setting(
        DataSettings("mnist", fixed=10_000, targets=999, shadows=58_999, public=1, test=1),
        shadows=(2000, 8000, 58_999),
        relu=58_999,
        reconn=58_999,
        through=999,
        seeds=1,
        rate=0.2,
    ),
}


def _measure(
    setting: _Setting, settings: Settings, records: Records, folder: RunFolder, progress: Progress
) -> dict[str, Arm]:
    """All arms of one seed."""
    store, targets = folder.store(), setting.data.targets
    closed = ClosedForm(chunk=settings.machine.chunk)
    elu = informed_game(settings, records, store=store, progress=progress)
    arms = {
        f"closed_form.{shadows}": play(
            elu, closed, store=store, progress=progress, shadows=shadows, targets=targets
        )
        for shadows in setting.shadows
    }
    arms["through_training"] = _exact(elu, setting.through, store, progress)
    bent = settings.with_values("victim", activation="relu")
    relu = informed_game(bent, records, store=store, progress=progress)
    arms[f"relu.closed_form.{setting.relu}"] = play(
        relu, closed, store=store, progress=progress, shadows=setting.relu, targets=targets
    )
    return arms


def _exact(game: Game, targets: int, store: Store, progress: Progress) -> Arm:
    return play(game, ThroughTraining(), store=store, progress=progress, shadows=0, targets=targets)


def _paper_setting(
    large: _Large, settings: Settings, records: Records, folder: RunFolder, progress: Progress
) -> dict[str, Arm]:
    """|D-| and rate of the paper, on one seed, with as many shadows as an hour allows."""
    store = folder.store()
    settings = resolve(
        replace(
            settings,
            data=large.data,
            victim=replace(settings.victim, rate=large.rate),
            machine=replace(settings.machine, chunk=0),
        ),
        records,
    )
    game = informed_game(settings, records, store=store, progress=progress)
    arms = {}
    for shadows in large.shadows:
        closed = ClosedForm(chunk=settings.machine.chunk)
        arms[f"paper_setting.closed_form.{shadows}"] = play(
            game, closed, store=store, progress=progress, shadows=shadows
        )
    if large.through:
        arms["paper_setting.through_training"] = _exact(game, large.through, store, progress)
    return arms


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    records = data.load("mnist", progress=progress)
    victim = VictimSettings(rate=setting.rate)
    settings = pinned(
        resolve(Settings(seed=seed, data=setting.data, victim=victim), records), folder
    )
    runs = [
        _measure(setting, settings.with_seed(seed + i), records, folder, progress)
        for i in range(setting.seeds)
    ]
    metrics = _averaged([_metrics(arms) for arms in runs])
    published = RecoNN(training=Training(epochs=setting.epochs), chunk=settings.machine.chunk)
    game = informed_game(settings, records, store=folder.store(), progress=progress)
    network = play(game, published, store=folder.store(), progress=progress, shadows=setting.reconn)
    metrics |= network.metrics(f"reconn.{setting.reconn}")
    if setting.large:
        metrics |= _metrics(_paper_setting(setting.large, settings, records, folder, progress))
    return Outcome(
        claims=_claims(setting, metrics),
        metrics=metrics,
        classes=list(records.classes),
        deviations=[
            f"Means over {setting.seeds} seeds; RecoNN on the first seed only.",
            f"Through training attacks the first {setting.through} targets of each seed, the other "
            f"arms all {setting.data.targets}.",
            "Seconds include the shadow models, unless an earlier arm had trained them already.",
            "The paper's setting (|D-| = 10,000, rate 0.2) is run on the first seed only.",
        ],
        charts=_charts(setting, metrics),
    )


def _metrics(arms: Mapping[str, Arm]) -> dict[str, float]:
    return {name: value for arm in arms for name, value in arms[arm].metrics(arm).items()}


def _averaged(runs: list[dict[str, float]]) -> dict[str, float]:
    metrics = {name: fmean(run[name] for run in runs) for name in runs[0]}
    if len(runs) > 1:
        sums = [name for name in runs[0] if name.endswith("mae_plus_mse")]
        metrics |= {f"{name}_std": stdev(run[name] for run in runs) for name in sums}
    return metrics


def _charts(setting: _Setting, metrics: Mapping[str, float]) -> list[Chart]:
    def curve(prefix: str, shadows: Sequence[int]) -> list[Point]:
        return [
            Point(
                count,
                metrics[f"{prefix}closed_form.{count}.mse"],
                metrics[f"{prefix}closed_form.{count}.mse_low"],
                metrics[f"{prefix}closed_form.{count}.mse_high"],
            )
            for count in shadows
        ]

    series = {
        "closed form, ELU": curve("", setting.shadows),
        "closed form, ReLU": curve("relu.", (setting.relu,)),
        "RecoNN, ELU": [Point(setting.reconn, metrics[f"reconn.{setting.reconn}.mse"])],
    }
    if setting.large:
        fixed = setting.large.data.fixed
        series[f"closed form, |D-| = {fixed:,}"] = curve("paper_setting.", setting.large.shadows)
        series["RecoNN in the paper, |D-| = 10,000"] = [Point(59_000, 0.0089)]
    return [
        Chart(
            "Error against shadow models",
            "shadow models",
            "mean squared error",
            series,
            x_scale="log",
            y_scale="log",
        )
    ]


def _claims(setting: _Setting, metrics: Mapping[str, float]) -> list[Claim]:
    few, many = setting.shadows[0], setting.shadows[-1]
    middle = setting.reconn if setting.reconn in setting.shadows else few
    exact, network = (
        metrics["through_training.mse"],
        metrics[f"reconn.{setting.reconn}.mae_plus_mse"],
    )
    closed = metrics[f"closed_form.{middle}.mae_plus_mse"]
    return [
        Claim(
            "exact",
            "Differentiating through training returns the records exactly, without shadows or data",
            "average MSE 0.0089 with 59,000 shadows at |D-| = 10,000",
            f"MSE {exact:.1e}, labels {metrics['through_training.label_accuracy']:.1%}",
            exact < 1e-4,
        ),
        Claim(
            "closed-form",
            "The closed form beats the published network at the same number of shadows",
            "held-out MAE + MSE 0.0583 with 10,000 shadows",
            f"{closed:.4f} against {network:.4f} at {middle:,} shadows",
            closed < network,
        ),
        Claim(
            "shadows",
            "More shadow models, smaller error",
            "shown for the network",
            f"MSE {metrics[f'closed_form.{few}.mse']:.4f} at {few:,}, "
            f"{metrics[f'closed_form.{many}.mse']:.4f} at {many:,}",
            metrics[f"closed_form.{many}.mse"] < metrics[f"closed_form.{few}.mse"],
        ),
    ]


STUDY = Study(
    name="reconstructors",
    title="Closed form, network, or through training: error against shadows and seconds",
    paper="Balle22",
    run=_run,
)
