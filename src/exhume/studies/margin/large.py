"""Buzaglo23, Fig. 6 and the paper's own size: many training images, from a small start and with weight decay.

paper: 5,000 images of CIFAR-100, hidden width 10,000. cpu: 250 and 500 images of CIFAR-10, width 1,000, and
100 of MNIST, width 500.
The hidden span needs more neurons than images, by as many as an image has coordinates: at 500 images and
1,000 neurons it does not apply, and the first layer's attack is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.strongest import Strongest
from exhume.studies.claims import prefixed, ranged
from exhume.studies.framework import Outcome, Run, Scale, Stated, Study
from exhume.studies.margin.game import MarginGame, counts, decayed, from_small_start, quick
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose

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
        if self.decay:
            return decayed(shape, self.width, self.classes, self.decay, self.epochs)
        return replace(from_small_start(shape, self.width, self.classes), epochs=self.epochs)


@dataclass(frozen=True)
class _Setting:
    victims: dict[str, _Victim]
    attack: Strongest
    decoys: int = 1000


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        {"n10": _Victim("digits", 5, 2, 80), "n15.decay": _Victim("digits", 5, 3, 80, 0.01, 2000)},
        attack=Strongest(quick().first, quick(2, 60).hidden),
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


def _run(run: Run[_Setting]) -> Outcome:
    setting, metrics, sections = run.setting, dict[str, float](), []
    for name, victim in setting.victims.items():
        records, key = run.records(victim.source), run.key.fold("margin-large", name)
        chosen = choose(records, victim.classes, victim.each, setting.decoys, key.fold("choose"))
        recipe = victim.recipe(records.shape)
        game = MarginGame.begun(run, name, setting.attack, recipe, chosen, key=key)
        played = game.play(against=False)
        metrics |= prefixed(name, played.metrics)
        sections.append(played.findings)
    largest = list(setting.victims.values())[-1]
    return Outcome(
        claims={name: _claim(name, metrics) for name in setting.victims},
        metrics=metrics,
        attacks=sections,
        classes=[str(label) for label in range(largest.classes)],
        deviations=[
            "One attack seed.",
            "Steps of the victims without decay grow as the loss falls.",
            f"At most {largest.classes * largest.each} images of {largest.source}, width {largest.width}; "
            "Fig. 6 has 5,000 images of CIFAR-100, width 10,000.",
        ],
        charts=[counts({name: name for name in setting.victims}, metrics)],
    )


def _claim(name: str, metrics: dict[str, float]) -> Stated:
    records, low, chance = (metrics[f"{name}.{m}"] for m in ("records", "good_low", "decoy_rate"))
    return (
        f"Dozens of the {records:.0f} training images come back, beyond what decoys do",
        "Fig. 6: a few dozen of 5,000",
        f"{metrics[f'{name}.good']:g} ({ranged(f'{name}.good', metrics, '.0f')}), decoys {chance:.2%}",
        low >= min(24.0, 0.5 * records) and low > chance * records,
    )


_TITLE = "Training images from the weights alone: many images (Fig. 6)"
STUDY = Study("margin-large", _TITLE, "Buzaglo23", _SCALES, _run)
