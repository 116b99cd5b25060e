"""Balle22, Fig. 12: does it matter when the adversary first sees the model?

The adversary knows the parameters at which the training it attacks begins: fresh ones, or a model trained
before on other records. Nearer to convergence the unknown record changes the weights less and differently;
the paper finds reconstruction harder there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from torch import Tensor

from exhume import data
from exhume.auditing import dealt
from exhume.choices import recipe_for, resolve
from exhume.contract import Key, Progress, Records
from exhume.report.charts import Chart
from exhume.report.folder import RunFolder
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.informed.sweeps import Pooled, difference, error_series, sweep, sweep_metrics
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned
from exhume.train.functional import accuracy

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Setting:
    data: DataSettings  # `public` is what the model was trained on before
    victim: VictimSettings
    before: tuple[int, ...]  # steps of earlier training; the first is 0
    seeds: int


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=60, targets=50, shadows=150, public=300, test=200),
        VictimSettings(steps=40),
        before=(0, 10, 100),
        seeds=1,
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=300, targets=100, shadows=800, public=10_000, test=1000),
        VictimSettings(),
        before=(0, 10, 100, 1000),
        seeds=2,
    ),
    "paper": _Setting(
        DataSettings("mnist", fixed=10_000, targets=1000, shadows=48_000, public=10_000, test=1000),
        VictimSettings(rate=0.2),
        before=(0, 10, 100, 1000),
        seeds=1,
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    records = data.load("mnist", progress=progress)
    settings = pinned(
        resolve(Settings(seed=seed, data=setting.data, victim=setting.victim), records), folder
    )
    steps = {_name(count): count for count in setting.before}
    reached: dict[str, list[float]] = {name: [] for name in steps}

    def start(name: str, chosen: Settings) -> Tensor:
        begun, right = trained_before(chosen, records, steps[name])
        reached[name].append(right)
        return begun

    variants = dict.fromkeys(steps, setting.victim)
    arms = sweep(variants, settings, setting.seeds, records, folder, progress=progress, start=start)
    accuracies = {name: fmean(values) for name, values in reached.items()}
    claims, found = judge(
        {steps[name]: arms[name] for name in steps},
        accuracies[_name(setting.before[-1])],
        Key.from_seed(seed).fold("claims"),
    )
    found |= {f"{name}.start_accuracy": value for name, value in accuracies.items()}
    return Outcome(
        claims=claims,
        metrics=sweep_metrics(arms) | found,
        classes=list(records.classes),
        deviations=[
            "The reconstructor is a ridge regression per label in closed form instead of a network.",
            f"|D-| = {setting.data.fixed:,}, {setting.data.shadows:,} shadow models for each start, "
            f"{setting.data.targets} targets on each of {setting.seeds} seeds.",
            f"Trained before on {setting.data.public:,} records that are nobody's target, fixed or "
            "shadow record; the adversary holds them, so the oracle may choose among them too.",
        ],
        charts=[_chart(arms, accuracies)],
    )


def _name(steps: int) -> str:
    return f"before_{steps}"


def trained_before(settings: Settings, records: Records, steps: int) -> tuple[Tensor, float]:
    """(p,) parameters after so many steps on the public records alone, and their test accuracy."""
    key, parts = Key.from_seed(settings.seed), dealt(settings, records)
    recipe = recipe_for(settings.with_values("victim", steps=max(1, steps)), records)
    begun = recipe.architecture.initial(key.fold("victim")).to(parts.public.inputs.device)
    if steps:
        none = parts.public.none_for(1)
        begun = recipe.fit(begun, parts.public, none, key.fold("before"))[0]
    return begun, float(accuracy(recipe.architecture, begun[None], parts.test)[0])


def judge(
    arms: Mapping[int, Pooled], reached: float, key: Key
) -> tuple[list[Claim], dict[str, float]]:
    """arms: by the steps of earlier training, increasing from 0; reached: accuracy after the most."""
    found: dict[str, float] = {}
    rises = 0
    for fewer, more in pairwise(arms):
        low, high = difference(arms[more], arms[fewer], key.fold(fewer, more))
        found |= {f"from_{fewer}_to_{more}_low": low, f"from_{fewer}_to_{more}_high": high}
        rises += low > 0
    fresh, late = min(arms), max(arms)
    low, high = difference(arms[late], arms[fresh], key.fold("whole"))
    found |= {"late_minus_fresh_low": low, "late_minus_fresh_high": high}
    claims = [
        Claim(
            "harder",
            "Reconstruction is harder if the adversary first sees the model near convergence than at "
            "initialisation",
            "harder from a model pre-trained to > 92%",
            f"MSE {arms[fresh].mse:.4f} from initialisation, {arms[late].mse:.4f} from a model of "
            f"{reached:.1%} accuracy (difference {low:.4f} to {high:.4f})",
            low > 0,
        ),
        Claim(
            "gradual",
            "The more the model was trained before, the larger the error",
            "not reported",
            f"{rises} of {len(arms) - 1} increases of the earlier steps raise it for certain",
            rises == len(arms) - 1,
        ),
        Claim(
            "leaks",
            "A late start does not stop reconstruction",
            "not reported",
            f"success {arms[late].success[0]:.1%} to {arms[late].success[1]:.1%} from the last start, "
            f"by chance {arms[late].chance[1]:.1%} or less",
            arms[late].leaks,
        ),
    ]
    return claims, found


def _chart(arms: Mapping[str, Pooled], accuracies: Mapping[str, float]) -> Chart:
    return Chart(
        "Error against where the attacked training starts",
        "test accuracy of the model at the start",
        "mean squared error",
        error_series(arms, accuracies),
        y_scale="log",
    )


STUDY = Study(
    name="informed-start",
    title="Seeing the model at initialisation, or only near convergence (Fig. 12)",
    paper="Balle22",
    run=_run,
)
