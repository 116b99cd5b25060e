"""Recipes: a way of training as a value that can be named, hashed and handed to an adversary.

There is one descent (`descend`) on three engines: MLPs, whoever wrote them, take the hand-derived one
(train/stacked.py), networks with batch norm or dropout theirs and every other architecture the general one
(both train/functional.py). Starting from a pre-trained model, or from a fresh draw per model, is a matter of
`initial`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from exhume.core.contract import Architecture, ExhumeError, Key, Records
from exhume.core.own_code import seeded_globals
from exhume.models.own import fully_connected
from exhume.train import functional, stacked
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy, Sampler, SampleStream
from exhume.train.functional import Alone, SideBySide, drops, trained_alone
from exhume.train.objective import CROSS_ENTROPY, Objective
from exhume.train.optimisers import Descent, Optimiser, updating
from exhume.train.stacked import EVERY_RECORD, Order, Stack, StepPlan


@dataclass(frozen=True)
class FullBatch:
    """Every step sees every record (Balle22), or draws each with `privacy.sampling` by itself.

    The key is used for the noise and the draws of private training, and where `dropout` is None for dropout.
    """

    architecture: Architecture
    descent: Optimiser = Descent()
    privacy: Privacy = NOT_PRIVATE
    objective: Objective = CROSS_ENTROPY
    dropout: Key | None = None  # draws what is dropped, alike in all models; None: each by itself

    @property
    def random(self) -> bool:
        """Whether models differ by more than their records."""
        return self.privacy.random or (self.dropout is None and drops(self.architecture))

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
        dropout = _dropout_keys(self, key, first, models)
        plan = StepPlan(privacy=self.privacy, noise=noise, sampler=sampler, dropout=dropout)
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
        return f"{kind}, {self.descent}, {self.objective}{_dropout_in_words(self)}{private}"


@dataclass(frozen=True)
class MiniBatch:
    """Every step sees the next batch of a random order, the same for all models trained this way.

    Whoever has the recipe knows the order; `with_order` is the recipe of one who does not.
    """

    architecture: Architecture
    descent: Optimiser
    order: Order
    objective: Objective = CROSS_ENTROPY
    dropout: Key | None = None  # as in `FullBatch`

    @property
    def random(self) -> bool:
        """Whether models differ by more than their records."""
        return self.dropout is None and drops(self.architecture)

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        dropout = _dropout_keys(self, key, first, extra.labels.shape[0])
        return _train(self, initial, fixed, extra, StepPlan(self.order, dropout=dropout))

    def with_order(self, key: Key) -> MiniBatch:
        return replace(self, order=replace(self.order, key=key))

    def bytes_per_model(self, records: int) -> int:
        rows = min(records, self.order.size)
        if mlp := fully_connected(self.architecture):
            return stacked.bytes_per_model(mlp, rows, self.descent)
        return functional.bytes_per_model(self.architecture, rows, self.descent)

    def __str__(self) -> str:
        how = f"{self.descent}, {self.objective}{_dropout_in_words(self)}"
        return f"batches of {self.order.size} in random order, {how}"


def _dropout_keys(
    recipe: FullBatch | MiniBatch, key: Key, first: int, models: int
) -> tuple[Key, ...]:
    """One for each model, where something is dropped."""
    if not drops(recipe.architecture):
        return ()
    return tuple(recipe.dropout or key.fold("dropout", first + i) for i in range(models))


def _dropout_in_words(recipe: FullBatch | MiniBatch) -> str:
    if not drops(recipe.architecture):
        return ""
    return f", dropout {'drawn for each model' if recipe.dropout is None else 'known'}"


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
    objective: Objective = CROSS_ENTROPY,
) -> Tensor:
    """Train s models; model i minimises the mean loss of `fixed` and `extra[i]`.

    initial: (p,) or (s, p); extra: (s, e, *shape), e may be 0; returns (s, p). Every step sees all
    records, or what the plan says. `watch` is shown the parameters (s, p) before each step.
    """
    start = initial.expand(extra.labels.shape[0], -1)
    if not trained_alone(architecture):
        mlp = fully_connected(architecture)
        engine = (
            Stack.of(mlp, fixed, extra, objective)
            if mlp
            else SideBySide.of(architecture, fixed, extra, objective)
        )
        return follow(engine, optimiser, start, plan, watch)
    if plan.privacy.clips or plan.noise or plan.sampler or watch is not None:
        raise ExhumeError(
            f"{architecture}: {architecture.not_per_record}, so that no record has a gradient of its own to "
            "clip: replace it (nn.GroupNorm for batch norm)"
        )
    trained = []
    for i in range(len(start)):
        one = slice(i, i + 1)
        model = Alone.of(architecture, fixed, extra[one], objective)
        with seeded_globals(plan.dropout[i]) if plan.dropout else nullcontext():
            trained.append(follow(model, optimiser, start[one], plan))
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
    update = updating(optimiser, weights)
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
    objective = recipe.objective
    objective.check_fits(architecture, fixed)
    trained = descend(architecture, optimiser, initial, fixed, extra, plan, watch, objective)
    if not bool(torch.isfinite(trained).all()):
        raise ExhumeError(
            f"training diverged ({optimiser}): the weights are not finite; "
            "lower the rate, or scale the records"
        )
    return trained
