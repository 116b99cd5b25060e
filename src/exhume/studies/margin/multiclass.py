"""Buzaglo23, Figs. 1, 2 and 4: training images from a trained network's weights, ten classes against two.

Three victims of the same images: (i) a small first layer and no decay, (ii) standard initialisation with
weight decay, (binary) as (i) with one output that tells the first half of the classes from the second.
Every attack seed is run with our attack and, for (i) and (ii), as many seconds with eq. (6) as published.
Settings were chosen on other images, drawn with another key.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from exhume import data
from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.hidden_span import HiddenSpan
from exhume.attacks.margin.strongest import Strongest
from exhume.contract import Key, Progress, Records
from exhume.models.homogeneous import HomogeneousMLP
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.intervals import bootstrap
from exhume.settings import DataSettings, Settings
from exhume.studies.margin.game import MarginGame, Played
from exhume.studies.study import Claim, Outcome, Scale, Study, labelled, pinned
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose, release_margin

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
    hasten: float = 0.0  # of victims (i) and binary: 0 is plain descent, as pinned
    binary_hasten: float = 0.003
    weight_decay: float = 0.01

    def recipes(self, shape: tuple[int, ...]) -> dict[str, MarginDescent]:
        wide = (self.width, self.width)
        small = HomogeneousMLP(shape, wide, self.classes, first_scale=1e-4)
        one = HomogeneousMLP(shape, wide, 1, first_scale=1e-4)
        plain = HomogeneousMLP(shape, wide, self.classes)
        return {
            "i": MarginDescent(small, hasten=self.hasten),
            "ii": MarginDescent(
                plain, weight_decay=self.weight_decay, stop_loss=0.0, epochs=self.decayed_epochs
            ),
            "binary": MarginDescent(one, "binary", hasten=self.binary_hasten),
        }


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        "digits",
        each=2,
        width=100,
        attack=Strongest(
            FirstLayer(restarts=2, descent=Descent(steps=60), contrast=0.3, largest=0.4),
            HiddenSpan(restarts=2, descent=Descent(steps=60, rate=2.0), contrast=0.3, largest=0.4),
        ),
        decayed_epochs=3000,
        decoys=100,
        hasten=0.01,
    ),
    "cpu": _Setting("cifar10", each=10, width=1000, attack=Strongest(), decayed_epochs=10_000),
    "paper": _Setting(
        "cifar10",
        each=50,
        width=1000,
        attack=Strongest(FirstLayer(restarts=16, descent=Descent(steps=2000))),
        decayed_epochs=200_000,
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    settings = Settings(seed=seed, data=DataSettings(setting.source))
    pinned(settings.with_values("machine", threads=torch.get_num_threads()), folder)
    key = Key.from_seed(seed).fold("margin-multiclass")
    records = data.load(setting.source, progress=progress)
    chosen = choose(records, setting.classes, setting.each, setting.decoys, key.fold("choose"))
    metrics: dict[str, float] = {}
    played: dict[str, Played] = {}
    for name, recipe in setting.recipes(records.shape).items():
        train, decoys = chosen if name != "binary" else (_halves(chosen[0]), _halves(chosen[1]))
        victim = release_margin(
            recipe,
            train,
            key=key,
            store=folder.store(),
            progress=labelled(progress, f"victim {name}"),
        )
        game = MarginGame(
            name=name,
            attack=setting.attack,
            seeds=setting.seeds,
            recipe=recipe,
            victim=victim,
            decoys=decoys,
            key=key.fold(name),
            folder=folder,
            progress=progress,
        )
        played[name] = game.play(against=name != "binary")
        metrics |= {f"{name}.{metric}": v for metric, v in played[name].metrics.items()}
    for name, other in (("classes", "binary"), ("decay", "ii")):
        gap = (played["i"].good - played[other].good) * (1 if name == "classes" else -1)
        low, high = bootstrap(gap, key.fold(name))
        metrics |= {f"{name}.gain_low": low * len(gap), f"{name}.gain_high": high * len(gap)}
    return Outcome(
        claims=_claims(metrics),
        metrics=metrics,
        attacks=[one.section for one in played.values()],
        classes=list(records.classes[: setting.classes]),
        deviations=[
            f"{setting.classes} classes x {setting.each} images of {setting.source}; the paper's Fig. 2 "
            "has 500 images.",
            "Binary: the same images, the first half of the classes against the second.",
            "Candidates are matched to images at full resolution, not at half.",
            "The number of training images is read off the spectrum of the first layer.",
        ],
        charts=[_chart(metrics)],
    )


def _halves(records: Records) -> Records:
    """The same records with two labels."""
    middle = len(records.classes) // 2
    return Records(records.inputs, (records.labels >= middle).long(), ("first half", "second half"))


def _claims(metrics: dict[str, float]) -> list[Claim]:
    good, records = metrics["i.good"], metrics["i.records"]
    return [
        Claim(
            "bar",
            "At least 60% of the training images come back, at most 2% of the decoys match",
            "Fig. 1: dozens of 500",
            f"{good:g} of {records:.0f}, decoys {metrics['i.decoy_rate']:.2%}",
            good >= 0.6 * records and metrics["i.decoy_rate"] <= 0.02,
        ),
        Claim(
            "against-eq6",
            "More than eq. (6) as published brings back in as many seconds",
            "—",
            f"{good:g} against {metrics['i.good_eq6']:g}, difference "
            f"{metrics['i.gain_low']:.0f} to {metrics['i.gain_high']:.0f}",
            metrics["i.gain_low"] > 0,
        ),
        Claim(
            "classes",
            "More classes leak more",
            "Fig. 2: ten classes yield many more good reconstructions than two",
            f"{good:g} against {metrics['binary.good']:g}, difference "
            f"{metrics['classes.gain_low']:.0f} to {metrics['classes.gain_high']:.0f}",
            metrics["classes.gain_low"] > 0,
        ),
        Claim(
            "decay",
            "Weight decay from a standard start leaks more than a small first layer",
            "Fig. 4: for some values significantly more",
            f"{metrics['ii.good']:g} against {good:g}, difference "
            f"{metrics['decay.gain_low']:.0f} to {metrics['decay.gain_high']:.0f}",
            metrics["decay.gain_low"] > 0,
        ),
    ]


def _chart(metrics: dict[str, float]) -> Chart:
    def points(suffix: str) -> list[Point]:
        names = [n for n in ("i", "ii", "binary") if f"{n}.good{suffix}" in metrics]
        if suffix:
            return [Point(f"victim {n}", metrics[f"{n}.good{suffix}"]) for n in names]
        return [
            Point(
                f"victim {n}",
                metrics[f"{n}.good"],
                metrics[f"{n}.good_low"],
                metrics[f"{n}.good_high"],
            )
            for n in names
        ]

    series = {"ours": points(""), "eq. (6), as many seconds": points("_eq6")}
    return Chart("Good reconstructions", "victim", "images above SSIM 0.4", series)


STUDY = Study(
    name="margin-multiclass",
    title="Training images from the weights alone: ten classes, two, weight decay (Figs. 1, 2, 4)",
    paper="Buzaglo23",
    run=_run,
)
