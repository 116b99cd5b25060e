"""Where to begin for each label: a mixture of known records, weighed by what they do to the weights.

Some records of each label that the adversary holds are put into training once more, one at a time, for all
releases together: `anchors`. A release's difference is then fitted by theirs; what the fit leaves over
ranks the labels, and its coefficients are a first guess. Anchors are real records, so that their changes
contain what a linearisation around a mean leaves out. Any training that can be repeated will do,
differentiable or not. With means over the anchors x_j of a label,

    theta - mean theta(x_j)  ≈  sum_j w_j (theta(x_j) - mean theta(x_j)),
    z  =  mean x_j + sum_j w_j (x_j - mean x_j)

Several unknown records: influences add up to first order, so the anchors of their labels stand side by side.

Memory: 4·classes·anchors·p bytes, as much for the metric, and twice that while it is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from exhume.core.contract import Key, Progress, Recipe, Records, Store
from exhume.train.fleet import train_fleet
from exhume.train.least_squares import solve_damped

_FEWEST, _MOST = 2, 600  # anchors of a label, and of all labels
_NUMBER = 4  # bytes
_DARING = 1.5  # times the least residual of more careful starts: up to there the mixture is taken
_SMALL = 1e-6  # of the largest second moment, below which a direction is rounding
_NOTHING = 1e-30
_RIDGE = 1e-3  # of the fit, relative to the mean square of the anchors' changes
_APART = 0.5  # of an anchor's way from the mean: how far twins of a label begin on either side
_LEAST = 1e-3  # of the largest scale


def anchors_within(wanted: int, memory: int, classes: int, parameters: int) -> int:
    """How many records of each label are put into training once more, within time and `memory` MiB."""
    room = (memory << 20) // (2 * _NUMBER * max(1, parameters) * classes)
    return max(_FEWEST, min(wanted, _MOST // classes, room))


@dataclass(frozen=True, eq=False)
class Target:
    """A release, and how far it is from what can be guessed without a search: the unit of residuals."""

    parameters: Tensor  # (p,)
    apart: float


@dataclass(eq=False)
class Spent:
    """Trainings' worth of work done so far for a release."""

    models: float = 0.0


@dataclass(frozen=True, eq=False)
class Guess:
    """Records and their labels, and what the fit leaves over."""

    inputs: Tensor  # (e, *shape)
    labels: Tensor  # (e,)
    left: float
    damping: float = 1e-2  # of the next step, where steps are damped


