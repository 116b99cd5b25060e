"""Buzaglo23, Figs. 4 and 5: weight decay from a standard start, against a standard and a small start without.

Same images for every victim, and two attacks: the first layer's alone, which needs no decay, and the
strongest that the weights allow. Beside the counts: how many images lie on the margin, errors on training
and held-out images, and how far training is from the stationary point that decay makes exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

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
from exhume.studies.margin.game import MarginGame
from exhume.studies.study import Claim, Outcome, Scale, Study, labelled, pinned
from exhume.train.functional import accuracy
from exhume.train.margin import MarginDescent
from exhume.victims.margin import MarginVictim, choose, release_margin

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Setting:
    source: str
    classes: int
    each: int
    width: int
    decays: tuple[float, ...]
    epochs: int
    attack: Strongest
    decoys: int = 1000
    draws: int = 1  # of the images

    def recipes(self, shape: tuple[int, ...]) -> dict[str, MarginDescent]:
        wide = (self.width, self.width)
        plain = HomogeneousMLP(shape, wide, self.classes)
        small = HomogeneousMLP(shape, wide, self.classes, first_scale=1e-4)
        decayed = {
            f"decay{decay:g}": MarginDescent(
                plain, weight_decay=decay, stop_loss=0.0, epochs=self.epochs
            )
            for decay in self.decays
        }
        return {
            "small": MarginDescent(small, hasten=0.003),
            "standard": MarginDescent(plain, hasten=0.003),
            **decayed,
        }


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        "digits",
        classes=3,
        each=3,
        width=60,
        decays=(0.01,),
        epochs=2000,
        attack=Strongest(
            FirstLayer(restarts=1, descent=Descent(steps=40), contrast=0.3, largest=0.4),
            HiddenSpan(restarts=1, descent=Descent(steps=40, rate=2.0), contrast=0.3, largest=0.4),
        ),
        decoys=60,
    ),
    "cpu": _Setting(
        "cifar10",
        10,
        5,
        500,
        (0.003, 0.01, 0.02),
        6_000,
        Strongest(FirstLayer(restarts=2)),
        draws=2,
    ),
    "paper": _Setting(
        "cifar10",
        10,
        50,
        1000,
        (1e-4, 1e-3, 3e-3, 0.01, 0.02),
        200_000,
        Strongest(FirstLayer(restarts=16)),
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    settings = Settings(seed=seed, data=DataSettings(setting.source))
    pinned(settings.with_values("machine", threads=torch.get_num_threads()), folder)
    records = data.load(setting.source, progress=progress)
    found: dict[str, list[_Arm]] = {}
    for draw in range(setting.draws):
        key = Key.from_seed(seed).fold("margin-weight-decay", draw)
        train, decoys = choose(
            records, setting.classes, setting.each, setting.decoys, key.fold("choose")
        )
        for name, recipe in setting.recipes(records.shape).items():
            told = labelled(progress, f"draw {draw + 1}, victim {name}")
            victim = release_margin(recipe, train, key=key, store=folder.store(), progress=told)
            game = MarginGame(
                name=name,
                attack=setting.attack,
                seeds=1,
                recipe=recipe,
                victim=victim,
                decoys=decoys,
                key=key.fold(name),
                folder=folder,
                progress=progress,
            )
            found.setdefault(name, []).append(_arm(game, setting.attack.first, decoys))
    metrics = {}
    for name, arms in found.items():
        for metric in arms[0].numbers:
            metrics[f"{name}.{metric}"] = fmean(arm.numbers[metric] for arm in arms)
    good = {name: torch.cat([arm.good for arm in arms]) for name, arms in found.items()}
    return Outcome(
        claims=_claims(setting, metrics, good, Key.from_seed(seed).fold("claims")),
        metrics=metrics,
        classes=list(records.classes[: setting.classes]),
        deviations=[
            "The decoys double as test images; none of them was trained on.",
            f"{setting.classes} classes x {setting.each} images, width {setting.width}; counts are means "
            f"over {setting.draws} draws of the images.",
        ],
        charts=[_chart(setting, metrics)],
    )


@dataclass(frozen=True, eq=False)
class _Arm:
    numbers: dict[str, float]
    good: Tensor  # (n,) 1 where the image came back


def _arm(game: MarginGame, first: FirstLayer, decoys: Records) -> _Arm:
    _, scores = game.once(0)
    _, plain = replace(game, attack=first).once(0)
    kept = ("good", "good_share", "decoy_rate", "tpr_at_1pct", "ssim_median")
    numbers = {metric: scores.metrics[metric] for metric in kept}
    numbers["good_first_layer"] = plain.metrics["good"]
    numbers |= game.victim.report | {"test_error": _test_error(game.recipe, game.victim, decoys)}
    return _Arm(numbers, scores.members.good.double())


def _test_error(recipe: MarginDescent, victim: MarginVictim, decoys: Records) -> float:
    centred = Records(decoys.inputs - victim.centre, decoys.labels, decoys.classes)
    return 1 - float(accuracy(recipe.architecture, victim.release.parameters, centred)[0])


def _claims(
    setting: _Setting, metrics: dict[str, float], good: dict[str, Tensor], key: Key
) -> list[Claim]:
    named = [f"decay{decay:g}" for decay in setting.decays]
    best = max(named, key=lambda name: metrics[f"{name}.good"])
    plain = max(named, key=lambda name: metrics[f"{name}.good_first_layer"])
    count, on_margin = metrics[f"{best}.good"], metrics[f"{best}.on_margin"]

    def against(other: str) -> tuple[str, bool]:
        low, high = bootstrap(good[best] - good[other], key.fold(other))
        return (
            f"{count:g} ({best}) against {metrics[f'{other}.good']:g}; share of images "
            f"{low:+.2f} to {high:+.2f}",
            low > 0,
        )

    raised, above = against("standard"), against("small")
    return [
        Claim(
            "decay-leaks",
            "From a standard start, weight decay raises the count",
            "Fig. 4: without decay hardly any",
            *raised,
        ),
        Claim(
            "above-small",
            "For some decay the count is above that of a small first layer",
            "Fig. 4: significantly higher",
            *above,
        ),
        Claim(
            "first-layer-alone",
            "The same with the attack on the first layer alone",
            "Fig. 4, by eq. (6)",
            f"{metrics[f'{plain}.good_first_layer']:g} ({plain}) against "
            f"{metrics['small.good_first_layer']:g}",
            metrics[f"{plain}.good_first_layer"] > metrics["small.good_first_layer"],
        ),
        Claim(
            "margin",
            "Weight decay pushes images to the margin",
            "Fig. 5",
            f"{on_margin:g} on the margin against {metrics['standard.on_margin']:g}",
            on_margin > metrics["standard.on_margin"],
        ),
    ]


def _chart(setting: _Setting, metrics: dict[str, float]) -> Chart:
    names = ["small", "standard", *(f"decay{decay:g}" for decay in setting.decays)]
    series = {
        "strongest attack": [Point(name, metrics[f"{name}.good"]) for name in names],
        "first layer alone": [Point(name, metrics[f"{name}.good_first_layer"]) for name in names],
    }
    return Chart("Good reconstructions", "victim", "images above SSIM 0.4", series)


STUDY = Study(
    name="margin-weight-decay",
    title="Weight decay and the margin (Figs. 4, 5)",
    paper="Buzaglo23",
    run=_run,
)
