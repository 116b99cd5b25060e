"""Recipes: a way of training as a value that can be named, hashed and handed to an adversary.

MLPs, whoever wrote them, take the hand-derived path (train/stacked.py), every other architecture the
general one (train/functional.py). Starting from a pre-trained model, or from a fresh draw per model, is
a matter of `initial`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from exhume.core.contract import Architecture, ExhumeError, Key, Records
from exhume.models.own.architecture import fully_connected
from exhume.train import batch_norm, functional, stacked
from exhume.train.batches import Order
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy, Sampler, SampleStream
from exhume.train.optimisers import Descent, Optimiser

__all__ = ["FullBatch", "MiniBatch", "check_fits", "descent_of"]


@dataclass(frozen=True)
class FullBatch:
    """Every step sees every record (Balle22), or draws each with `privacy.sampling` by itself.

    The key is used for the noise and the draws of private training only.
    """

    architecture: Architecture
    descent: Optimiser = Descent()
    privacy: Privacy = NOT_PRIVATE

    def fit(
        self,
        initial: Tensor,
        fixed: Records,
        extra: Records,
        key: Key,
        first: int = 0,
        *,
        sampler: Sampler | None = None,
        watch: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """sampler: another one than the key's. `watch` is shown the parameters (s, p) before each step; they
        change after it returns.
        """
        size, models = self.architecture.layout.size, extra.labels.shape[0]
        noise = NoiseStream(key, first, models, size) if self.privacy.noise else None
        return _train(
            self,
            initial,
            fixed,
            extra,
            privacy=self.privacy,
            noise=noise,
            sampler=sampler or self._sampler(key, first, models),
            watch=watch,
        )

    def _sampler(self, key: Key, first: int, models: int) -> SampleStream | None:
        if not self.privacy.samples:
            return None
        return SampleStream(key, first, models, self.privacy.sampling)

    def drawn(self, fixed: int, models: int, key: Key, first: int = 0) -> Tensor | None:
        """(s, T, n) bool: which of the fixed records each step of `fit` sees; None: all of them."""
        sampler = self._sampler(key, first, models)
        if sampler is None:
            return None
        steps = [sampler.draw(fixed, 0) for _ in range(self.descent.steps)]
        return torch.stack(steps, 1) if steps else torch.zeros(models, 0, fixed, dtype=torch.bool)

    def bytes_per_model(self, records: int) -> int:
        if mlp := fully_connected(self.architecture):
            return stacked.bytes_per_model(mlp, records, self.descent)
        return functional.bytes_per_model(self.architecture, records, self.descent, self.privacy)

    def __str__(self) -> str:
        private = f", differentially private: {self.privacy}" if self.privacy.clips else ""
        kind = (
            "gradient descent on Poisson samples"
            if self.privacy.samples
            else "full-batch gradient descent"
        )
        return f"{kind}, {self.descent}, cross-entropy{private}"


@dataclass(frozen=True)
class MiniBatch:
    """Every step sees the next batch of a random order, the same for all models trained this way.

    Whoever has the recipe knows the order; `with_order` is the recipe of one who does not.
    """

    architecture: Architecture
    descent: Optimiser
    order: Order

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        return _train(self, initial, fixed, extra, order=self.order)

    def with_order(self, key: Key) -> MiniBatch:
        return replace(self, order=replace(self.order, key=key))

    def bytes_per_model(self, records: int) -> int:
        rows = min(records, self.order.size)
        if mlp := fully_connected(self.architecture):
            return stacked.bytes_per_model(mlp, rows, self.descent)
        return functional.bytes_per_model(self.architecture, rows, self.descent)

    def __str__(self) -> str:
        return f"batches of {self.order.size} in random order, {self.descent}, cross-entropy"


def _train(
    recipe: FullBatch | MiniBatch,
    initial: Tensor,
    fixed: Records,
    extra: Records,
    *,
    order: Order | None = None,
    privacy: Privacy = NOT_PRIVATE,
    noise: NoiseStream | None = None,
    sampler: Sampler | None = None,
    watch: Callable[[Tensor], None] | None = None,
) -> Tensor:
    architecture, optimiser = recipe.architecture, recipe.descent
    check_fits(architecture, fixed)
    trained = descent_of(architecture)(
        optimiser,
        initial,
        fixed,
        extra,
        order=order,
        privacy=privacy,
        noise=noise,
        sampler=sampler,
        watch=watch,
    )
    if not bool(torch.isfinite(trained).all()):
        raise ExhumeError(
            f"training diverged ({optimiser}): the weights are not finite; "
            "lower the rate, or scale the records"
        )
    return trained


def check_fits(architecture: Architecture, records: Records) -> None:
    """Refuse records of another shape than the network takes."""
    if records.shape != architecture.input_shape:
        raise ExhumeError(
            f"records of shape {records.shape} do not fit {architecture}, "
            f"which takes {architecture.input_shape}"
        )


def descent_of(architecture: Architecture) -> Callable[..., Tensor]:
    """`stacked.descend` where the network is fully connected; with batch norm one model after another."""
    if mlp := fully_connected(architecture):
        return partial(stacked.descend, mlp)
    if batch_norm.mixes_batches(architecture):
        return partial(batch_norm.descend, architecture)
    return partial(functional.descend, architecture)
