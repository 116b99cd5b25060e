"""Balle22, Fig. 11: a reconstructor trained for one fixed set, used on models of another.

RecoNN is trained on shadows of D-. Models of a disjoint D'-, trained in the same way from the same start,
are then attacked with it: as it is; moved to the base model of D'- (one model, no shadow); and fine-tuned on
k shadows of D'-. Beside it, RecoNN and the closed form from scratch on the same k shadows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume import data
from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.reconn import FittedRecoNN, RecoNN
from exhume.auditing import informed_game
from exhume.choices import resolve
from exhume.contract import Attack, Key, Knowledge, Progress, Records, Store, silent
from exhume.models.reconstructors import Dense
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.intervals import bootstrap
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.arms import play
from exhume.studies.informed.pooled import point, spread
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Setting:
    data: DataSettings  # of D-; D'- has the same sizes, of other records
    few: tuple[int, ...]  # shadows of D'-
    reconn: RecoNN
    seeds: int
    tuning_rate: float = 3e-4
    rate: float = 0.1


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=30, targets=30, shadows=400, public=1, test=1),
        few=(10, 30),
        reconn=RecoNN(Dense((64, 64)), Training(batch=32, epochs=30)),
        seeds=1,
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=200, targets=150, shadows=2000, public=1, test=1),
        few=(10, 30, 100, 300),
        reconn=RecoNN(Dense((300, 300)), Training(batch=64, epochs=40)),
        seeds=2,
    ),
    "paper": _Setting(
        DataSettings("mnist", fixed=10_000, targets=999, shadows=24_000, public=1, test=1),
        few=(10, 100, 1000, 2000, 4000, 24_000),
        reconn=RecoNN(),
        seeds=1,
        rate=0.2,
    ),
}


@dataclass(frozen=True, eq=False)
class _AsItIs:
    """The reconstructor of another fixed set; moved to this one's base model, or not at all.

    Sees: `Weights`. Assumes: the recipe, the start and the fixed set, to train the base model if it moves.
    Guarantees: no shadow of this fixed set is used. Reference: Balle22 Fig. 11, "0" on its axis.
    """

    source: FittedRecoNN
    moved: bool

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedRecoNN:
        if not self.moved:
            return self.source
        recipe, initial, fixed = knowledge.recipe, knowledge.initial, knowledge.fixed
        assert recipe is not None
        assert initial is not None
        assert fixed is not None
        base = recipe.fit(initial, fixed, fixed.none_for(1), key.fold("base"))[0]
        old = self.source.features
        shift = (base - old.base)[old.columns]
        return replace(self.source, features=replace(old, base=base, centre=old.centre + shift))


@dataclass(frozen=True, eq=False)
class _Tuned:
    """The reconstructor of another fixed set, fine-tuned on shadows of this one; 0 epochs: scaler only."""

    source: FittedRecoNN
    epochs: int
    rate: float

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedRecoNN:
        return self.source.fine_tune(
            knowledge, epochs=self.epochs, rate=self.rate, key=key, store=store, progress=progress
        )


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed).fold("transfer")
    records = data.load("mnist", progress=progress)
    victim = VictimSettings(rate=setting.rate)
    half = records[: len(records) // 2]
    settings = pinned(resolve(Settings(seed, setting.data, victim), half), folder)
    runs = [
        _errors(setting, settings.with_seed(seed + i), records, folder, progress)
        for i in range(setting.seeds)
    ]
    errors = {name: torch.cat([run[name] for run in runs]) for name in runs[0]}
    metrics: dict[str, float] = {"targets": len(errors["mean_record"])}
    for name, values in errors.items():
        metrics |= spread(f"{name}.mse", values, key)
    training = setting.reconn.training
    return Outcome(
        claims=_claims(setting, errors, metrics, key),
        metrics=metrics,
        classes=list(records.classes),
        deviations=[
            f"|D-| = |D'-| = {setting.data.fixed:,}; the first reconstructor has "
            f"{setting.data.shadows:,} shadows and {training.epochs} epochs, its network is "
            f"{setting.reconn.network}.",
            f"Fine-tuning: as many epochs, at rate {setting.tuning_rate:g} instead of "
            f"{training.rate:g}; the paper does not state its own.",
            "The epoch is chosen on held-out shadows, for both ways of training; the paper takes the last.",
            "Fine-tuning fits the scaler on the k shadows of D'-; the zero-shot arms use none of them.",
        ],
        charts=[_chart(setting, metrics)],
    )


def _errors(
    setting: _Setting, settings: Settings, records: Records, folder: RunFolder, progress: Progress
) -> dict[str, Tensor]:
    """(t,) squared errors of every arm, all on the same targets of D'- but `source`."""
    store, chunk = folder.store(), settings.machine.chunk
    order = torch.randperm(
        len(records), generator=Key.from_seed(settings.seed).fold("halves").generator()
    )
    one, other = (records[rows] for rows in order.chunk(2))
    first = informed_game(settings, one, store=store, progress=progress)
    second = informed_game(
        settings, other, store=store, progress=progress, initial=first.knowledge.initial
    )
    reconn = replace(setting.reconn, chunk=chunk)
    source = reconn.prepare(
        first.knowledge, key=first.key.fold("attack"), store=store, progress=progress
    )
    home = play(first, _AsItIs(source, moved=False), store=store, progress=progress)

    def error(attack: Attack, shadows: int | None = None) -> Tensor:
        arm = play(second, attack, store=store, progress=progress, shadows=shadows)
        return arm.scores.attack.mse

    epochs = reconn.training.epochs
    found = {
        "source": home.scores.attack.mse,
        "mean_record": error(MeanRecord()),
        "zero_shot": error(_AsItIs(source, moved=False)),
        "zero_shot_moved": error(_AsItIs(source, moved=True)),
    }
    for k in setting.few:
        found[f"scaler.{k}"] = error(_Tuned(source, 0, setting.tuning_rate), k)
        found[f"tuned.{k}"] = error(_Tuned(source, epochs, setting.tuning_rate), k)
        found[f"scratch.{k}"] = error(reconn, k)
        found[f"closed_form.{k}"] = error(ClosedForm(chunk=chunk), k)
    return found


