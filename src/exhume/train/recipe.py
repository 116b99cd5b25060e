"""Recipes: a way of training as a value that can be named, hashed and handed to an adversary.

There is one descent (`descend`) on three engines: MLPs, whoever wrote them, take the hand-derived one
(train/stacked.py), networks with batch norm theirs and every other architecture the general one (both
train/functional.py). Starting from a pre-trained model, or from a fresh draw per model, is
a matter of `initial`.

Which neurons did a record ever reach? Training again, watching each hidden neuron on the target.

The gradient of a row of incoming weights is dL/da · R'(h) · x: in a step in which R'(h) = 0 on the
record, the row receives nothing from it (Mnemonist23; Balle22 Fig. 16).

Which parameters does a record leave untouched? Training again, looking at the record's own gradient.

For every tensor of parameters, the share of its entries whose gradient from the record is exactly zero
(Balle22 Fig. 16). In an MLP's first layer an entry is zero where its neuron is off or its pixel is black;
the bias's gradient is the neuron's error alone, so its share is that of the neurons that are off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from exhume.core.contract import Architecture, ExhumeError, Key, Records
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.models.own import fully_connected
from exhume.train import functional, stacked
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy, Sampler, SampleStream
from exhume.train.functional import BatchNormed, SideBySide, mixes_batches
from exhume.train.optimisers import Descent, Optimiser
from exhume.train.stacked import Order, Stack

_AT_ONCE = 64  # gradients held at once


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


class Engine(Protocol):
    """Some models and their records, laid out for gradients."""

    def unpack(self, flat: Tensor) -> list[Tensor]:
        """(s, p) to new tensors of the engine's own layout."""
        ...

    def pack(self, weights: list[Tensor]) -> Tensor:
        """The inverse of `unpack`."""
        ...

    def gradients(
        self,
        weights: list[Tensor],
        order: Order | None,
        privacy: Privacy,
        sampler: Sampler | None,
    ) -> Iterator[tuple[list[Tensor], int]]:
        """Without end: sums of the records' gradients at the weights as they are by then, and their count."""
        ...


