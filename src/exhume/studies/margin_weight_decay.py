"""Buzaglo23, Figs. 4 and 5: weight decay from a standard start, against a standard and a small start without.

Same images and attack for every victim. Beside the count: how many images lie on the margin, errors on
training and held-out images, and how far training is from the stationary point that decay makes exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from exhume import data
from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.contract import Key, Progress, Records
from exhume.models.homogeneous import HomogeneousMLP
from exhume.report.folder import RunFolder
from exhume.settings import DataSettings, Settings
from exhume.studies.margin_game import MarginGame, labelled
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned
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
    attack: FirstLayer
    decoys: int = 1000

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
        epochs=300,
        attack=FirstLayer(restarts=1, descent=Descent(steps=40), contrast=0.3, largest=0.4),
        decoys=60,
    ),
    "cpu": _Setting(
        "cifar10", 10, 10, 1000, (0.001, 0.003, 0.01, 0.02), 20_000, FirstLayer(restarts=2)
    ),
    "paper": _Setting(
        "cifar10", 10, 50, 1000, (1e-4, 1e-3, 3e-3, 0.01, 0.02), 200_000, FirstLayer(restarts=16)
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    settings = Settings(seed=seed, data=DataSettings(setting.source))
    pinned(settings.with_values("machine", threads=torch.get_num_threads()), folder)
    key = Key.from_seed(seed).fold("margin-weight-decay")
    records = data.load(setting.source, progress=progress)
    train, decoys = choose(
        records, setting.classes, setting.each, setting.decoys, key.fold("choose")
    )
    metrics: dict[str, float] = {}
    for name, recipe in setting.recipes(records.shape).items():
        told = labelled(progress, f"victim {name}")
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
        _, scores = game.once(0)
        kept = ("good", "decoy_rate", "tpr_at_1pct", "ssim_median")
        measured = {metric: scores.metrics[metric] for metric in kept}
        measured |= victim.report | {"test_error": _test_error(recipe, victim, decoys)}
        metrics |= {f"{name}.{metric}": value for metric, value in measured.items()}
    return Outcome(
        claims=_claims(setting, metrics),
        metrics=metrics,
        classes=list(train.classes),
        deviations=["The decoys double as test images; none of them was trained on."],
    )


def _test_error(recipe: MarginDescent, victim: MarginVictim, decoys: Records) -> float:
    centred = Records(decoys.inputs - victim.centre, decoys.labels, decoys.classes)
    return 1 - float(accuracy(recipe.architecture, victim.release.parameters, centred)[0])


def _claims(setting: _Setting, metrics: dict[str, float]) -> list[Claim]:
    named = [f"decay{decay:g}" for decay in setting.decays]
    best = max(named, key=lambda name: metrics[f"{name}.good"])
    count, on_margin = metrics[f"{best}.good"], metrics[f"{best}.on_margin"]
    return [
        Claim(
            "decay-leaks",
            "From a standard start, weight decay raises the count",
            "Fig. 4: without decay hardly any",
            f"{count:g} ({best}) against {metrics['standard.good']:g}",
            count > metrics["standard.good"],
        ),
        Claim(
            "above-small",
            "For some decay the count is above that of a small first layer",
            "Fig. 4: significantly higher",
            f"{count:g} ({best}) against {metrics['small.good']:g}",
            count > metrics["small.good"],
        ),
        Claim(
            "margin",
            "Weight decay pushes images to the margin",
            "Fig. 5",
            f"{on_margin:g} on the margin against {metrics['standard.on_margin']:g}",
            on_margin > metrics["standard.on_margin"],
        ),
    ]


STUDY = Study(
    name="margin-weight-decay",
    title="Weight decay and the margin (Figs. 4, 5)",
    paper="Buzaglo23",
    run=_run,
)
