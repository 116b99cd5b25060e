"""Buzaglo23, Figs. 4 and 5: weight decay from a standard start, against a standard and a small start without.

Same images for every victim, and two attacks: the first layer's alone, which needs no decay, and the
strongest that the weights allow. Beside the counts: how many images lie on the margin, errors on training
and held-out images, and how far training is from the stationary point that decay makes exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.strongest import Strongest
from exhume.contract import Key
from exhume.models.homogeneous import HomogeneousMLP
from exhume.studies.claims import flattened, line, mean_of, paired
from exhume.studies.framework import Chart, Claims, Outcome, Run, Scale, Study
from exhume.studies.margin.game import GOOD, MarginGame, decayed, from_small_start, quick
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose

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
        plain = HomogeneousMLP(shape, (self.width, self.width), self.classes)
        return {
            "small": from_small_start(shape, self.width, self.classes),
            "standard": MarginDescent(plain, growing_steps=0.003),
            **{
                f"decay{decay:g}": decayed(shape, self.width, self.classes, decay, self.epochs)
                for decay in self.decays
            },
        }


_CPU = (0.003, 0.01, 0.02)  # decays
_PAPER = (1e-4, 1e-3, 3e-3, 0.01, 0.02)
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting("digits", 3, 3, 60, (0.01,), 2000, quick(), decoys=60),
    "cpu": _Setting("cifar10", 10, 5, 500, _CPU, 6000, Strongest(FirstLayer(restarts=2)), draws=2),
    "paper": _Setting("cifar10", 10, 50, 1000, _PAPER, 200_000, Strongest(FirstLayer(restarts=16))),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting = run.setting
    records = run.records(setting.source)
    found: dict[str, list[tuple[dict[str, float], Tensor]]] = {}
    for draw in range(setting.draws):
        key = run.key.fold("margin-weight-decay", draw)
        chosen = choose(records, setting.classes, setting.each, setting.decoys, key.fold("choose"))
        here = run.part(f"draw {draw + 1}")
        for name, recipe in setting.recipes(records.shape).items():
            own = key.fold(name)
            game = MarginGame.begun(here, name, setting.attack, recipe, chosen, key=key, own=own)
            found.setdefault(name, []).append(_arm(game, setting.attack.first))
    metrics = flattened({name: mean_of(n for n, _ in arms) for name, arms in found.items()})
    good = {name: torch.cat([good for _, good in arms]) for name, arms in found.items()}
    names = {name: name for name in found}
    series = {
        "strongest attack": line(names, "good", metrics),
        "first layer alone": line(names, "good_first_layer", metrics),
    }
    return Outcome(
        claims=_claims(setting, metrics, good, run.key.fold("claims")),
        metrics=metrics,
        classes=list(records.classes[: setting.classes]),
        deviations=[
            "The decoys double as test images; none of them was trained on.",
            f"{setting.classes} classes x {setting.each} images, width {setting.width}; counts are means "
            f"over {setting.draws} draws of the images.",
        ],
        charts=[Chart("Good reconstructions", "victim", GOOD, series)],
    )


def _arm(game: MarginGame, first: FirstLayer) -> tuple[dict[str, float], Tensor]:
    """The numbers of one victim, and (n,) 1 where the image came back."""
    _, scores = game.once(0)
    _, plain = replace(game, attack=first).once(0)
    kept = ("good", "good_share", "decoy_rate", "tpr_at_1pct", "ssim_median")
    numbers = {metric: scores.metrics[metric] for metric in kept}
    numbers["good_first_layer"] = plain.metrics["good"]
    numbers |= game.victim.report | {"test_error": 1 - game.test_accuracy}
    return numbers, scores.members.good.double()


def _claims(
    setting: _Setting, metrics: dict[str, float], good: dict[str, Tensor], key: Key
) -> Claims:
    named = [f"decay{decay:g}" for decay in setting.decays]
    best = max(named, key=lambda name: metrics[f"{name}.good"])
    plain = max(named, key=lambda name: metrics[f"{name}.good_first_layer"])
    count, on_margin = metrics[f"{best}.good"], metrics[f"{best}.on_margin"]

    def against(other: str) -> tuple[str, bool]:
        gap = paired(good[best], good[other], key.fold(other))
        counts = f"{count:g} ({best}) against {metrics[f'{other}.good']:g}"
        return f"{counts}; share of images {gap.low:+.2f} to {gap.high:+.2f}", gap.low > 0

    return {
        "decay-leaks": (
            "From a standard start, weight decay raises the count",
            "Fig. 4: without decay hardly any",
            *against("standard"),
        ),
        "above-small": (
            "For some decay the count is above that of a small first layer",
            "Fig. 4: significantly higher",
            *against("small"),
        ),
        "first-layer-alone": (
            "The same with the attack on the first layer alone",
            "Fig. 4, by eq. (6)",
            f"{metrics[f'{plain}.good_first_layer']:g} ({plain}) against "
            f"{metrics['small.good_first_layer']:g}",
            metrics[f"{plain}.good_first_layer"] > metrics["small.good_first_layer"],
        ),
        "margin": (
            "Weight decay pushes images to the margin",
            "Fig. 5",
            f"{on_margin:g} on the margin against {metrics['standard.on_margin']:g}",
            on_margin > metrics["standard.on_margin"],
        ),
    }


_TITLE = "Weight decay and the margin (Figs. 4, 5)"
STUDY = Study("margin-weight-decay", _TITLE, "Buzaglo23", _SCALES, _run)
