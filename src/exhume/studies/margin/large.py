"""Buzaglo23, Fig. 6 and the paper's own size: many training images, from a small start and with weight decay.

paper: 5,000 images of CIFAR-100, hidden width 10,000. cpu: 250 and 500 images of CIFAR-10, width 1,000, and
100 of MNIST, width 500.
The hidden span needs more neurons than images, by as many as an image has coordinates: at 500 images and
1,000 neurons it does not apply, and the first layer's attack is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from exhume import data
from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.hidden_span import HiddenSpan
from exhume.attacks.margin.strongest import Strongest
from exhume.contract import Key, Progress
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
class _Victim:
    source: str
    classes: int
    each: int  # images of a class
    width: int
    decay: float = 0.0  # 0: a small first layer and growing steps
    epochs: int = 100_000

    def recipe(self, shape: tuple[int, ...]) -> MarginDescent:
        wide = (self.width, self.width)
        if not self.decay:
            small = HomogeneousMLP(shape, wide, self.classes, first_scale=1e-4)
            return MarginDescent(small, hasten=0.003, epochs=self.epochs)
        plain = HomogeneousMLP(shape, wide, self.classes)
        return MarginDescent(plain, weight_decay=self.decay, stop_loss=0.0, epochs=self.epochs)


@dataclass(frozen=True)
class _Setting:
    victims: dict[str, _Victim]
    attack: Strongest
    decoys: int = 1000


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        {"n10": _Victim("digits", 5, 2, 80), "n15.decay": _Victim("digits", 5, 3, 80, 0.01, 2000)},
        attack=Strongest(
            FirstLayer(restarts=1, descent=Descent(steps=40), contrast=0.3, largest=0.4),
            HiddenSpan(restarts=2, descent=Descent(steps=60, rate=2.0), contrast=0.3, largest=0.4),
        ),
        decoys=100,
    ),
    "cpu": _Setting(
        {
            "mnist100.decay": _Victim("mnist", 10, 10, 500, 0.01, 6000),
            "mnist100": _Victim("mnist", 10, 10, 500),
            "n250.decay": _Victim("cifar10", 10, 25, 1000, 0.01, 6000),
            "n500": _Victim("cifar10", 10, 50, 1000),
        },
        attack=Strongest(FirstLayer(restarts=2)),
    ),
    "paper": _Setting(
        {
            "n5000": _Victim("cifar100", 100, 50, 10_000),
            "n5000.decay": _Victim("cifar100", 100, 50, 10_000, 0.01, 20_000),
        },
        attack=Strongest(FirstLayer(restarts=16, descent=Descent(steps=2000))),
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    largest = list(setting.victims.values())[-1]
    settings = Settings(seed=seed, data=DataSettings(largest.source))
    pinned(settings.with_values("machine", threads=torch.get_num_threads()), folder)
    metrics: dict[str, float] = {}
    sections = []
    for name, victim in setting.victims.items():
        game = _game(name, victim, setting, seed, folder, progress)
        played = game.play(against=False)
        metrics |= {f"{name}.{metric}": value for metric, value in played.metrics.items()}
        sections.append(played.section)
    return Outcome(
        claims=_claims(setting, metrics),
        metrics=metrics,
        attacks=sections,
        classes=[str(label) for label in range(largest.classes)],
        deviations=[
            "One attack seed.",
            "Steps of the victims without decay grow as the loss falls.",
            f"At most {largest.classes * largest.each} images of {largest.source}, width {largest.width}; "
            "Fig. 6 has 5,000 images of CIFAR-100, width 10,000.",
        ],
        charts=[_chart(setting, metrics)],
    )


def _game(  # noqa: PLR0917
    name: str,
    victim: _Victim,
    setting: _Setting,
    seed: int,
    folder: RunFolder,
    progress: Progress,
) -> MarginGame:
    records = data.load(victim.source, progress=progress)
    key = Key.from_seed(seed).fold("margin-large", name)
    train, decoys = choose(records, victim.classes, victim.each, setting.decoys, key.fold("choose"))
    recipe = victim.recipe(records.shape)
    told = labelled(progress, f"victim {name}")
    released = release_margin(recipe, train, key=key, store=folder.store(), progress=told)
    return MarginGame(
        name=name,
        attack=setting.attack,
        seeds=1,
        recipe=recipe,
        victim=released,
        decoys=decoys,
        key=key,
        folder=folder,
        progress=progress,
    )


def _claims(setting: _Setting, metrics: dict[str, float]) -> list[Claim]:
    claims = []
    for name in setting.victims:
        good, chance = metrics[f"{name}.good"], metrics[f"{name}.decoy_rate"]
        records, low = metrics[f"{name}.records"], metrics[f"{name}.good_low"]
        claims.append(
            Claim(
                name,
                f"Dozens of the {records:.0f} training images come back, beyond what decoys do",
                "Fig. 6: a few dozen of 5,000",
                f"{good:g} ({low:.0f} to {metrics[f'{name}.good_high']:.0f}), decoys {chance:.2%}",
                low >= min(24.0, 0.5 * records) and low > chance * records,
            )
        )
    return claims


def _chart(setting: _Setting, metrics: dict[str, float]) -> Chart:
    points = [
        Point(
            name, metrics[f"{name}.good"], metrics[f"{name}.good_low"], metrics[f"{name}.good_high"]
        )
        for name in setting.victims
    ]
    return Chart("Good reconstructions", "victim", "images above SSIM 0.4", {"ours": points})


STUDY = Study(
    name="margin-large",
    title="Training images from the weights alone: many images (Fig. 6)",
    paper="Buzaglo23",
    run=_run,
)
