"""Reconstruction robustness: what a prior allows without any release, and certificates (Balle22, Hayes23).

A mechanism is (eta, gamma)-robust if for every D- and every attack R

    P[l(z, R(M(D- + z))) <= eta] <= gamma,    z ~ prior

Let nu be what M releases without the record. Without seeing the release, an attack succeeds with at most
kappa = sup_z0 P[l(z, z0) <= eta] (below). The release lifts the chance of an event from
kappa to at most gamma, by the guarantee's limit on how far M(D- + z) may be from nu. Adjacency is add /
remove one record throughout.

How well an adversary can do without any release: kappa of a finite prior, a supremum over all answers.

    kappa(eta) = sup_z0 P[l(z, z0) <= eta],   z ~ prior over n known records

Searching only the records themselves as answers z0 is unsound: a mean of records may be close to more of
them than any record is. For naming the record (0-1 loss) the supremum is the largest mass of one record,
exactly. For a ball in mean squared error it is bracketed:

- low: the best centre that a search finds, starting from every record and moving to the mean of what it
  covers;
- high: S within a ball of radius r has weighted squared distances that average to at most 2 r^2 over all
  pairs, since their average is twice the variance of S, which is at most r^2. So one member of S has an
  average of at most 2 r^2 to all of S, and none farther than 2 r. For every record: how much mass can be
  gathered around it within these two limits? The largest answer is above kappa.

The two meet where no ball covers two records; bounds take `high`.

What was measured beside what is possible: one certificate for each attack, and the alarm.

An attack's success is a lower bound on what leaks, gamma an upper bound. Where the exact lower limit of
the success exceeds gamma, the two contradict each other: the accounting or the implementation is wrong.
The limit is one-sided at 1e-4, divided by the number of comparisons made.

The trials are n trainings with noise of their own, on records drawn from the prior, or on every record of
the prior equally often. In both cases the number of successes exceeds gamma n by so much no more often
than a binomial one (Hoeffding 1956).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError
from exhume.score.intervals import clopper_pearson

_MOVES = 10  # of each centre in the search for `low`
_BLOCK = 512  # records whose distances are held at once
ALARM_LEVEL = 1e-4


def check_kappa(kappa: float) -> None:
    if not 0 <= kappa <= 1:
        raise ExhumeError(f"kappa: {kappa} given, a probability from 0 to 1 is needed")


@dataclass(frozen=True)
class Kappa:
    """kappa lies between the two; a certificate is sound with `high`."""

    low: float
    high: float

    @property
    def exact(self) -> bool:
        return self.low == self.high


def kappa_of_naming(records: Tensor, masses: Tensor | None = None) -> float:
    """(n, *shape): the largest mass of one record; equal records are one."""
    weights = _weights(records, masses)
    _, which = torch.unique(records.flatten(1), dim=0, return_inverse=True)
    together = torch.zeros(len(records), dtype=torch.float64).index_add_(0, which.cpu(), weights)
    return float(together.max())


def kappa_of_balls(records: Tensor, eta: float, masses: Tensor | None = None) -> Kappa:
    """(n, *shape): sup over every z0 of the mass of the records with mean squared error <= eta to it."""
    if not eta >= 0:
        raise ExhumeError(f"eta: {eta} given, a squared error of 0 or more needed")
    weights = _weights(records, masses)
    flat = records.flatten(1).double().cpu()
    radius = eta * flat.shape[1]  # squared
    rounding = 1e-9 * (radius + float(flat.square().sum(1).max()))  # of a squared distance
    low = _search(flat, weights, radius)
    gathered = (
        _gathered(_squared_distances(part, flat), weights, radius + rounding)
        for part in torch.split(flat, _BLOCK)
    )
    high = min(1.0, max(float(part.max()) for part in gathered))
    return Kappa(min(low, high), high)


def _weights(records: Tensor, masses: Tensor | None) -> Tensor:
    if not len(records):
        raise ExhumeError("records: none given, a prior needs at least one")
    if masses is None:
        return torch.full((len(records),), 1 / len(records), dtype=torch.float64)
    weights = masses.double().cpu()
    if len(weights) != len(records) or bool((weights < 0).any()):
        raise ExhumeError(
            f"masses: {len(weights)} given for {len(records)} records; one of 0 or more each is needed"
        )
    if not abs(float(weights.sum()) - 1) < 1e-6:
        raise ExhumeError(f"masses: they sum to {float(weights.sum()):g}, 1 is needed")
    return weights


def _squared_distances(some: Tensor, others: Tensor) -> Tensor:
    """(m, q), (n, q) to (m, n)."""
    squares = some.square().sum(1)[:, None] + others.square().sum(1)
    return (squares - 2 * some @ others.T).clamp_min_(0)


def _gathered(distances: Tensor, weights: Tensor, radius: float) -> Tensor:
    """(m, n) to (m,): the most mass around each record, on average within 2 r^2 and none beyond 4 r^2.

    Taken from the nearest on; the first that exceeds the average counts for what part of it fits.
    """
    near, order = distances.sort(dim=1)
    mass = weights[order] * (near <= 4 * radius)
    spent = mass * (near - 2 * radius)
    over = spent.cumsum(1) > 0
    whole = (mass * ~over).sum(1)
    first = over & (over.cumsum(1) == 1)
    left = -(spent * ~over).sum(1)
    price = (near - 2 * radius).where(first, torch.zeros(())).amax(1)
    part = torch.minimum(left / price, (mass * first).sum(1)).where(first.any(1), torch.zeros(()))
    return whole + part.to(whole)


def _search(flat: Tensor, weights: Tensor, radius: float) -> float:
    """The most mass that a ball around some record, or around a mean of records, covers."""
    best = 0.0
    for part in torch.split(flat, _BLOCK):
        centres = part
        for _ in range(_MOVES):
            covered = (_squared_distances(centres, flat) <= radius).double() * weights
            mass = covered.sum(1, keepdim=True)
            best = max(best, float(mass.max()))
            moved = torch.where(mass > 0, covered @ flat / mass, centres)
            if torch.equal(moved, centres):
                break
            centres = moved
    return best


@dataclass(frozen=True)
class Certificate:
    """One attack's success in one game, and the bound for the same loss and threshold."""

    successes: int
    trials: int
    kappa: float  # what guessing reaches
    bound: float  # gamma
    low: float  # 95% interval of the success
    high: float
    surely: float  # what the success exceeds, but for the alarm's level
    of: str = "the private training"  # what states the bound

    @property
    def rate(self) -> float:
        return self.successes / self.trials

    @property
    def alarm(self) -> bool:
        return self.surely > self.bound

    def metrics(self, name: str) -> dict[str, float]:
        return {
            name: self.rate,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
            f"{name}_surely": self.surely,
        }

    def sentence(self) -> str:
        measured = f"{self.successes} of {self.trials} ({self.rate:.1%})"
        if self.alarm:
            return (
                f"ALARM: success {measured} is certainly above {self.surely:.1%}, but the stated privacy "
                f"allows no attack more than {self.bound:.1%}: the accounting or the implementation of "
                f"{self.of} is wrong."
            )
        return (
            f"Success {measured}, 95% interval {self.low:.1%} to {self.high:.1%}; guessing reaches "
            f"{self.kappa:.1%}, and the stated privacy allows no attack more than {self.bound:.1%}."
        )


def certify(
    successes: int,
    trials: int,
    *,
    kappa: float,
    bound: float,
    comparisons: int = 1,
    of: str = "the private training",
) -> Certificate:
    """comparisons: how many certificates are looked at together; of: what states the bound."""
    if not 0 <= successes <= trials or trials < 1:
        raise ExhumeError(f"successes: {successes} of {trials} trials given")
    if comparisons < 1:
        raise ExhumeError(f"comparisons: {comparisons} given, at least 1 needed")
    surely = clopper_pearson(successes, trials, 1 - 2 * ALARM_LEVEL / comparisons)[0]
    low, high = clopper_pearson(successes, trials)
    return Certificate(successes, trials, kappa, bound, low, high, surely, of)
