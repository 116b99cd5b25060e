"""Defences that change how a client's update is made: more local steps, more records behind one update."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from exhume.core.contract import ExhumeError, Gradient, Key, NotApplicable, Recipe, Release
from exhume.defences.release import gradient_of
from exhume.train.local import LocalTraining

__all__ = ["LargerBatch", "LocalSteps"]


@dataclass(frozen=True)
class LocalSteps:
    """Take several local steps between two updates (FedAvg).

    Sees: how the client trains.
    Assumes: the server does not ask for gradients.
    Guarantees: none: the update becomes a sum of gradients at weights the server does not see, but a
    record that is alone in a neuron of the first layer stays alone.
    Reference: McMahan et al. 2017.
    """

    count: int = 1  # steps for each one taken before; 1: as before

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ExhumeError(f"count: must be at least 1, got {self.count}")

    @property
    def strength(self) -> float:
        return float(self.count - 1)

    def harden(self, recipe: Recipe) -> Recipe:
        if not self.strength:
            return recipe
        if not isinstance(recipe, LocalTraining):
            raise NotApplicable(f"local steps are a client's, not of: {recipe}", ever=False)
        return replace(recipe, steps=recipe.steps * self.count)


@dataclass(frozen=True)
class LargerBatch:
    """Release the mean of several updates in the place of each: the update of their joined batch.

    Sees: the updates, all at the same weights.
    Assumes: batches of one size, or a secure sum over clients, which is the same thing.
    Guarantees: none: as many records more stand behind each number.
    Reference: Bonawitz et al. 2017, for the secure sum.
    """

    times: int = 1  # updates that are joined, neighbours in the release; 1: as before

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ExhumeError(f"times: must be at least 1, got {self.times}")

    @property
    def strength(self) -> float:
        return float(self.times - 1)

    def protect(self, release: Release, key: Key) -> Gradient:
        """The releases of larger batches, as many as before; those that were joined are equal."""
        seen = gradient_of(release)
        if not self.strength:
            return seen
        if seen.at.ndim > 1 or len(seen.values) % self.times:
            raise NotApplicable(
                f"release: {len(seen.values)} updates at common weights are needed in groups of "
                f"{self.times}",
                ever=True,
            )
        groups = seen.values.reshape(-1, self.times, seen.values.shape[1])
        means = torch.repeat_interleave(groups.mean(1), self.times, dim=0)
        return replace(seen, values=means)
