"""Recipes: a way of training as a value that can be named, hashed and handed to an adversary.

There is one descent (`descend`) on three engines: MLPs, whoever wrote them, take the hand-derived one
(train/stacked.py), networks with batch norm theirs and every other architecture the general one (both
train/functional.py). Starting from a pre-trained model, or from a fresh draw per model, is
a matter of `initial`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from exhume.core.contract import Architecture, ExhumeError, Key, Records
from exhume.models.own import fully_connected
from exhume.train import functional, stacked
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy, Sampler, SampleStream
from exhume.train.functional import BatchNormed, SideBySide, mixes_batches
from exhume.train.optimisers import Descent, Optimiser
from exhume.train.stacked import EVERY_RECORD, Order, Stack, StepPlan


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
        sampler = sampler or self._sampler(key, first, models)
        plan = StepPlan(privacy=self.privacy, noise=noise, sampler=sampler)
        return _train(self, initial, fixed, extra, plan, watch)

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
        return _train(self, initial, fixed, extra, StepPlan(self.order))

    def with_order(self, key: Key) -> MiniBatch:
        return replace(self, order=replace(self.order, key=key))

    def bytes_per_model(self, records: int) -> int:
        rows = min(records, self.order.size)
        if mlp := fully_connected(self.architecture):
            return stacked.bytes_per_model(mlp, rows, self.descent)
        return functional.bytes_per_model(self.architecture, rows, self.descent)

    def __str__(self) -> str:
        return f"batches of {self.order.size} in random order, {self.descent}, cross-entropy"


class Engine(Protocol):
    """Some models and their records, laid out for gradients."""

    def unpack(self, flat: Tensor) -> list[Tensor]:
        """(s, p) to new tensors of the engine's own layout."""
        ...

    def pack(self, weights: list[Tensor]) -> Tensor:
        """The inverse of `unpack`."""
        ...

    def gradients(
        self, weights: list[Tensor], plan: StepPlan
    ) -> Iterator[tuple[list[Tensor], int]]:
        """Without end: sums of the records' gradients at the weights as they are by then, and their count."""
        ...


def descend(  # noqa: PLR0917
    architecture: Architecture,
    optimiser: Optimiser,
    initial: Tensor,
    fixed: Records,
    extra: Records,
    plan: StepPlan = EVERY_RECORD,
    watch: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Train s models; model i minimises the mean cross-entropy of `fixed` and `extra[i]`.

    initial: (p,) or (s, p); extra: (s, e, *shape), e may be 0; returns (s, p). Every step sees all
    records, or what the plan says. `watch` is shown the parameters (s, p) before each step.
    """
    start = initial.expand(extra.labels.shape[0], -1)
    if not mixes_batches(architecture):
        mlp = fully_connected(architecture)
        engine = Stack.of(mlp, fixed, extra) if mlp else SideBySide.of(architecture, fixed, extra)
        return follow(engine, optimiser, start, plan, watch)
    if plan.privacy.clips or plan.noise or plan.sampler or watch is not None:
        raise ExhumeError(
            f"{architecture}: {architecture.not_per_record}, so that no record has a gradient of its own to "
            "clip: replace it (nn.GroupNorm for batch norm)"
        )
    alone = [slice(i, i + 1) for i in range(len(start))]
    engines = [BatchNormed.of(architecture, fixed, extra[one]) for one in alone]
    trained = [
        follow(engine, optimiser, start[one], plan)
        for engine, one in zip(engines, alone, strict=True)
    ]
    return torch.cat(trained)


def follow(
    engine: Engine,
    optimiser: Optimiser,
    start: Tensor,
    plan: StepPlan = EVERY_RECORD,
    watch: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """(s, p) where an engine's models end that begin at (s, p)."""
    weights = engine.unpack(start)
    update = optimiser.start(weights)
    steps = engine.gradients(weights, plan)
    for sums, records in islice(steps, optimiser.steps):
        if watch is not None:
            watch(engine.pack(weights))
        if plan.noise is not None and plan.privacy.deviation:
            drawn = engine.unpack(plan.noise.draw(start).mul_(plan.privacy.deviation))
            for total, part in zip(sums, drawn, strict=True):
                total.add_(part)
        update(sums, records if plan.sampler is None else plan.privacy.sampling * records)
    return engine.pack(weights)


def _train(  # noqa: PLR0917
    recipe: FullBatch | MiniBatch,
    initial: Tensor,
    fixed: Records,
    extra: Records,
    plan: StepPlan,
    watch: Callable[[Tensor], None] | None = None,
) -> Tensor:
    architecture, optimiser = recipe.architecture, recipe.descent
    check_fits(architecture, fixed)
    trained = descend(architecture, optimiser, initial, fixed, extra, plan, watch)
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
