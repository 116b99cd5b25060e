"""Attacks on private training in the game that its privacy bounds: name the record among candidates.

Every release was trained on one of K listed records, each equally often. What an attack reaches is put
beside what the stated privacy allows any attack (bounds/), for the same loss and threshold; where it is
certainly more, the training is not as private as stated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.informed.prior_aware import FittedPriorAware
from exhume.bounds.dp_sgd import dp_sgd
from exhume.bounds.prior import Kappa, kappa_of_balls, kappa_of_naming
from exhume.core.contract import ExhumeError, Key, Progress, Records, silent
from exhume.score.targets import named_rightly
from exhume.train.dp import Privacy
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_trails

__all__ = ["Allowed", "allowed_by", "named_by_steps"]


@dataclass(frozen=True)
class Allowed:
    """What guessing reaches, and what the stated privacy allows: for naming, and within an error."""

    naming: float  # kappa
    within: Kappa
    eta: float  # mean squared error
    noise: float
    steps: int
    sampling: float = 1.0

    def bound(self, loss: str) -> tuple[float, float]:
        """kappa and gamma of the loss, "naming" or "within"."""
        kappa = self.naming if loss == "naming" else self.within.high
        return kappa, dp_sgd(kappa, self.noise, self.steps, self.sampling).gamma


def allowed_by(privacy: Privacy, steps: int, listed: Records, eta: float) -> Allowed:
    """Full-batch training, where every step sees the record, or Poisson sampling."""
    if not privacy.noise:
        raise ExhumeError("dp_noise: 0 given; without noise nothing is guaranteed")
    return Allowed(
        kappa_of_naming(listed.inputs),
        kappa_of_balls(listed.inputs, eta),
        eta,
        privacy.noise,
        steps,
        privacy.sampling,
    )


def named_by_steps(
    prepared: FittedPriorAware,
    recipe: FullBatch,
    initial: Tensor,
    targets: Records,
    *,
    key: Key,
    first: int = 0,
    draws: bool = True,
    chunk: int = 16,
    progress: Progress = silent,
) -> Tensor:
    """(t,) bool: was the record named by an adversary who saw every step of its training?

    draws: whether it also saw which of the fixed records each step has drawn.
    The releases of `release_one_each` with this key, trained again: a fleet does not keep its steps.
    """
    right: list[Tensor] = []
    stage = "attacking every step"
    progress(stage, 0, len(targets))
    for start in range(0, len(targets), chunk):
        release, secret = release_trails(
            recipe,
            initial,
            prepared.fixed,
            targets[start : start + chunk],
            key=key,
            first=first + start,
            draws=draws,
        )
        right.append(named_rightly(secret, prepared.run(release), prepared.candidates))
        progress(stage, min(start + chunk, len(targets)), len(targets))
    return torch.cat(right)
