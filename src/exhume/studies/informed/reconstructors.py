"""How well and how fast: every reconstructor of the informed adversary, on the authors' notebook setting.

Error against the number of shadow models and against seconds, for the closed form, with and without a
network that corrects it, the published network, the Mnemonist's selection, and differentiating through
training, which needs no shadow model and no data of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.mnemonist import Mnemonist
from exhume.attacks.informed.reconn import RecoNN
from exhume.attacks.informed.residual import Residual
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.settings import DataSettings
from exhume.studies.arms import BALLE22, Arm, Bench, arm_metrics
from exhume.studies.claims import mean_of
from exhume.studies.framework import Outcome, Run, Scale, Study

_NOTEBOOK_RATE = 3e-4  # of its RMSProp


@dataclass(frozen=True)
class _Large:
    """The paper's own |D-| and rate."""

    data: DataSettings
    shadows: tuple[int, ...]  # with the most of them a network corrects the closed form too
    rate: float = 0.2
    through: int = 0  # targets differentiated through training

    @property
    def most(self) -> int:
        return self.shadows[-1]


@dataclass(frozen=True)
class _Setting:
    data: DataSettings
    shadows: tuple[int, ...]  # of the closed form, ELU; the largest is data.shadows
    corrected: tuple[int, ...]  # of `shadows`, at which a network corrects the closed form
    middle: int  # of `shadows`: those of ReLU's arms, of the published network and the Mnemonist
    notebook: int  # those of the authors' notebook, for its network; first seed only
    through: int  # targets differentiated through training, first seed only
    seeds: int
    questions: float = 3.0  # that it asks, for each input
    relu_through: int = 0  # of ReLU; at the scale of two cores its search does not end in minutes
    epochs: int = 100
    notebook_epochs: int = 200
    drawings: int = 60_000  # that train the correction, all epochs together
    rate: float = 0.1
    large: _Large | None = None


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=100, targets=30, shadows=200, public=100, test=100),
        shadows=(100, 200),
        middle=100,
        notebook=150,
        through=2,
        questions=1.2,
        seeds=1,
        epochs=2,
        notebook_epochs=2,
        corrected=(200,),
        drawings=4_000,
        large=_Large(
            DataSettings("mnist", fixed=150, targets=10, shadows=40, public=1, test=1), (20, 40)
        ),
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=1000, targets=500, shadows=10_000, public=1000, test=1000),
        shadows=(500, 2000, 8000),
        middle=2000,
        notebook=10_000,
        through=16,
        seeds=3,
        corrected=(2000,),
        large=_Large(
            DataSettings("mnist", fixed=10_000, targets=100, shadows=6000, public=1, test=1),
            shadows=(250, 1000, 6000),
            through=4,
        ),
    ),
    "paper": _Setting(
        DataSettings("mnist", fixed=10_000, targets=999, shadows=58_999, public=1, test=1),
        shadows=(2000, 8000, 58_999),
        middle=58_999,
        notebook=10_000,
        through=999,
        relu_through=999,
        seeds=1,
        corrected=(8000, 58_999),
        drawings=600_000,
        rate=0.2,
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting = run.setting
    bench = Bench.of(run, setting.data, replace(BALLE22, rate=setting.rate))
    runs = [arm_metrics(_each_seed(own, setting)) for own in bench.seeds(setting.seeds)]
    metrics = mean_of(runs, [name for name in runs[0] if name.endswith("mae_plus_mse")])
    metrics |= arm_metrics(_first_seed(bench, setting))
    if setting.large:
        metrics |= arm_metrics(_paper_setting(bench, setting, setting.large))
    return Outcome(
        said={**compared(setting, metrics), "timed": timed(setting, metrics)},
        metrics=metrics,
        classes=list(bench.records.classes),
    )


def _each_seed(bench: Bench, setting: _Setting) -> dict[str, Arm]:
    middle = (setting.middle,)
    arms = {}
    for prefix, game, counts, corrected in (
        ("", bench.game(), setting.shadows, setting.corrected),
        ("relu.", _relu(bench).game(), middle, middle),
    ):
        for n in counts:
            arms[f"{prefix}closed_form.{n}"] = bench.play(game, shadows=n)
        for n in corrected:
            arms[f"{prefix}corrected.{n}"] = bench.play(
                game, _corrected(bench, setting, n), shadows=n
            )
    return arms


def _corrected(bench: Bench, setting: _Setting, shadows: int) -> Residual:
    """As much training whatever the shadows."""
    usual = Residual(chunk=bench.chunk)
    epochs = max(1, setting.drawings // shadows)
    return replace(usual, training=replace(usual.training, epochs=epochs))


def _relu(bench: Bench) -> Bench:
    return bench.of_victim(replace(bench.settings.victim, activation="relu"))


def _first_seed(bench: Bench, setting: _Setting) -> dict[str, Arm]:
    """What is run on the first seed only."""
    published = RecoNN(training=Training(epochs=setting.epochs), chunk=bench.chunk)
    count, game, exact = setting.middle, bench.game(), ThroughTraining(setting.questions)
    longer = Training(rate=_NOTEBOOK_RATE, epochs=setting.notebook_epochs)
    notebook = RecoNN(training=longer, chunk=bench.chunk)
    many, change, relu = setting.notebook, replace(notebook, inputs="delta"), _relu(bench).game()
    most = setting.shadows[-1]
    arms = {
        f"reconn.{count}": bench.play(game, published, shadows=count),
        f"mnemonist.{count}": bench.play(game, Mnemonist(published), shadows=count),
        "through_training": bench.play(game, exact, shadows=0, targets=setting.through),
        f"relu.closed_form.{most}": bench.play(relu, shadows=most),
        f"relu.corrected.{most}": bench.play(relu, _corrected(bench, setting, most), shadows=most),
        f"reconn.{many}": bench.play(game, notebook, shadows=many),
        f"reconn_change.{many}": bench.play(game, change, shadows=many),
    }
    if few := setting.relu_through:
        arms["relu.through_training"] = bench.play(relu, exact, shadows=0, targets=few)
    return arms


def _paper_setting(bench: Bench, setting: _Setting, large: _Large) -> dict[str, Arm]:
    """|D-| and rate of the paper, on one seed, with as many shadows as an hour allows."""
    victim = replace(bench.settings.victim, rate=large.rate)
    bench = bench.of_victim(victim).rechunked(large.data)
    game, most = bench.game(), large.shadows[-1]
    arms = {f"paper_setting.closed_form.{n}": bench.play(game, shadows=n) for n in large.shadows}
    better = _corrected(bench, setting, most)
    arms["paper_setting.corrected"] = bench.play(game, better, shadows=most)
    if few := large.through:
        exact = ThroughTraining(setting.questions)
        arms["paper_setting.through_training"] = bench.play(game, exact, shadows=0, targets=few)
    return arms


def compared(setting: _Setting, metrics: Mapping[str, float]) -> dict[str, object]:
    """What the claims ask for: each corrected arm's error, less that of the closed form it corrects."""
    middle, most = setting.middle, setting.shadows[-1]
    pairs = {f"{n:,}": (f"closed_form.{n}", f"corrected.{n}") for n in setting.corrected}
    pairs |= {
        f"{n:,} (ReLU)": (f"relu.closed_form.{n}", f"relu.corrected.{n}")
        for n in sorted({middle, most})
    }
    return {
        **{"few": setting.shadows[0], "most": most},
        "corrected": [
            (metrics[f"{better}.mse_low"] - error, metrics[f"{better}.mse_high"] - error)
            for plain, better in pairs.values()
            for error in [metrics[f"{plain}.mse"]]
        ],
        **{"corrected_at": setting.corrected, "networks": (middle, setting.notebook)},
        **{"many": (setting.notebook,), "middling": (middle,)},
        "large_most": (setting.large.most,) if setting.large else (),
        "relu": sorted({middle, most}),
        "corrected_said": ", ".join(
            f"MAE + MSE {metrics[f'{plain}.mae_plus_mse']:.4f} to "
            f"{metrics[f'{better}.mae_plus_mse']:.4f} at {shadows}"
            for shadows, (plain, better) in pairs.items()
        ),
    }


def timed(setting: _Setting, metrics: Mapping[str, float]) -> dict[str, dict[float, str]]:
    """Arms by the seconds that each took, kind by kind: the places of a chart."""
    kinds = {
        "closed": [f"closed_form.{n}" for n in setting.shadows],
        "corrected": [f"corrected.{n}" for n in setting.corrected],
        "reconn": [f"reconn.{n}" for n in (setting.middle, setting.notebook)],
        "mnemonist": [f"mnemonist.{setting.middle}"],
        "through": ["through_training"],
    }
    return {kind: {metrics[f"{arm}.seconds"]: arm for arm in arms} for kind, arms in kinds.items()}


STUDY = Study("reconstructors", _SCALES, _run, on_device=True)
