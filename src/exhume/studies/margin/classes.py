"""Buzaglo23, Figs. 3 and 8: more classes leak more, per class and at a fixed number of images.

Victims with a small first layer, growing steps, c classes of a few images each; and the same number of
images in all, shared among c classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from exhume import data
from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.contract import Key, Progress, Records
from exhume.models.homogeneous import HomogeneousMLP
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.settings import DataSettings, Settings
from exhume.studies.margin.game import MarginGame
from exhume.studies.study import Claim, Outcome, Scale, Study, labelled, pinned
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose, release_margin

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Setting:
    source: str
    classes: tuple[int, ...]
    each: tuple[int, ...]
    total: int  # images at a fixed number (Fig. 8)
    width: int
    attack: FirstLayer
    decoys: int = 1000

    def victims(self) -> dict[str, tuple[int, int]]:
        """Name to (classes, images of each)."""
        grid = {f"c{c}.each{e}": (c, e) for c in self.classes for e in self.each}
        return grid | {f"c{c}.total{self.total}": (c, self.total // c) for c in self.classes}


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        "digits",
        classes=(2, 5),
        each=(2,),
        total=10,
        width=60,
        attack=FirstLayer(restarts=1, descent=Descent(steps=40), contrast=0.3, largest=0.4),
        decoys=50,
    ),
    "cpu": _Setting("cifar10", (2, 5, 10), (1, 5, 10), 60, 1000, attack=FirstLayer(restarts=2)),
    "paper": _Setting(
        "cifar10", (2, 3, 4, 5, 10), (1, 5, 10, 50), 500, 1000, attack=FirstLayer(restarts=16)
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    settings = Settings(seed=seed, data=DataSettings(setting.source))
    pinned(settings.with_values("machine", threads=torch.get_num_threads()), folder)
    records = data.load(setting.source, progress=progress)
    metrics: dict[str, float] = {}
    for name, (classes, each) in setting.victims().items():
        metrics |= _one(name, classes, each, setting, records, seed, folder, progress)
    return Outcome(
        claims=_claims(setting, metrics),
        metrics=metrics,
        classes=list(records.classes),
        deviations=[
            "Steps of the victims' training grow as the loss falls.",
            "Two classes have two outputs, as every other number of classes.",
        ],
        charts=[_chart(setting, metrics)],
    )


def _one(  # noqa: PLR0917
    name: str,
    classes: int,
    each: int,
    setting: _Setting,
    records: Records,
    seed: int,
    folder: RunFolder,
    progress: Progress,
) -> dict[str, float]:
    key = Key.from_seed(seed).fold("margin-classes", classes, each)
    train, decoys = choose(records, classes, each, setting.decoys, key.fold("choose"))
    wide = (setting.width, setting.width)
    mlp = HomogeneousMLP(records.shape, wide, classes, first_scale=1e-4)
    recipe = MarginDescent(mlp, hasten=0.003)
    store = folder.store()
    told = labelled(progress, f"victim {name}")
    victim = release_margin(recipe, train, key=key, store=store, progress=told)
    game = MarginGame(
        name=name,
        attack=setting.attack,
        seeds=1,
        recipe=recipe,
        victim=victim,
        decoys=decoys,
        key=key,
        folder=folder,
        progress=progress,
    )
    _, scores = game.once(0)
    kept = (
        "good",
        "good_share",
        "good_share_low",
        "good_share_high",
        "decoy_rate",
        "tpr_at_1pct",
        "ssim_median",
    )
    told_of = {metric: scores.metrics[metric] for metric in kept}
    told_of["residual_at_truth"] = victim.report["residual_at_truth"]
    return {f"{name}.{metric}": value for metric, value in told_of.items()}


def _claims(setting: _Setting, metrics: dict[str, float]) -> list[Claim]:
    few, many, each = setting.classes[0], setting.classes[-1], setting.each[-1]
    pairs = {
        "per-class": (f"each{each}", each, "Fig. 3: rises with the number of classes"),
        "fixed-total": (f"total{setting.total}", 0, "Fig. 8: rises with the number of classes"),
    }
    claims = []
    for name, (suffix, per_class, paper) in pairs.items():
        low = _counts(metrics, f"c{few}.{suffix}", per_class * few or setting.total)
        high = _counts(metrics, f"c{many}.{suffix}", per_class * many or setting.total)
        claims.append(
            Claim(
                name,
                f"{many} classes yield more good reconstructions than {few} ({suffix})",
                paper,
                f"{high[0]:g} ({high[1]:.0f} to {high[2]:.0f}) against {low[0]:g} ({low[1]:.0f} to "
                f"{low[2]:.0f})",
                high[1] > low[2],
            )
        )
    return claims


def _counts(metrics: dict[str, float], victim: str, images: int) -> tuple[float, float, float]:
    """Good reconstructions, and the ends of their 95% interval."""
    low, high = metrics[f"{victim}.good_share_low"], metrics[f"{victim}.good_share_high"]
    return metrics[f"{victim}.good"], low * images, high * images


def _chart(setting: _Setting, metrics: dict[str, float]) -> Chart:
    suffixes = [*(f"each{each}" for each in setting.each), f"total{setting.total}"]
    series = {
        suffix: [Point(c, metrics[f"c{c}.{suffix}.good"]) for c in setting.classes]
        for suffix in suffixes
    }
    return Chart("Good reconstructions", "classes", "images above SSIM 0.4", series)


STUDY = Study(
    name="margin-classes",
    title="Good reconstructions by number of classes and images (Figs. 3, 8)",
    paper="Buzaglo23",
    run=_run,
)
