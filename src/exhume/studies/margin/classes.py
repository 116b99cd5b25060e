"""Buzaglo23, Figs. 3 and 8: more classes leak more, per class and at a fixed number of images.

Victims with a small first layer, growing steps, c classes of a few images each; and the same number of
images in all, shared among c classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from exhume.attacks.margin.first_layer import FirstLayer
from exhume.core.results import Chart
from exhume.studies.claims import Range, line, prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.margin.game import (
    GOOD,
    ONE_THREAD,
    MarginGame,
    crowded,
    from_small_start,
    quick,
)
from exhume.victims.margin import choose

__all__ = ["STUDY"]

_SHARE = ("good", "good_share", "good_share_low", "good_share_high")
_ENOUGH = 5  # neurons an image
_KEPT = (*_SHARE, "decoy_rate", "tpr_at_1pct", "ssim_median")


@dataclass(frozen=True)
class _Setting:
    source: str
    classes: tuple[int, ...]
    each: tuple[int, ...]
    total: int  # images at a fixed number (Fig. 8)
    width: int
    attack: FirstLayer
    decoys: int = 1000
    few: FirstLayer | None = None  # the attack with fewer neurons an image than `_ENOUGH`
    slower: tuple[str, ...] = ()  # victims that diverge at a rate of .5 and have .25

    def victims(self) -> dict[str, tuple[int, int]]:
        """Name to (classes, images of each)."""
        grid = {f"c{c}.each{e}": (c, e) for c in self.classes for e in self.each}
        return grid | {f"c{c}.total{self.total}": (c, self.total // c) for c in self.classes}


_GRID = ("cifar10", (2, 3, 4, 5, 10), (1, 5, 10, 50), 500, 1000)
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting("digits", (2, 5), (2,), 10, 60, attack=quick().first, decoys=50),
    "cpu": _Setting(
        *_GRID, attack=FirstLayer(restarts=2), few=crowded(restarts=2), slower=("c4.total500",)
    ),
    "paper": _Setting(*_GRID, attack=FirstLayer(restarts=16), few=crowded(restarts=16)),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting, metrics = run.setting, dict[str, float]()
    for name, (classes, each) in setting.victims().items():
        metrics |= _one(run, name, classes, each)
    series = {
        end: line({c: f"c{c}.{end}" for c in setting.classes}, "good", metrics)
        for end in (*(f"each{each}" for each in setting.each), f"total{setting.total}")
    }
    return Outcome(
        said={"compared": compared(setting, metrics)},
        metrics=metrics,
        classes=list(run.records(setting.source).classes),
        deviations=[
            f"{name} was trained at half the rate: it diverges at .5." for name in setting.slower
        ],
        charts=[Chart("Good reconstructions", "classes", GOOD, series)],
    )


def _one(run: Run[_Setting], name: str, classes: int, each: int) -> dict[str, float]:
    setting, records = run.setting, run.records(run.setting.source)
    key = run.key.fold("margin-classes", classes, each)
    chosen = choose(records, classes, each, setting.decoys, key.fold("choose"))
    recipe = from_small_start(records.shape, setting.width, classes)
    if name in setting.slower:
        recipe = replace(recipe, rate=recipe.rate / 2)
    tight = setting.width < _ENOUGH * classes * each
    attack = setting.few if tight and setting.few is not None else setting.attack
    game = MarginGame.begun(run, name, attack, recipe, chosen, key=key)
    _, scores = game.once(0)
    measured = {metric: scores.metrics[metric] for metric in _KEPT}
    measured["residual_at_truth"] = game.victim.report["residual_at_truth"]
    return prefixed(name, measured)


def compared(setting: _Setting, metrics: dict[str, float]) -> list[dict[str, object]]:
    """Good reconstructions of the fewest and of the most classes, per class and at a fixed number."""
    few, many, each = setting.classes[0], setting.classes[-1], setting.each[-1]

    def count(victim: str, images: int) -> Range:
        low, high = (metrics[f"{victim}.good_share_{end}"] for end in ("low", "high"))
        return Range(low * images, high * images)

    ends = {f"each{each}": (few * each, many * each), f"total{setting.total}": (setting.total,) * 2}
    return [
        {
            **{"end": end, "few": few, "many": many},
            "less": count(f"c{few}.{end}", fewer),
            "more": count(f"c{many}.{end}", more),
            "name": name,
        }
        for (end, (fewer, more)), name in zip(
            ends.items(), ("per-class", "fixed-total"), strict=True
        )
    ]


STUDY = Study("margin-classes", _SCALES, _run, threads=ONE_THREAD)
