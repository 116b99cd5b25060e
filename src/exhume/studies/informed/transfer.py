"""Balle22, Fig. 11: a reconstructor trained for one fixed set, used on models of another.

RecoNN is trained on shadows of D-. Models of a disjoint D'-, trained in the same way from the same start,
are then attacked with it: as it is; moved to the base model of D'- (one model, no shadow); and fine-tuned on
k shadows of D'-. Beside it, RecoNN and the closed form from scratch on the same k shadows. Fig. 11a is the
MLP on MNIST, Fig. 11b the convolutional network on CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.reconn import FittedRecoNN, RecoNN
from exhume.core.contract import Key, Records
from exhume.models.reconstructors import Deconv, Dense
from exhume.settings import DataSettings, VictimSettings
from exhume.studies.arms import BALLE22, BALLE22_CNN, Bench, scored
from exhume.studies.claims import Paired, paired, prefixed, spread
from exhume.studies.framework import Outcome, Run, Scale, Study


@dataclass(frozen=True)
class _Setting:
    data: DataSettings  # of D-; D'- has the same sizes, of other records
    few: tuple[int, ...]  # shadows of D'-
    reconn: RecoNN
    seeds: int
    tuning_rate: float = 3e-4
    victim: VictimSettings = BALLE22
    second: _Setting | None = None  # Fig. 11b; its metrics begin with its data's name


_DECONV = RecoNN(
    Deconv(),
    Training(optimiser="adam", rate=1e-3, weight_decay=1e-4, batch=16, epochs=1),
    span=True,
)
_CIFAR10 = _Setting(
    DataSettings("cifar10", fixed=25, targets=100, shadows=1000, public=1, test=1),
    few=(10, 30, 100, 300),
    reconn=replace(_DECONV, training=replace(_DECONV.training, epochs=30)),
    seeds=1,
    victim=BALLE22_CNN,
)
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=30, targets=30, shadows=400, public=1, test=1),
        few=(10, 30),
        reconn=RecoNN(Dense((64, 64)), Training(batch=32, epochs=30)),
        seeds=1,
        second=_Setting(
            DataSettings("cifar10", fixed=4, targets=6, shadows=20, public=1, test=1),
            few=(8, 10),
            reconn=_DECONV,
            seeds=1,
            victim=replace(BALLE22_CNN, steps=3),
        ),
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=200, targets=150, shadows=2000, public=1, test=1),
        few=(10, 30, 100, 300),
        reconn=RecoNN(Dense((300, 300)), Training(batch=64, epochs=40)),
        seeds=2,
        second=_CIFAR10,
    ),
    "long": _Setting(
        DataSettings("mnist", fixed=1000, targets=500, shadows=10_000, public=1, test=1),
        few=(10, 100, 1000, 4000),
        reconn=RecoNN(),
        seeds=2,
        second=_CIFAR10,
    ),
    "paper": _Setting(
        DataSettings("mnist", fixed=10_000, targets=999, shadows=24_000, public=1, test=1),
        few=(10, 100, 1000, 2000, 4000, 24_000),
        reconn=RecoNN(),
        seeds=1,
        victim=replace(BALLE22, rate=0.2),
        second=_Setting(
            DataSettings("cifar10", fixed=5000, targets=999, shadows=19_000, public=1, test=1),
            few=(10, 100, 1000, 2000, 4000, 19_000),
            reconn=RecoNN.convolutional(),
            seeds=1,
            victim=BALLE22_CNN,
        ),
    ),
}


def _moved(source: FittedRecoNN, base: Tensor) -> FittedRecoNN:
    """The reconstructor of another fixed set, moved to the (p,) base model of this one."""
    old = source.features
    shift = (base - old.base)[old.columns]
    return replace(source, features=replace(old, base=base, centre=old.centre + shift))


def _run(run: Run[_Setting]) -> Outcome:
    other = run.setting.second
    assert other is not None  # every scale has both figures
    first, second = _part(run, run.setting, ""), _part(run, other, f"{other.data.source}.")
    sets = {"sets": [first.said, second.said], "mnist": [first.said], "others": [second.said]}
    return replace(first, said=sets, metrics=first.metrics | second.metrics)


def _part(run: Run[_Setting], setting: _Setting, prefix: str) -> Outcome:
    key, source = run.key.fold("transfer"), setting.data.source
    records = run.records(source)
    half = records[: len(records) // 2]
    bench = Bench.of(run, setting.data, setting.victim, half)
    runs = [_errors(own, setting, records) for own in bench.seeds(setting.seeds)]
    errors = {name: torch.cat([one[name] for one in runs]) for name in runs[0]}
    metrics: dict[str, float] = {"targets": len(errors["mean_record"])}
    for name, values in errors.items():
        metrics |= spread(f"{name}.mse", values, key)
    where = {"mnist": "MNIST"}.get(source, "CIFAR-10")
    return Outcome(
        said={
            **{"set": prefix.replace(".", "-"), "prefix": prefix, "shadows": setting.few},
            **compared(setting, errors, key, where),
        },
        metrics=prefixed(prefix.rstrip("."), metrics) if prefix else metrics,
        classes=list(records.classes),
    )


def _errors(bench: Bench, setting: _Setting, records: Records) -> dict[str, Tensor]:
    """(t,) squared errors of every arm, all on the same targets of D'- but `source`."""
    order = torch.randperm(len(records), generator=bench.key.fold("halves").generator())
    one, other = (replace(bench, records=records[rows]) for rows in order.chunk(2))
    first = one.game()
    start = first.knowledge.initial
    assert start is not None  # a game has one
    second, own = other.game(start), first.key.fold("attack")
    working, reconn = bench.run.working(own), replace(setting.reconn, chunk=bench.chunk)
    source = reconn.prepare(first.knowledge, **working)
    fixed, shadows = other.parts.fixed, other.parts.shadow
    base = other.recipe.fit(start, fixed, fixed.none_for(1), own.fold("base"))[0]

    def error(fitted: FittedRecoNN) -> Tensor:
        return scored(second, fitted.run(second.victim[0])).errors

    def tuned(k: int, epochs: int) -> FittedRecoNN:
        """0 epochs: the scaler only."""
        few, rate = replace(second.knowledge, shadow=shadows[:k]), setting.tuning_rate
        return source.fine_tune(few, epochs=epochs, rate=rate, **working)

    found = {
        "source": scored(first, source.run(first.victim[0])).errors,
        "mean_record": other.play(second, MeanRecord()).errors,
        "zero_shot": error(source),
        "zero_shot_moved": error(_moved(source, base)),
    }
    for k in setting.few:
        found[f"scaler.{k}"] = error(tuned(k, 0))
        found[f"tuned.{k}"] = error(tuned(k, reconn.training.epochs))
        found[f"scratch.{k}"] = other.play(second, reconn, shadows=k).errors
        found[f"closed_form.{k}"] = other.play(second, shadows=k).errors
    return found


def compared(
    setting: _Setting, errors: Mapping[str, Tensor], key: Key, where: str
) -> dict[str, object]:
    """What the claims about one set ask for."""
    few, many = setting.few[:2], setting.few[-1]

    def gap(ours: str, theirs: str) -> Paired:
        return paired(errors[ours], errors[theirs], key.fold("gain", ours, theirs))

    tuned = {k: gap(f"tuned.{k}", f"scratch.{k}") for k in few}
    return {
        **{"where": where, "some": few[1], "most": many, "few": list(tuned.values())},
        "few_said": [f"{one.one:.4f} against {one.other:.4f} at {k}" for k, one in tuned.items()],
        "many": gap(f"tuned.{few[1]}", f"scratch.{many}"),
        "zero_shot": gap("zero_shot", "mean_record"),
        "moved": gap("zero_shot_moved", "mean_record"),
        "closed": gap(f"closed_form.{many}", f"tuned.{many}"),
    }


STUDY = Study("informed-transfer", _SCALES, _run, on_device=True)
