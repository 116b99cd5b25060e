"""Buzaglo23's figures: classes against two, per class and in all, weight decay, many images.

Figs. 1, 2 and 4, ten classes against two. Three victims of the same images: (i) a small first layer and no
decay, (ii) standard initialisation with weight decay, (binary) as (i) with one output that tells the first
half of the classes from the second. Every attack seed is run with our attack and, for (i) and (ii), as many
seconds with eq. (6) as published. Settings were chosen on other images, drawn with another key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.margin.descent import SearchDescent
from exhume.attacks.margin.hidden_span import HiddenSpan, Strongest
from exhume.attacks.margin.stationarity import Equation6, FirstLayer
from exhume.core.contract import Key, Records
from exhume.core.results import Chart, Findings
from exhume.models.mlp import HomogeneousMLP
from exhume.score.intervals import bootstrap
from exhume.score.margin import MarginScores
from exhume.studies.claims import Range, flattened, line, mean_of, paired, prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.margin.game import (
    GOOD,
    ONE_THREAD,
    MarginGame,
    Played,
    crowded,
    decayed,
    from_small_start,
    margin_and_likeness,
    quick,
    settled,
)
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose


@dataclass(frozen=True)
class _MulticlassSetting:
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


_MULTICLASS_SCALES: dict[Scale, _MulticlassSetting] = {
    "smoke": _MulticlassSetting("digits", 2, 100, quick(2, 60), 3000, decoys=100, growing=0.01),
    "cpu": _MulticlassSetting(
        "cifar10", each=10, width=1000, attack=Strongest(), decayed_epochs=10_000
    ),
    "paper": _MulticlassSetting(
        "cifar10",
        each=50,
        width=1000,
        attack=Strongest(FirstLayer(restarts=16, descent=SearchDescent(steps=2000))),
        decayed_epochs=200_000,
    ),
}


def _run_multiclass(run: Run[_MulticlassSetting]) -> Outcome:
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
    )


def _halves(records: Records) -> Records:
    """These records with two labels."""
    middle = len(records.classes) // 2
    return Records(records.inputs, (records.labels >= middle).long(), ("first half", "second half"))


MULTICLASS = Study("margin-multiclass", _MULTICLASS_SCALES, _run_multiclass, threads=ONE_THREAD)


# Buzaglo23, Figs. 3 and 8: more classes leak more, per class and at a fixed number of images.
#
# Victims with a small first layer, growing steps, c classes of a few images each; and the same number of
# images in all, shared among c classes.


_SHARE = ("good", "good_share", "good_share_low", "good_share_high")
_ENOUGH = 5  # neurons an image
_CLASSES_KEPT = (*_SHARE, "decoy_rate", "tpr_at_1pct", "ssim_median")


@dataclass(frozen=True)
class _ClassesSetting:
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
_CLASSES_SCALES: dict[Scale, _ClassesSetting] = {
    "smoke": _ClassesSetting("digits", (2, 5), (2,), 10, 60, attack=quick().first, decoys=50),
    "cpu": _ClassesSetting(
        *_GRID, attack=FirstLayer(restarts=2), few=crowded(restarts=2), slower=("c4.total500",)
    ),
    "paper": _ClassesSetting(*_GRID, attack=FirstLayer(restarts=16), few=crowded(restarts=16)),
}


def _run_classes(run: Run[_ClassesSetting]) -> Outcome:
    setting, metrics = run.setting, dict[str, float]()
    for name, (classes, each) in setting.victims().items():
        metrics |= _one(run, name, classes, each)
    series = {
        end: line({c: f"c{c}.{end}" for c in setting.classes}, "good", metrics)
        for end in (*(f"each{each}" for each in setting.each), f"total{setting.total}")
    }
    return Outcome(
        said={"compared": compared_classes(setting, metrics)},
        metrics=metrics,
        classes=list(run.records(setting.source).classes),
        deviations=[
            f"{name} was trained at half the rate: it diverges at .5." for name in setting.slower
        ],
        charts=[Chart("Good reconstructions", "classes", GOOD, series)],
    )


def _one(run: Run[_ClassesSetting], name: str, classes: int, each: int) -> dict[str, float]:
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
    measured = {metric: scores.metrics[metric] for metric in _CLASSES_KEPT}
    measured["residual_at_truth"] = game.victim.report["residual_at_truth"]
    return prefixed(name, measured)


def compared_classes(
    setting: _ClassesSetting, metrics: dict[str, float]
) -> list[dict[str, object]]:
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


CLASSES = Study("margin-classes", _CLASSES_SCALES, _run_classes, threads=ONE_THREAD)


# Buzaglo23, Figs. 4 and 5: weight decay from a standard start, against a standard and a small start without.
#
# Two classes and ten, the same images for every victim of them, and two attacks: the first layer's alone,
# which needs no decay, and the strongest that the weights allow. Beside the counts: how many images lie on
# the margin and whether those come back, errors on training and held-out images (a large decay does not fit
# all training images), and how far training is from the stationary point that decay makes exact.


@dataclass(frozen=True)
class _DecaySetting:
    source: str
    classes: tuple[int, ...]
    images: int  # in all, shared among the classes
    width: int
    decays: tuple[float, ...]
    epochs: int
    attack: Strongest
    decoys: int = 1000
    draws: int = 1  # of the images

    def recipes(self, shape: tuple[int, ...], classes: int) -> dict[str, MarginDescent]:
        plain = HomogeneousMLP(shape, (self.width, self.width), classes)
        return {
            "small": from_small_start(shape, self.width, classes),
            "standard": MarginDescent(plain, growing_steps=0.003),
            **{
                f"decay{decay:g}": decayed(shape, self.width, classes, decay, self.epochs)
                for decay in self.decays
            },
        }


_CPU = (
    0.001,
    0.003,
    0.01,
    0.02,
    0.05,
    0.1,
    0.14,
)  # decays; at the last some training images are misread
_PAPER = (1e-4, 1e-3, 3e-3, 0.01, 0.02, 0.05, 0.15)
_TWO = Strongest(FirstLayer(restarts=2))
_DECAY_SCALES: dict[Scale, _DecaySetting] = {
    "smoke": _DecaySetting("digits", (2, 3), 6, 60, (0.01,), 2000, quick(), decoys=60),
    "cpu": _DecaySetting("cifar10", (2, 10), 50, 500, _CPU, 4000, _TWO),
    "paper": _DecaySetting(
        "cifar10", (2, 10), 500, 1000, _PAPER, 200_000, Strongest(FirstLayer(restarts=16))
    ),
}


@dataclass(frozen=True, eq=False)
class _Arm:
    """One victim: its numbers, (n,) 1 where an image came back, and what the page shows."""

    numbers: dict[str, float]
    good: Tensor
    findings: Findings


def _run_decays(run: Run[_DecaySetting]) -> Outcome:
    setting = run.setting
    records = run.records(setting.source)
    found: dict[str, list[_Arm]] = {}
    for classes in setting.classes:
        for draw in range(setting.draws):
            key = run.key.fold("margin-weight-decay", classes, draw)
            each = setting.images // classes
            chosen = choose(records, classes, each, setting.decoys, key.fold("choose"))
            here = run.part(f"{classes} classes, draw {draw + 1}")
            for name, recipe in setting.recipes(records.shape, classes).items():
                own, label = key.fold(name), f"c{classes}.{name}"
                game = MarginGame.begun(
                    here, label, setting.attack, recipe, chosen, key=key, own=own
                )
                found.setdefault(label, []).append(_arm(game, setting.attack.first))
    metrics = flattened(
        {name: mean_of(one.numbers for one in arms) for name, arms in found.items()}
    )
    good = {name: torch.cat([one.good for one in arms]) for name, arms in found.items()}
    by_classes = [
        compared_decays(setting, classes, metrics, good, run.key.fold("claims", classes))
        for classes in setting.classes
    ]
    return Outcome(
        said={"by_classes": by_classes, **with_errors(setting, metrics)},
        metrics=metrics,
        attacks=[arms[0].findings for arms in found.values()],
        classes=list(records.classes[: max(setting.classes)]),
    )


def _arm(game: MarginGame, first: FirstLayer) -> _Arm:
    found, scores = game.once(0)
    _, plain = replace(game, attack=first).once(0)
    kept = ("good", "good_share", "decoy_rate", "tpr_at_1pct", "ssim_median")
    numbers = {metric: scores.metrics[metric] for metric in kept}
    numbers["good_first_layer"] = plain.metrics["good"]
    numbers |= game.victim.report | {
        "test_error": 1 - game.test_accuracy,
        "ssim_against_margin": margin_and_likeness(game.victim, scores),
    }
    return _Arm(numbers, scores.members.good.double(), game.findings(found, scores))


def compared_decays(
    setting: _DecaySetting,
    classes: int,
    metrics: dict[str, float],
    good: dict[str, Tensor],
    key: Key,
) -> dict[str, object]:
    """What the claims about so many classes ask for: the best of the decays, by either attack."""
    named = [f"c{classes}.decay{decay:g}" for decay in setting.decays]
    best = max(named, key=lambda name: metrics[f"{name}.good"])
    plain = max(named, key=lambda name: metrics[f"{name}.good_first_layer"])
    others = {name: f"c{classes}.{name}" for name in ("standard", "small")}
    gaps = {
        name: paired(good[best], good[other], key.fold(other)) for name, other in others.items()
    }
    arms = ["small", "standard", *(f"decay{decay:g}" for decay in setting.decays)]
    named_arms = {name: f"c{classes}.{name}" for name in arms}
    return {"classes": classes, "best": best, "plain": plain, "arms": named_arms, **gaps}


def with_errors(setting: _DecaySetting, metrics: dict[str, float]) -> dict[str, object]:
    """Victims that err on some of their training images, and what comes back of these."""
    arms = [f"c{c}.decay{decay:g}" for c in setting.classes for decay in setting.decays]
    erring = {name: metrics[f"{name}.train_errors"] for name in arms}
    erring = {name: errors for name, errors in erring.items() if errors > 0}
    said = [f"{n}: {metrics[f'{n}.good']:g} with {e:g} errors" for n, e in erring.items()]
    most = max((metrics[f"{name}.good"] for name in erring), default=0.0)
    return {"erring": said or "no victim errs on its training images", "most": most}


WEIGHT_DECAY = Study("margin-weight-decay", _DECAY_SCALES, _run_decays, threads=ONE_THREAD)


# Buzaglo23, Fig. 6 and the paper's own size: many training images, small start and weight decay.
#
# paper: 5,000 images of CIFAR-100, hidden width 10,000. cpu: 500 images of CIFAR-10, as many as in the
# paper's Figs. 1 to 5, and 100 of MNIST, width 500. With decay the hidden span needs more neurons than
# images, by as many as an image has coordinates, so there are widths 2,000 and 1,000. From a small start the
# first layer's attack has eq. (6) as published beside it, for as many core-seconds and for four times that.
#
# `margin-thousand` asks the same of 1,000 images at width 4,000.


_MORE = 4  # times the core-seconds
_LARGE_KEPT = ("good", "decoy_rate", "tpr_at_1pct", "ssim_median")


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
class _LargeSetting:
    victims: dict[str, _Victim]
    attack: Strongest
    decoys: int = 1000


_LARGE_SCALES: dict[Scale, _LargeSetting] = {
    "smoke": _LargeSetting(
        {
            "n10.small": _Victim("digits", 5, 2, 80, bar=5, eq6=15),
            "n15.decay": _Victim("digits", 5, 3, 80, 0.01, 800, bar=7),
        },
        attack=Strongest(quick().first, quick(2, 60).hidden),
        decoys=100,
    ),
    "cpu": _LargeSetting(
        {
            "n500.decay": _Victim("cifar10", 10, 50, 2000, 0.01, 2000, bar=300),
            "n500.decay.width1000": _Victim("cifar10", 10, 50, 1000, 0.01, 2000),
            "mnist100.decay": _Victim("mnist", 10, 10, 500, 0.01, 2000),
            "mnist100": _Victim("mnist", 10, 10, 500),
            "n500.small": _Victim("cifar10", 10, 50, 1000, bar=30, eq6=170),
        },
        attack=Strongest(crowded(restarts=2), HiddenSpan(starts=1.25, restarts=8)),
    ),
    "paper": _LargeSetting(
        {
            "n5000.small": _Victim("cifar100", 100, 50, 10_000, eq6=50_000),
            "n5000.decay": _Victim("cifar100", 100, 50, 10_000, 0.01, 2000),
        },
        attack=Strongest(crowded(restarts=16)),
    ),
}

_SMOKE = {"n15.decay": _LARGE_SCALES["smoke"].victims["n15.decay"]}
_WIDE = {"n1000.decay": _Victim("cifar10", 10, 100, 4000, 0.01, 800, bar=600)}
_THOUSAND: dict[Scale, _LargeSetting] = {
    "smoke": replace(_LARGE_SCALES["smoke"], victims=_SMOKE),
    "cpu": _LargeSetting(_WIDE, Strongest()),
    "paper": _LargeSetting(
        {"n1000.decay": replace(_WIDE["n1000.decay"], epochs=2000)}, Strongest()
    ),
}


def _run_large(run: Run[_LargeSetting]) -> Outcome:
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
            **{"images": largest.classes * largest.each, "victims_by_name": list(setting.victims)},
        },
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
    return {metric: scores.metrics[metric] for metric in _LARGE_KEPT} | ends


LARGE = Study("margin-large", _LARGE_SCALES, _run_large, on_device=True, threads=ONE_THREAD)
THOUSAND = Study("margin-thousand", _THOUSAND, _run_large, on_device=True)