@dataclass(frozen=True, eq=False)
class Starts:
    base: Tensor  # (p,) trained without the unknown records
    anchors: Tensor  # (c, k, *shape) known records; where a label has fewer, those of others
    ends: Tensor  # (c, k, p) trained with one of them once more
    bounds: tuple[float, float]  # of the records' values
    live: Tensor  # (p,) 1 where training follows a gradient

    @property
    def models(self) -> int:
        return 1 + self.ends.shape[0] * self.ends.shape[1]

    @staticmethod
    def of(
        recipe: Recipe,
        initial: Tensor,
        fixed: Records,
        live: Tensor,
        *,
        anchors: int,
        key: Key,
        store: Store,
        progress: Progress,
        chunk: int = 16,
    ) -> Starts:
        classes, every = len(fixed.classes), list[Tensor]()
        for label in range(classes):  # as many of a label as there are; then others
            members = fixed.labels == label
            order = torch.cat([members.nonzero()[:, 0], (~members).nonzero()[:, 0]])
            every.append(fixed.inputs[order[:anchors]])
        chosen = torch.stack(every)
        wanted = torch.arange(classes, device=initial.device)[:, None].expand(chosen.shape[:2])
        extra = Records(chosen.flatten(0, 1)[:, None], wanted.reshape(-1)[:, None], fixed.classes)
        trained = train_fleet(
            recipe,
            initial,
            fixed,
            extra,
            key=key,
            store=store,
            chunk=chunk,
            stage="training on known records once more",
            progress=progress,
        )
        ends = torch.cat(list(trained)).view(classes, -1, len(initial))
        base = recipe.fit(initial, fixed, fixed.none_for(1), key)[0]
        bounds = float(fixed.inputs.min()), float(fixed.inputs.max())
        return Starts(base, chosen, ends, bounds, live)

    def ranked(self, released: Tensor, unknown: int) -> list[Guess]:
        """(p,) to guesses, best first: one for each label, or for each choice of several."""
        guesses = [
            self._guess(released, chosen)
            for chosen in combinations_with_replacement(range(len(self.ends)), unknown)
        ]
        return sorted(guesses, key=lambda guess: guess.left)

    def others(self, released: Tensor, guess: Guess) -> list[Guess]:
        """Less daring guesses under the same labels: the mean of the anchors; of one record the nearest."""
        places = guess.labels.tolist()
        careful = [self.means[places] + self._apart(places)]
        if len(places) == 1:
            careful.append(self.by_distance(released, places[0])[:1])
        return [Guess(inputs.clamp(*self.bounds), guess.labels, guess.left) for inputs in careful]

    def by_distance(self, released: Tensor, label: int) -> Tensor:
        """(k, *shape) the anchors of a label, that first whose training is nearest to the release."""
        apart = ((self.ends[label] - released) * self.live).norm(dim=1)
        return self.anchors[label][apart.argsort(stable=True)]

    @staticmethod
    def nearest(residuals: list[float]) -> int:
        """Which of a guess and the less daring ones to begin with, by their trainings' residuals."""
        least = min(range(len(residuals)), key=lambda i: residuals[i])
        return 0 if residuals[0] <= _DARING * residuals[least] else least

    def distance(self, released: Tensor) -> float:
        """How far a release is from what can be guessed without a search: from training without the unknown
        records, or from the mean training of a label."""
        apart = self.weighed(torch.cat([self.base[None], self._centres]) - released)
        return max(1e-30, float(apart.norm(dim=1).min()))

    def weighed(self, change: Tensor) -> Tensor:
        """(..., p) changes of the weights in the metric, without what follows no gradient."""
        return self.metric.apply(change * self.live)

    @cached_property
    def metric(self) -> Metric:
        """In which the changes that records make to the weights are about as large in every direction."""
        changes = ((self.ends - self._centres.mean(0)) * self.live).flatten(0, 1)
        return Metric.of(changes)

    @cached_property
    def means(self) -> Tensor:
        """(c, *shape)"""
        return self.anchors.mean(1)

    @cached_property
    def _centres(self) -> Tensor:
        return self.ends.mean(1)

    @cached_property
    def _gram(self) -> Tensor:
        """(c, k, c, k) products of the anchors' changes."""
        changes = ((self.ends - self._centres[:, None]) * self.live).flatten(0, 1)
        return (changes @ changes.T).double().view(2 * self.ends.shape[:2])

    def _guess(self, released: Tensor, chosen: tuple[int, ...]) -> Guess:
        places = list(chosen)
        missing = released - self.base - (self._centres[places] - self.base).sum(0)
        columns = (self.ends[places] - self._centres[places][:, None]).flatten(0, 1) * self.live
        gram = self._gram[places][:, :, places].reshape(len(columns), -1)
        right = (columns @ (missing * self.live)).double()
        weights = solve_damped(gram, right, _RIDGE).to(missing)
        left = float((missing * self.live - weights @ columns).norm())
        moves = self.anchors[places] - self.means[places][:, None]
        mixed = torch.einsum("ek,ek...->e...", weights.view(len(places), -1), moves)
        inputs = self.means[places] + mixed + self._apart(places)
        labels = torch.tensor(places, device=released.device)
        return Guess(inputs.clamp(*self.bounds), labels, left)

    def _apart(self, places: list[int]) -> Tensor:
        """(e, *shape) that tells records of the same label from each other, which a sum does not."""
        shift = torch.zeros_like(self.means[places])
        for place in set(places):
            twins = [i for i, other in enumerate(places) if other == place]
            if len(twins) > 1:
                way = self.anchors[place, 0] - self.means[place]
                shares = torch.linspace(-_APART, _APART, len(twins))
                for i, share in zip(twins, shares, strict=True):
                    shift[i] = float(share) * way
        return shift


