"""Buzaglo23, Fig. 6 and the paper's own size: many training images, from a small start and with weight decay.

paper: 5,000 images of CIFAR-100, hidden width 10,000. cpu: 500 images of CIFAR-10, as many as in the paper's
Figs. 1 to 5, and 100 of MNIST, width 500. With decay the hidden span needs more neurons than images, by as
many as an image has coordinates, so there are widths 2,000 and 1,000. From a small start the first layer's
attack has eq. (6) as published beside it, for as many core-seconds and for four times as many.

`margin-thousand` asks the same of 1,000 images at width 4,000.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from exhume.attacks.margin.eq6 import Equation6
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.hidden_span import HiddenSpan
from exhume.attacks.margin.strongest import Strongest
from exhume.core.contract import Key
from exhume.score.intervals import bootstrap
from exhume.score.margin import MarginScores
from exhume.studies.claims import paired, prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.margin.game import (
    ONE_THREAD,
    MarginGame,
    counts,
    crowded,
    from_small_start,
    quick,
    settled,
)
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose

__all__ = ["STUDY", "THOUSAND"]

_MORE = 4  # times the core-seconds
_KEPT = ("good", "decoy_rate", "tpr_at_1pct", "ssim_median")


@dataclass(frozen=True)
class _Victim:
    source: str
    classes: int
    each: int  # images of a class
    width: int
    decay: float = 0.0  # 0: a small first layer and growing steps
    epochs: int = 100_000
    bar: int = 24  # images that are to come back: dozens, unless a number was set beforehand
    eq6: int = 0  # steps of eq. (6) that take as many core-seconds as our attack; 0: not run

    def recipe(self, shape: tuple[int, ...]) -> MarginDescent:
        if self.decay:
            return settled(shape, self.width, self.classes, self.decay, self.epochs)
        return replace(from_small_start(shape, self.width, self.classes), epochs=self.epochs)


@dataclass(frozen=True)
class _Setting:
    victims: dict[str, _Victim]
    attack: Strongest
    decoys: int = 1000


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        {
            "n10.small": _Victim("digits", 5, 2, 80, bar=5, eq6=15),
            "n15.decay": _Victim("digits", 5, 3, 80, 0.01, 800, bar=7),
        },
        attack=Strongest(quick().first, quick(2, 60).hidden),
        decoys=100,
    ),
    "cpu": _Setting(
        {
            "n500.decay": _Victim("cifar10", 10, 50, 2000, 0.01, 2000, bar=300),
            "n500.decay.width1000": _Victim("cifar10", 10, 50, 1000, 0.01, 2000),
            "mnist100.decay": _Victim("mnist", 10, 10, 500, 0.01, 2000),
            "mnist100": _Victim("mnist", 10, 10, 500),
            "n500.small": _Victim("cifar10", 10, 50, 1000, bar=30, eq6=170),
        },
        attack=Strongest(crowded(restarts=2), HiddenSpan(starts=1.25, restarts=8)),
    ),
    "paper": _Setting(
        {
            "n5000.small": _Victim("cifar100", 100, 50, 10_000, eq6=50_000),
            "n5000.decay": _Victim("cifar100", 100, 50, 10_000, 0.01, 2000),
        },
        attack=Strongest(crowded(restarts=16)),
    ),
}

_SMOKE = {"n15.decay": _SCALES["smoke"].victims["n15.decay"]}
_WIDE = {"n1000.decay": _Victim("cifar10", 10, 100, 4000, 0.01, 800, bar=600)}
_THOUSAND: dict[Scale, _Setting] = {
    "smoke": replace(_SCALES["smoke"], victims=_SMOKE),
    "cpu": _Setting(_WIDE, Strongest()),
    "paper": _Setting({"n1000.decay": replace(_WIDE["n1000.decay"], epochs=2000)}, Strongest()),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting, metrics, sections = run.setting, dict[str, float](), []
    victims, longer = list[dict[str, object]](), list[dict[str, object]]()
    for name, victim in setting.victims.items():
        records, key = run.records(victim.source), run.key.fold("margin-large", name)
        chosen = choose(records, victim.classes, victim.each, setting.decoys, key.fold("choose"))
        recipe = victim.recipe(records.shape)
        game = MarginGame.begun(run, name, setting.attack, recipe, chosen, key=key)
        played = game.play(against=False)
        metrics |= prefixed(name, played.metrics)
        sections.append(played.findings)
        victims.append({"name": name, "bar": victim.bar})
        if victim.eq6:
            metrics |= _longer(game, setting.attack.first)
            found, beside = _beside(game, victim, played.good)
            metrics |= found
            longer += beside
    largest = max(setting.victims.values(), key=lambda victim: victim.classes * victim.each)
    return Outcome(
        metrics=metrics,
        attacks=sections,
        classes=[str(label) for label in range(largest.classes)],
        said={
            **{"victims": victims, "longer": longer, "largest": largest},
            "images": largest.classes * largest.each,
        },
        charts=[counts({name: name for name in setting.victims}, metrics)],
    )


def _longer(game: MarginGame, first: FirstLayer) -> dict[str, float]:
    """The first layer's attack with twice the restarts; the later ones begin with what the first agree on."""
    attack = replace(first, restarts=2 * first.restarts, head=game.recipe.head)
    label, key = f"victim {game.name}, longer", game.key.fold("attack", 0)
    _, scores = game.attacked(attack, label, key)
    return prefixed(f"{game.name}.longer", _measured(scores, key.fold("longer")))


def _beside(
    game: MarginGame, victim: _Victim, ours: Tensor
) -> tuple[dict[str, float], list[dict[str, object]]]:
    """Eq. (6) on the same victim, for as many core-seconds and for more. ours: (n,) 1 where one came back."""
    metrics, said = dict[str, float](), list[dict[str, object]]()
    for arm, times in (("eq6", 1), (f"eq6x{_MORE}", _MORE)):
        steps, name = times * victim.eq6, f"{game.name}.{arm}"
        attack = Equation6(candidates=2 * len(ours), head=game.recipe.head)
        attack = replace(attack, descent=replace(attack.descent, steps=steps))
        _, scores = game.attacked(attack, f"victim {game.name}, {arm}", game.key.fold(arm))
        metrics |= prefixed(name, _measured(scores, game.key.fold(arm)) | {"steps": float(steps)})
        good = scores.members.good.double()
        gap = paired(ours, good, game.key.fold(arm, "gap"))
        long = "as many core-seconds" if times == 1 else f"{times} times as many"
        counts = {"ours": float(ours.sum()), "theirs": float(good.sum())}
        said.append({"victim": game.name, "arm": arm, "long": long, "gap": gap, **counts})
    return metrics, said


def _measured(scores: MarginScores, key: Key) -> dict[str, float]:
    good = scores.members.good.double()
    low, high = bootstrap(good, key) if bool(good.any()) else (0.0, 0.0)
    ends = {"good_low": low * len(good), "good_high": high * len(good)}
    return {metric: scores.metrics[metric] for metric in _KEPT} | ends


STUDY = Study("margin-large", _SCALES, _run, on_device=True, threads=ONE_THREAD)
THOUSAND = Study("margin-thousand", _THOUSAND, _run, on_device=True)
