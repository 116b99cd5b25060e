"""Do the records that somebody chose differ from the strangers by themselves, before any attack?

Where the user said who was trained on, answers that know nothing of the release (the mean of a stratum, and
records that nobody trained on) are put in the place of reconstructions. If the chosen records are nearer to
them, or farther, than strangers are, a line-up would tell the choice and not the release.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import Key
from exhume.score.lineup import Alike, argsort_rows, likeness
from exhume.score.places import Places

DIFFERENT = (
    "these records differ from the others by themselves: answers that know nothing of the release tell them "
    "apart (p = {:.2g}), so that a line-up would show how they were chosen; give others of the same origin"
)
_DRAWS = 1999
_HELD = 0.2  # of the strangers serve as answers
_MOST = 50


def placebo(places: Places, key: Key, alike: Alike | None = None) -> float:
    """p-value, for all answers and measures together; small: they differ."""
    generator = key.generator()
    values: list[float] = []
    means, held = _split(places, generator)
    records = {label: places.inputs[held & (places.stratum == label)] for label in means}
    for answers, pool in ((means, torch.ones_like(held)), (records, ~held)):
        values += _tested(places, answers, pool, generator, alike)
    return min(1.0, min(values, default=1.0) * max(1, len(values)))


def _split(places: Places, generator: torch.Generator) -> tuple[dict[int, Tensor], Tensor]:
    """The mean of every stratum, and (n,) bool: strangers that serve as answers."""
    means: dict[int, Tensor] = {}
    held = torch.zeros(len(places.release), dtype=torch.bool)
    for label in torch.unique(places.stratum).tolist():
        same = places.stratum == label
        inputs = places.inputs[same]
        middle = inputs.double().mean(0) if inputs.is_floating_point() else inputs.mode(0).values
        means[label] = middle.to(inputs.dtype)[None]
        strangers = (same & (places.release < 0)).nonzero()[:, 0]
        order = torch.randperm(len(strangers), generator=generator)
        held[strangers[order[: min(_MOST, int(_HELD * len(strangers)))]]] = True
    return means, held


def _tested(
    places: Places,
    answers: dict[int, Tensor],
    pool: Tensor,
    generator: torch.Generator,
    alike: Alike | None,
) -> list[float]:
    """A p-value for each measure: is the mean rank of the targets as if they were drawn at random?"""
    totals: list[Tensor] = []  # by measure (1 + draws,), the observed one first
    for label, own in answers.items():
        places_here = (pool & (places.stratum == label)).nonzero()[:, 0]
        chosen = places.release[places_here] >= 0
        if not len(own) or not bool(chosen.any()) or bool(chosen.all()):
            continue
        records = places.inputs[places_here]
        orders = argsort_rows(torch.rand(_DRAWS, len(chosen), generator=generator))
        for number, row in enumerate(likeness([own], records, alike)):
            ranks = row[0].argsort().argsort().double()
            middle = ranks - ranks.mean()
            sums = torch.cat(
                [middle[chosen].sum()[None], middle[orders[:, : int(chosen.sum())]].sum(1)]
            )
            if number == len(totals):
                totals.append(torch.zeros(1 + _DRAWS, dtype=torch.float64))
            totals[number] += sums / len(chosen)
    extremes = [total.abs() for total in totals]
    return [float((one[1:] >= one[0] - 1e-12).sum() + 1) / (1 + _DRAWS) for one in extremes]