def _chart(setting: _Setting, metrics: Mapping[str, float]) -> Chart:
    def at(k: int, name: str) -> Point:
        return point(k, f"{name}.mse", metrics)

    few = setting.few
    return Chart(
        "A reconstructor for D-, used on D'-",
        "shadow models of D'-",
        "mean squared error",
        {
            "fine-tuned": [at(k, f"tuned.{k}") for k in few],
            "from scratch": [at(k, f"scratch.{k}") for k in few],
            "closed form from scratch": [at(k, f"closed_form.{k}") for k in few],
            "zero-shot, moved (no shadow)": [at(k, "zero_shot_moved") for k in few],
            "mean record": [at(k, "mean_record") for k in few],
        },
        x_scale="log",
        y_scale="log",
    )


def _claims(
    setting: _Setting, errors: Mapping[str, Tensor], metrics: Mapping[str, float], key: Key
) -> list[Claim]:
    few, many = setting.few[:2], setting.few[-1]

    def gain(ours: str, theirs: str) -> tuple[float, float]:
        """Interval of how much smaller our error is, target by target."""
        return bootstrap(errors[theirs] - errors[ours], key.fold("gain", ours, theirs))

    def mse(name: str) -> str:
        return f"{metrics[f'{name}.mse']:.4f}"

    zero_shot = [
        Claim(
            name,
            f"Zero-shot{how} beats the mean record",
            "on MNIST the reconstructor can do zero-shot learning",
            f"MSE {mse(arm)}, mean record {mse('mean_record')}",
            gain(arm, "mean_record")[0] > 0,
        )
        for name, arm, how in (
            ("zero-shot", "zero_shot", ", the reconstructor as it is,"),
            ("zero-shot-moved", "zero_shot_moved", ", moved to the base model of D'-,"),
        )
    ]
    return [
        Claim(
            "few",
            "Fine-tuning on few shadows beats training from scratch on the same few",
            "shown in Fig. 11",
            "; ".join(f"{mse(f'tuned.{k}')} against {mse(f'scratch.{k}')} at {k}" for k in few),
            all(gain(f"tuned.{k}", f"scratch.{k}")[0] > 0 for k in few),
        ),
        Claim(
            "many",
            f"Fine-tuning on {few[1]} shadows does as well as training from scratch on {many}",
            "comparable with substantially more data",
            f"{mse(f'tuned.{few[1]}')} against {mse(f'scratch.{many}')}",
            gain(f"tuned.{few[1]}", f"scratch.{many}")[1] > 0,
        ),
        *zero_shot,
        Claim(
            "closed-form",
            f"From {many} shadows the closed form needs no reconstructor of another fixed set",
            "no closed form in the paper",
            f"{mse(f'closed_form.{many}')} against {mse(f'tuned.{many}')} fine-tuned",
            gain(f"closed_form.{many}", f"tuned.{many}")[0] > 0,
        ),
    ]


STUDY = Study(
    name="informed-transfer",
    title="A reconstructor trained for one fixed set, used on another (Fig. 11)",
    paper="Balle22",
    run=_run,
)