def descend(
    architecture: Architecture,
    optimiser: Optimiser,
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
    """Train s models; model i minimises the mean cross-entropy of `fixed` and `extra[i]`.

    initial: (p,) or (s, p); extra: (s, e, *shape), e may be 0; returns (s, p). Every step sees all
    records, or the batch that `order` gives it; with a sampler, each model's own draw of all records.
    `watch` is shown the parameters (s, p) before each step.
    """
    start = initial.expand(extra.labels.shape[0], -1)
    if not mixes_batches(architecture):
        mlp = fully_connected(architecture)
        engine = Stack.of(mlp, fixed, extra) if mlp else SideBySide.of(architecture, fixed, extra)
        return follow(
            engine,
            optimiser,
            start,
            order=order,
            privacy=privacy,
            noise=noise,
            sampler=sampler,
            watch=watch,
        )
    if privacy.clips or noise is not None or sampler is not None or watch is not None:
        raise ExhumeError(
            f"{architecture}: {architecture.not_per_record}, so that no record has a gradient of its own to "
            "clip: replace it (nn.GroupNorm for batch norm)"
        )
    alone = [slice(i, i + 1) for i in range(len(start))]
    engines = [BatchNormed.of(architecture, fixed, extra[one]) for one in alone]
    trained = [
        follow(engine, optimiser, start[one], order=order)
        for engine, one in zip(engines, alone, strict=True)
    ]
    return torch.cat(trained)


def follow(
    engine: Engine,
    optimiser: Optimiser,
    start: Tensor,
    *,
    order: Order | None = None,
    privacy: Privacy = NOT_PRIVATE,
    noise: NoiseStream | None = None,
    sampler: Sampler | None = None,
    watch: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """(s, p) where an engine's models end that begin at (s, p)."""
    weights = engine.unpack(start)
    update = optimiser.start(weights)
    steps = engine.gradients(weights, order, privacy, sampler)
    for sums, records in islice(steps, optimiser.steps):
        if watch is not None:
            watch(engine.pack(weights))
        if noise is not None and privacy.deviation:
            drawn = engine.unpack(noise.draw(start).mul_(privacy.deviation))
            for total, part in zip(sums, drawn, strict=True):
                total.add_(part)
        update(sums, records if sampler is None else privacy.sampling * records)
    return engine.pack(weights)


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
    trained = descend(
        architecture,
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


def active_share(
    mlp: MLP, descent: Descent, initial: Tensor, fixed: Records, extra: Records
) -> tuple[list[Tensor], Tensor]:
    """Share of the steps in which each hidden neuron was active, R'(h) != 0, on the model's own record.

    initial: (p,) or (s, p); extra: (s, 1, *shape). Returns one (s, k) per hidden layer, and the (s, p)
    trained parameters, which are those of `descend`.
    """
    if extra.labels.shape[1] != 1:
        raise ExhumeError(f"extra: {extra.labels.shape[1]} records a model given, 1 expected")
    if descent.steps < 1:
        raise ExhumeError(f"steps: {descent.steps} given, at least 1 needed")
    act = activation(mlp.activation)
    records = extra.inputs[:, 0].flatten(1)
    counts = [records.new_zeros(len(records), width) for width in mlp.hidden]

    def look(parameters: Tensor) -> None:
        layers = list(mlp.layout.split(parameters).values())
        for count, slope in zip(counts, _slopes(layers, records, act), strict=True):
            count.add_(slope != 0)

    trained = descend(mlp, descent, initial, fixed, extra, watch=look)
    return [count / descent.steps for count in counts], trained


def _slopes(parameters: list[Tensor], records: Tensor, act: Activation) -> list[Tensor]:
    """(s, d) own records to the derivative of every hidden activation, (s, k) each."""
    slopes, signal = [], records
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        before = torch.einsum("skd,sd->sk", weight, signal) + bias
        signal = act.apply(before)
        slopes.append(act.slope(before, signal))
    return slopes


@dataclass(frozen=True, eq=False)
class Untouched:
    steps: tuple[int, ...]  # before which training was looked at, the first is 0
    shares: dict[str, Tensor]  # (len(steps), t) by name of the parameters
    sizes: dict[str, int]  # how many parameters each name has

    def over(self, prefix: str) -> Tensor:
        """(len(steps), t): the share over all parameters whose name begins so."""
        names = [name for name in self.shares if name.startswith(prefix)]
        if not names:
            raise ExhumeError(f"prefix: {prefix!r} begins none of {', '.join(self.shares)}")
        zeros = sum(self.shares[name] * self.sizes[name] for name in names)
        assert isinstance(zeros, Tensor)
        return zeros / sum(self.sizes[name] for name in names)


def untouched(
    architecture: Architecture,
    descent: Descent,
    initial: Tensor,
    fixed: Records,
    extra: Records,
    *,
    seen: Records,
    every: int = 1,
) -> Untouched:
    """Train on `fixed` and `extra` (s, e, *shape); look at the gradients of `seen` (t, 1, *shape).

    Record i is looked at in model i; if there is one model, all are looked at in that one. A look before
    every so many steps.
    """
    s, t = extra.labels.shape[0], seen.labels.shape[0]
    if s not in (1, t):
        raise ExhumeError(f"seen: {t} records given for {s} models, as many or one model needed")
    if every < 1:
        raise ExhumeError(f"every: {every} given, at least 1 needed")
    layout, step = architecture.layout, 0
    looks: list[dict[str, Tensor]] = []

    def look(parameters: Tensor) -> None:
        nonlocal step
        if step % every == 0:
            looks.append(_zeros(architecture, parameters.expand(t, -1), seen))
        step += 1

    descend(architecture, descent, initial, fixed, extra, watch=look)
    shares = {name: torch.stack([found[name] for found in looks]) for name in layout.names}
    sizes = {
        name: torch.Size(shape).numel()
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    }
    return Untouched(tuple(range(0, descent.steps, every)), shares, sizes)


def _zeros(architecture: Architecture, parameters: Tensor, seen: Records) -> dict[str, Tensor]:
    """(t, p) models: share of zero gradients, (t,) by name."""
    found: dict[str, list[Tensor]] = {name: [] for name in architecture.layout.names}
    for start in range(0, len(seen), _AT_ONCE):
        cut = slice(start, start + _AT_ONCE)
        gradients = functional.own_gradients(architecture, parameters[cut], seen[cut])
        for name, part in architecture.layout.split(gradients).items():
            found[name].append((part == 0).flatten(1).double().mean(1))
    return {name: torch.cat(parts) for name, parts in found.items()}
