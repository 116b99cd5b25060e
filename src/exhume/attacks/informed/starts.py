"""Where to begin for each label: the mean record, moved along a few directions in which records differ.

Trained for real, forwards only: at each label's mean and a little along its principal directions, once
for all releases. A release's difference is then fitted by these few changes; what the fit leaves over
ranks the labels, and its coefficients are a first guess. Any training that can be repeated will do,
differentiable or not.

    theta - theta(m_c)  ≈  D_c a,      z_c = m_c + sum_i a_i u_i

Several unknown records: influences add up to first order, so the D_c of their labels stand side by
side.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from exhume.contract import Key, Progress, Recipe, Records, Store
from exhume.train.fleet import train_fleet

__all__ = ["Guess", "Starts"]

_RIDGE = 1e-3  # of the fit, relative to the mean square of D's columns
_APART = 0.5  # how far along the first direction two records of one label begin on either side
_ENOUGH = 3  # records of a label, times the directions, below which all records lend theirs


@dataclass(frozen=True, eq=False)
class Guess:
    """Records and their labels, and the share of the change that the fit leaves over."""

    inputs: Tensor  # (e, *shape)
    labels: Tensor  # (e,)
    left: float


@dataclass(frozen=True, eq=False)
class Starts:
    base: Tensor  # (p,) trained without the unknown records
    labels: tuple[int, ...]  # those tried
    means: Tensor  # (c, *shape)
    directions: Tensor  # (c, k, *shape)
    ends: Tensor  # (c, p) trained at the means
    changes: Tensor  # (c, k, p) by a move along the directions
    bounds: tuple[float, float]  # of the records' values

    @property
    def models(self) -> int:
        return 1 + len(self.labels) * (1 + self.directions.shape[1])

    @staticmethod
    def of(
        recipe: Recipe,
        initial: Tensor,
        fixed: Records,
        *,
        directions: int,
        key: Key,
        store: Store,
        progress: Progress,
        chunk: int = 16,
    ) -> Starts:
        labels = tuple(range(len(fixed.classes)))
        means, along = zip(*(_of_label(fixed, label, directions) for label in labels), strict=True)
        centres, moves = torch.stack(means), torch.stack(along)
        tried = torch.cat([centres[:, None], centres[:, None] + moves], 1)  # (c, 1 + k, *shape)
        wanted = torch.tensor(labels, device=initial.device)[:, None].expand(tried.shape[:2])
        extra = Records(tried.flatten(0, 1)[:, None], wanted.flatten()[:, None], fixed.classes)
        trained = train_fleet(
            recipe,
            initial,
            fixed,
            extra,
            key=key,
            store=store,
            chunk=chunk,
            stage="training at each label's mean",
            progress=progress,
        )
        ends = torch.cat(list(trained)).view(len(labels), -1, len(initial))
        base = recipe.fit(initial, fixed, fixed.none_for(1), key)[0]
        bounds = float(fixed.inputs.min()), float(fixed.inputs.max())
        changes = ends[:, 1:] - ends[:, :1]
        return Starts(base, labels, centres, moves, ends[:, 0], changes, bounds)

    def ranked(self, released: Tensor, unknown: int, live: Tensor | None = None) -> list[Guess]:
        """(p,) to guesses, best first: one for each label, or for each choice of several."""
        guesses = [
            self._guess(released, chosen, live)
            for chosen in combinations_with_replacement(range(len(self.labels)), unknown)
        ]
        return sorted(guesses, key=lambda guess: guess.left)

    def _guess(self, released: Tensor, chosen: tuple[int, ...], live: Tensor | None) -> Guess:
        places = list(chosen)
        missing = released - self.base - (self.ends[places] - self.base).sum(0)
        columns = self.changes[places].flatten(0, 1)  # (e·k, p)
        if live is not None:
            missing, columns = missing * live, columns * live
        gram = (columns @ columns.T).double()
        ridge = _RIDGE * gram.diagonal().mean().clamp_min(1e-30)
        right = (columns @ missing).double()
        eye = torch.eye(len(gram), dtype=torch.float64, device=gram.device)
        weights = torch.linalg.solve(gram + ridge * eye, right).to(missing)
        left = float((missing - weights @ columns).norm())
        moves = torch.einsum(
            "ek,ek...->e...", weights.view(len(places), -1), self.directions[places]
        )
        inputs = self.means[places] + moves + self._apart(places)
        labels = torch.tensor([self.labels[i] for i in places], device=released.device)
        return Guess(inputs.clamp(*self.bounds), labels, left)

    def _apart(self, places: list[int]) -> Tensor:
        """(e, *shape) that tells records of the same label from each other, which a sum does not."""
        shift = torch.zeros_like(self.means[places])
        for place in set(places):
            twins = [i for i, other in enumerate(places) if other == place]
            if len(twins) > 1:
                for i, share in zip(
                    twins, torch.linspace(-_APART, _APART, len(twins)), strict=True
                ):
                    shift[i] = float(share) * self.directions[place, 0]
        return shift


def _of_label(fixed: Records, label: int, count: int) -> tuple[Tensor, Tensor]:
    """A label's mean and (k, *shape) principal directions, one standard deviation long."""
    own = fixed.inputs[fixed.labels == label]
    if len(own) < _ENOUGH * max(1, count):
        own = fixed.inputs
    mean = own.mean(0)
    flat = (own - mean).flatten(1)
    _, sizes, vectors = torch.linalg.svd(flat, full_matrices=False)
    moves = sizes[:count, None] / max(1, len(own) - 1) ** 0.5 * vectors[:count]
    return mean, moves.reshape(-1, *mean.shape)
