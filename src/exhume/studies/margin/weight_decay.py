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
from exhume.studies.claims import flattened, line, mean_of, paired
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
    by_classes = [
        compared(setting, classes, metrics, good, run.key.fold("claims", classes))
        for classes in setting.classes
    ]
    return Outcome(
        said={"by_classes": by_classes, **with_errors(setting, metrics)},
        metrics=metrics,
        attacks=[arms[0].findings for arms in found.values()],
        classes=list(records.classes[: max(setting.classes)]),
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


def compared(
    setting: _Setting, classes: int, metrics: dict[str, float], good: dict[str, Tensor], key: Key
) -> dict[str, object]:
    """What the claims about so many classes ask for: the best of the decays, by either attack."""
    named = [f"c{classes}.decay{decay:g}" for decay in setting.decays]
    best = max(named, key=lambda name: metrics[f"{name}.good"])
    plain = max(named, key=lambda name: metrics[f"{name}.good_first_layer"])
    others = {name: f"c{classes}.{name}" for name in ("standard", "small")}
    gaps = {
        name: paired(good[best], good[other], key.fold(other)) for name, other in others.items()
    }
    return {"classes": classes, "best": best, "plain": plain, **gaps}


def with_errors(setting: _Setting, metrics: dict[str, float]) -> dict[str, object]:
    """Victims that err on some of their training images, and what comes back of these."""
    arms = [f"c{c}.decay{decay:g}" for c in setting.classes for decay in setting.decays]
    erring = {name: metrics[f"{name}.train_errors"] for name in arms}
    erring = {name: errors for name, errors in erring.items() if errors > 0}
    said = [f"{n}: {metrics[f'{n}.good']:g} with {e:g} errors" for n, e in erring.items()]
    most = max((metrics[f"{name}.good"] for name in erring), default=0.0)
    return {"erring": said or "no victim errs on its training images", "most": most}


STUDY = Study("margin-weight-decay", _SCALES, _run, threads=ONE_THREAD)
