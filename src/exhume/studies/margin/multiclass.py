"""Buzaglo23, Figs. 1, 2 and 4: training images from a trained network's weights, ten classes against two.

Three victims of the same images: (i) a small first layer and no decay, (ii) standard initialisation with
weight decay, (binary) as (i) with one output that tells the first half of the classes from the second.
Every attack seed is run with our attack and, for (i) and (ii), as many seconds with eq. (6) as published.
Settings were chosen on other images, drawn with another key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.strongest import Strongest
from exhume.core.contract import Records
from exhume.score.intervals import bootstrap
from exhume.studies.claims import prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.margin.game import (
    ONE_THREAD,
    MarginGame,
    Played,
    counts,
    decayed,
    from_small_start,
    quick,
)
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Setting:
    source: str
    each: int  # images of a class
    width: int
    attack: Strongest
    decayed_epochs: int  # of victim (ii)
    decoys: int = 1000
    classes: int = 10
    seeds: int = 2  # of the attack
    growing: float = 0.0  # loss below which the steps of victim (i) grow; 0: plain descent
    binary_growing: float = 0.003
    weight_decay: float = 0.01

    def recipes(self, shape: tuple[int, ...]) -> dict[str, MarginDescent]:
        with_decay = (self.width, self.classes, self.weight_decay, self.decayed_epochs)
        return {
            "i": from_small_start(shape, self.width, self.classes, growing=self.growing),
            "ii": decayed(shape, *with_decay),
            "binary": from_small_start(shape, self.width, 1, growing=self.binary_growing),
        }


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting("digits", 2, 100, quick(2, 60), 3000, decoys=100, growing=0.01),
    "cpu": _Setting("cifar10", each=10, width=1000, attack=Strongest(), decayed_epochs=10_000),
    "paper": _Setting(
        "cifar10",
        each=50,
        width=1000,
        attack=Strongest(FirstLayer(restarts=16, descent=Descent(steps=2000))),
        decayed_epochs=200_000,
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("margin-multiclass")
    records = run.records(setting.source)
    chosen = choose(records, setting.classes, setting.each, setting.decoys, key.fold("choose"))
    halved = (_halves(chosen[0]), _halves(chosen[1]))
    metrics: dict[str, float] = {}
    played: dict[str, Played] = {}
    for name, recipe in setting.recipes(records.shape).items():
        several = name != "binary"
        images, own = chosen if several else halved, key.fold(name)
        game = MarginGame.begun(run, name, setting.attack, recipe, images, key=key, own=own)
        played[name] = replace(game, seeds=setting.seeds).play(against=several)
        metrics |= prefixed(name, played[name].metrics)
    for name, other in (("classes", "binary"), ("decay", "ii")):
        gap = (played["i"].good - played[other].good) * (1 if name == "classes" else -1)
        low, high = bootstrap(gap, key.fold(name))
        metrics |= {f"{name}.gain_low": low * len(gap), f"{name}.gain_high": high * len(gap)}
    return Outcome(
        metrics=metrics,
        attacks=[one.findings for one in played.values()],
        classes=list(records.classes[: setting.classes]),
        charts=[counts({f"victim {name}": name for name in played}, metrics)],
    )


def _halves(records: Records) -> Records:
    """The same records with two labels."""
    middle = len(records.classes) // 2
    return Records(records.inputs, (records.labels >= middle).long(), ("first half", "second half"))


STUDY = Study("margin-multiclass", _SCALES, _run, threads=ONE_THREAD)
