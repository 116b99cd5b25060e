"""Differentially private training as a defence (Balle22 Fig. 14), of a model or of a client's update."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from exhume.core.contract import NotApplicable, Recipe
from exhume.train.dp import Privacy, epsilon
from exhume.train.local import LocalTraining
from exhume.train.recipe import FullBatch


@dataclass(frozen=True)
class DPTraining:
    """Clip every record's gradient to a norm and add Gaussian noise to their sum, in every step.

    Sees: the recipe; at training time, every record's gradient.
    Assumes: full-batch training, in which every step sees each record or draws it with the sampling rate.
    Guarantees: (epsilon, delta) differential privacy of what is released under add / remove of one
    record, see `epsilon`; the number of records counts as public. With noise 0 only the clipping acts
    and nothing is guaranteed; without a clip either, training is unchanged.
    Reference: Abadi et al. 2016; Balle22 uses clip 10 and delta 1e-5.
    """

    clip: float = math.inf  # > 0; Balle22: 10
    noise_multiplier: float = 0.0  # standard deviation of the noise, over the clip
    sampling: float = 1.0  # probability with which a record enters a step; 1: every step sees it

    def __post_init__(self) -> None:
        self._privacy()

    @property
    def strength(self) -> float:
        """0 for no defence; grows with the noise, as the clip shrinks, and as fewer records are drawn."""
        return self.noise_multiplier + 1 / self.clip + (1 - self.sampling)

    def harden(self, recipe: Recipe) -> Recipe:
        if not self.strength:
            return recipe
        if not isinstance(recipe, FullBatch | LocalTraining):
            raise NotApplicable(
                "private training is there for full batches and Poisson samples (sampling), not yet for: "
                f"{recipe}",
                ever=True,
            )
        if self.sampling < 1 and isinstance(recipe, LocalTraining):
            raise NotApplicable("a client's update has no sampling so far", ever=True)
        return replace(recipe, privacy=self._privacy())

    def epsilon(self, steps: int, delta: float = 1e-5) -> float:
        """What so many steps guarantee."""
        return epsilon(self.noise_multiplier, steps, delta=delta, sampling=self.sampling)

    def _privacy(self) -> Privacy:
        return Privacy(self.clip, self.noise_multiplier, self.sampling)