@dataclass(frozen=True, eq=False)
class Metric:
    """(floor / (floor + C))^(1/2), C the second moments of some changes of the weights; symmetric.

    A few directions, above all how large the loss on the record was, move the weights much more than what
    the record looks like. Unweighted, they alone decide what a step does.
    """

    directions: Tensor  # (r, p) orthonormal
    factors: Tensor  # (r,)

    @staticmethod
    def of(changes: Tensor) -> Metric:
        """changes: (k, p)."""
        wide = changes.double()  # in single precision the directions would not be orthonormal
        values, vectors = torch.linalg.eigh(wide @ wide.T)
        large = values > max(_SMALL * float(values[-1]), _NOTHING)
        if not bool(large.any()):  # all alike: nothing to weigh down
            return Metric(changes[:0], changes.new_zeros(0))
        values, vectors = values[large], vectors[:, large]
        directions = ((vectors / values.sqrt()).T @ wide).to(changes)
        floor = values[: max(1, len(values) // 2)].mean()
        return Metric(directions, (floor / (floor + values)).sqrt().to(changes))

    def apply(self, vectors: Tensor) -> Tensor:
        """(..., p)"""
        along = vectors @ self.directions.T
        return vectors + (along * (self.factors - 1)) @ self.directions


@dataclass(frozen=True, eq=False)
class Whitening:
    """Coordinates in which images are about white noise: smooth changes are cheap, fine grain is dear.

        x = S w,     S = C^(1/2) (x) F^T diag(s) F

    F the orthonormal cosine transform, s^2 a power law in the spatial frequency and C the covariance of the
    channels, both fitted to a few known images. S is symmetric. Krylov solvers then find smooth corrections
    first, which is where natural images differ, and stopping early leaves noise out.
    """

    rows: Tensor  # (h, h) cosine transform
    columns: Tensor  # (w, w)
    scale: Tensor  # (h, w)
    channels: Tensor  # (c, c) symmetric

    @staticmethod
    def of(images: Tensor) -> Whitening:
        """Fitted to (n, c, h, w)."""
        _, c, h, w = images.shape
        centred = (images - images.mean(0)).double()
        rows, columns = _cosines(h).to(centred), _cosines(w).to(centred)
        power = (rows @ centred @ columns.T).square().mean((0, 1))
        scale = _power_law(power).sqrt()
        pixels = centred.transpose(0, 1).reshape(c, -1)
        spread = pixels @ pixels.T / pixels.shape[1]
        spread = spread / spread.diagonal().mean().clamp_min(1e-12)
        values, vectors = torch.linalg.eigh(spread)
        root = vectors @ torch.diag(values.clamp_min(1e-2).sqrt()) @ vectors.T
        scale = (scale / scale.max()).clamp_min(_LEAST)
        return Whitening(*(part.to(images.dtype) for part in (rows, columns, scale, root)))

    def apply(self, images: Tensor) -> Tensor:
        """S times (n, c, h, w), which is also its transpose."""
        waves = self.scale * (self.rows @ images @ self.columns.T)
        back = self.rows.T @ waves @ self.columns
        return torch.einsum("cd,ndhw->nchw", self.channels, back)


def _cosines(size: int) -> Tensor:
    """(size, size) orthonormal DCT-II."""
    place = torch.arange(size, dtype=torch.float64)
    transform = torch.cos(math.pi / size * (place + 0.5) * place[:, None]) * math.sqrt(2 / size)
    transform[0] /= math.sqrt(2)
    return transform


def _power_law(power: Tensor) -> Tensor:
    """The a·(1 + f^2)^b nearest to a power spectrum (h, w), in logarithms."""
    h, w = power.shape
    u, v = torch.arange(h).to(power), torch.arange(w).to(power)
    frequency = torch.log1p(u[:, None].square() + v.square()).flatten()
    known = power.flatten() > 0
    if int(known.sum()) < 2:
        return torch.ones_like(power)
    design = torch.stack([torch.ones_like(frequency), frequency], 1)
    fit = torch.linalg.lstsq(design[known], power.flatten()[known].log()[:, None]).solution
    smooth: Tensor = (design @ fit)[:, 0].exp().view(h, w)
    return smooth
