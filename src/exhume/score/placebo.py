"""Do the records that somebody chose differ from the strangers by themselves, before any attack?

Where the user said who was trained on, answers that know nothing of the release are put in the place of
reconstructions: the mean of a stratum, records that nobody trained on, and what sets chosen records and
strangers apart. If the chosen records are nearer to the first two, or farther, than strangers are, or if the
third identifies them, a line-up would tell the choice and not the release.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import Key
from exhume.score.lineup import FEWEST, USUAL, Alike, argsort_rows, likeness
from exhume.score.places import Places

DIFFERENT = (
    "these records differ from the others by themselves: answers that know nothing of the release tell them "
    "apart (p = {:.2g}), so that a line-up would show how they were chosen; give others of the same origin"
)
_DRAWS = 1999
_HELD = 0.2  # of the strangers serve as answers
_MOST = 50
_AT_ONCE = 500
_RIDGE = 0.01  # of the mean variance of a column


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


def marked(places: Places, key: Key) -> float:
    """p-value of what sets chosen records and strangers apart, as a candidate in their line-up.

    The difference of their means, in units of the variance that all records share, is found on one half of
    them and put to the other: T counts the chosen records that are more like it than all their strangers
    are. Permutations within strata find it anew.

        s(r) = x_r' (C + lambda I)^-1 (mean of chosen - mean of strangers),  x less its stratum's mean
    """
    generator = key.fold("difference").generator()
    kernel = _kernel(places).float()
    half = _halves(places, generator)
    chosen = places.release >= 0
    drawn = _compared(places, half, generator)
    if not drawn:
        return 1.0
    moved = [(places.stratum == label).nonzero()[:, 0] for label in torch.unique(places.stratum)]
    counts = []
    for start in range(0, 1 + _DRAWS, _AT_ONCE):
        seated = torch.arange(len(chosen)).repeat(min(_AT_ONCE, 1 + _DRAWS - start), 1)
        for where in moved:
            order = argsort_rows(torch.rand(len(seated), len(where), generator=generator))
            seated[:, where] = where[order]
        if start == 0:
            seated[0] = torch.arange(len(chosen))
        count = torch.zeros(len(seated), dtype=torch.long)
        for fitted in (0, 1):
            weights = torch.zeros(len(seated), len(chosen))
            for members, sign in ((chosen, 1.0), (~chosen, -1.0)):
                at = (members & (half == fitted)).nonzero()[:, 0]
                weights.scatter_(1, seated[:, at], sign / max(1, len(at)))
            scores = (weights @ kernel).gather(1, seated)
            for target, strangers in drawn.items():
                if int(half[target]) != fitted:
                    count += scores[:, target] > scores[:, strangers].amax(1)
        counts.append(count)
    total = torch.cat(counts)
    return float((total >= total[0]).sum()) / (1 + _DRAWS)


def _kernel(places: Places) -> Tensor:
    """(n, n) x (C + lambda I)^-1 x', by the records' inner products; of texts the words that they have."""
    inputs = places.inputs
    if inputs.is_floating_point():
        rows = inputs.flatten(1).double().cpu()
    else:
        words = inputs.cpu() - int(inputs.min())
        rows = torch.zeros(len(words), int(words.max()) + 1, dtype=torch.float64)
        rows.scatter_(1, words, 1.0)
    for label in torch.unique(places.stratum):
        same = places.stratum == label
        rows[same] -= rows[same].mean(0)
    gram = rows @ rows.T
    ridge = _RIDGE * float(gram.diagonal().sum()) / rows.shape[1]
    loaded = gram + max(ridge, 1e-12) * torch.eye(len(gram), dtype=gram.dtype)
    return torch.cholesky_solve(gram, torch.linalg.cholesky(loaded))


def _halves(places: Places, generator: torch.Generator) -> Tensor:
    """(n,) 0 or 1: chosen records and strangers of every stratum dealt out at random."""
    half = torch.zeros(len(places.release), dtype=torch.long)
    for label in torch.unique(places.stratum).tolist():
        for chosen in (True, False):
            own = (places.stratum == label) & ((places.release >= 0) == chosen)
            rows = own.nonzero()[:, 0]
            order = torch.randperm(len(rows), generator=generator)
            half[rows[order]] = (torch.arange(len(rows)) + label) % 2
    return half


def _compared(places: Places, half: Tensor, generator: torch.Generator) -> dict[int, Tensor]:
    """The strangers of every chosen record in its stratum and half, where there are enough."""
    drawn = {}
    for target in (places.release >= 0).nonzero()[:, 0].tolist():
        near = (places.stratum == places.stratum[target]) & (half == half[target])
        strangers = (near & (places.release < 0)).nonzero()[:, 0]
        if len(strangers) >= FEWEST:
            order = torch.randperm(len(strangers), generator=generator)
            drawn[target] = strangers[order[:USUAL]]
    return drawn
