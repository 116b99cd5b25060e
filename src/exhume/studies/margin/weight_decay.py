"""Buzaglo23, Figs. 4 and 5: weight decay from a standard start, against a standard and a small start without.

Two classes and ten, the same images for every victim of them, and two attacks: the first layer's alone, which
needs no decay, and the strongest that the weights allow. Beside the counts: how many images lie on the margin
and whether those come back, errors on training and held-out images (a large decay does not fit all training
images), and how far training is from the stationary point that decay makes exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.strongest import Strongest
from exhume.core.contract import Key
from exhume.core.results import Chart, Findings
from exhume.models.homogeneous import HomogeneousMLP
from exhume.studies.claims import Claims, flattened, line, mean_of, paired
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.margin.game import (
    GOOD,
    ONE_THREAD,
    MarginGame,
    decayed,
    from_small_start,
    margin_and_likeness,
    quick,
)
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Setting:
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
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting("digits", (2, 3), 6, 60, (0.01,), 2000, quick(), decoys=60),
    "cpu": _Setting("cifar10", (2, 10), 50, 500, _CPU, 4000, _TWO),
    "paper": _Setting(
        "cifar10", (2, 10), 500, 1000, _PAPER, 200_000, Strongest(FirstLayer(restarts=16))
    ),
}


@dataclass(frozen=True, eq=False)
class _Arm:
    """One victim: its numbers, (n,) 1 where an image came back, and what the page shows."""

    numbers: dict[str, float]
    good: Tensor
    findings: Findings


def _run(run: Run[_Setting]) -> Outcome:
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
    claims: Claims = {}
    for classes in setting.classes:
        claims |= _claims(setting, classes, metrics, good, run.key.fold("claims", classes))
    return Outcome(
        claims=claims | _with_errors(setting, metrics),
        metrics=metrics,
        attacks=[arms[0].findings for arms in found.values()],
        classes=list(records.classes[: max(setting.classes)]),
        deviations=[
            "The decoys double as test images; none of them was trained on.",
            f"{setting.images} images in all, width {setting.width}; counts are means over {setting.draws} "
            "draws of the images. The paper has 50 images of a class, width 1000.",
        ],
        charts=[_chart(setting, classes, metrics) for classes in setting.classes],
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


def _chart(setting: _Setting, classes: int, metrics: dict[str, float]) -> Chart:
    arms = ["small", "standard", *(f"decay{decay:g}" for decay in setting.decays)]
    names = {name: f"c{classes}.{name}" for name in arms}
    series = {
        "strongest attack": line(names, "good", metrics),
        "first layer alone": line(names, "good_first_layer", metrics),
    }
    return Chart(f"Good reconstructions, {classes} classes", "victim", GOOD, series)


def _claims(
    setting: _Setting, classes: int, metrics: dict[str, float], good: dict[str, Tensor], key: Key
) -> Claims:
    named = [f"c{classes}.decay{decay:g}" for decay in setting.decays]
    best = max(named, key=lambda name: metrics[f"{name}.good"])
    plain = max(named, key=lambda name: metrics[f"{name}.good_first_layer"])
    count, on_margin = metrics[f"{best}.good"], metrics[f"{best}.on_margin"]
    standard, small = f"c{classes}.standard", f"c{classes}.small"

    def against(other: str) -> tuple[str, bool]:
        gap = paired(good[best], good[other], key.fold(other))
        counts = f"{count:g} ({best}) against {metrics[f'{other}.good']:g}"
        return f"{counts}; share of images {gap.low:+.2f} to {gap.high:+.2f}", gap.low > 0

    claims: Claims = {
        "decay-leaks": (
            f"From a standard start, weight decay raises the count ({classes} classes)",
            "Fig. 4: without decay hardly any",
            *against(standard),
        ),
        "above-small": (
            f"For some decay the count is above that of a small first layer ({classes} classes)",
            "Fig. 4: significantly higher",
            *against(small),
        ),
        "first-layer-alone": (
            f"The same with the attack on the first layer alone ({classes} classes)",
            "Fig. 4, by eq. (6)",
            f"{metrics[f'{plain}.good_first_layer']:g} ({plain}) against "
            f"{metrics[f'{small}.good_first_layer']:g}",
            metrics[f"{plain}.good_first_layer"] > metrics[f"{small}.good_first_layer"],
        ),
        "margin": (
            f"Weight decay pushes images to the margin ({classes} classes)",
            "Fig. 5",
            f"{on_margin:g} on the margin against {metrics[f'{standard}.on_margin']:g}",
            on_margin > metrics[f"{standard}.on_margin"],
        ),
    }
    return {f"c{classes}.{name}": claim for name, claim in claims.items()}


def _with_errors(setting: _Setting, metrics: dict[str, float]) -> Claims:
    """Do images come back from a network that errs on some of them?"""
    arms = [f"c{c}.decay{decay:g}" for c in setting.classes for decay in setting.decays]
    erring = [name for name in arms if metrics[f"{name}.train_errors"] > 0]
    said = (
        f"{name}: {metrics[f'{name}.good']:g} with {metrics[f'{name}.train_errors']:g} errors"
        for name in erring
    )
    return {
        "with-errors": (
            "Images come back from a network that errs on some training images",
            "Fig. 4: even with non-zero training error",
            "; ".join(said) or "no victim errs on its training images",
            any(metrics[f"{name}.good"] > 0 for name in erring),
        )
    }


STUDY = Study("margin-weight-decay", _SCALES, _run, threads=ONE_THREAD)
