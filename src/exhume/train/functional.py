"""Gradient descent for s models of any architecture at once, through `torch.func`.

What `train/stacked.py` does by hand for MLPs, by `vmap(grad)` for whatever an `Architecture` builds.
Records come in blocks, so that memory stays bounded; with clipping, per-record gradients are formed
for one block at a time.

Memory: see `bytes_per_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, repeat

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from exhume.core.contract import Architecture, ExhumeError, Key, Layout, Records
from exhume.models.own.architecture import OwnArchitecture, fully_connected
from exhume.models.own.per_record_check import not_per_record
from exhume.models.probes import after, leaves
from exhume.naming import first_line
from exhume.train import stacked
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy, Sampler
from exhume.train.optimisers import Adam, Optimiser
from exhume.train.stacked import Order

__all__ = [
    "accuracy",
    "activations",
    "bytes_per_model",
    "check_side_by_side",
    "descend",
    "logits",
    "own_answers",
    "own_gradients",
    "record_gradients",
]

_BLOCK = 64  # records whose activations are held at once, a model
_PRIVATE_BLOCK = 8  # records whose gradients are held at once, a model


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
    network = _Network.trained(architecture, initial.device)
    parameters = initial.expand(extra.labels.shape[0], -1).clone()
    update = optimiser.start([parameters])
    for seen, own in islice(_steps(fixed, extra, order), optimiser.steps):
        if watch is not None:
            watch(parameters)
        total = torch.zeros_like(parameters)
        size = _PRIVATE_BLOCK if privacy.clips else _BLOCK
        fixed_taken, own_taken = _taken(sampler, len(seen), own.labels.shape[1], parameters)
        for start in range(0, len(seen), size):
            cut = slice(start, start + size)
            total += network.gradients(parameters, seen[cut], privacy, fixed_taken[:, cut])
        for start in range(0, own.labels.shape[1], size):
            cut = slice(start, start + size)
            part = Records(own.inputs[:, cut], own.labels[:, cut], own.classes)
            total += network.gradients(parameters, part, privacy, own_taken[:, cut])
        if noise is not None and privacy.deviation:
            total.add_(noise.draw(parameters), alpha=privacy.deviation)
        records = len(seen) + own.labels.shape[1]
        update([total], records if sampler is None else privacy.sampling * records)
    return parameters


def _taken(sampler: Sampler | None, fixed: int, extra: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Who is drawn, as 0 and 1: (s, fixed) and (s, extra)."""
    if sampler is None:
        return like.new_ones(len(like), fixed), like.new_ones(len(like), extra)
    drawn = sampler.draw(fixed, extra).to(like)
    return drawn[:, :fixed], drawn[:, fixed:]


def _steps(
    fixed: Records, extra: Records, order: Order | None
) -> Iterator[tuple[Records, Records]]:
    if order is None:
        yield from repeat((fixed, extra))
        return
    for batch in order.batches(len(fixed), extra.labels.shape[1]):
        rows, own = batch.fixed.to(fixed.inputs.device), batch.extra.to(fixed.inputs.device)
        yield fixed[rows], Records(extra.inputs[:, own], extra.labels[:, own], extra.classes)


@dataclass(frozen=True, eq=False)
class _Network:
    module: nn.Module
    layout: Layout

    @staticmethod
    def released(architecture: Architecture, device: torch.device) -> _Network:
        return _Network(architecture.build().eval().to(device), architecture.layout)

    @staticmethod
    def trained(architecture: Architecture, device: torch.device) -> _Network:
        """Refuses what a gradient does not tell: dropout, and statistics over batches."""
        if isinstance(architecture, OwnArchitecture):
            module, why = architecture.trainable(), architecture.not_per_record
        else:
            module = architecture.build()
            stateful = any(True for _ in module.buffers())
            why = not_per_record(module, architecture.input_shape) if stateful else ""
        if why:
            raise ExhumeError(
                f"{architecture}: {why}, which models trained side by side do not: replace it "
                "(nn.GroupNorm for batch norm, p=0 for dropout), put it into eval mode, or give a train "
                "function of your own"
            )
        if isinstance(architecture, OwnArchitecture):
            _try(architecture)
        return _Network(module.to(device), architecture.layout)

    def outputs(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """(p,), (n, *shape) to (n, c)."""
        named = self.layout.split(flat)
        result: Tensor = functional_call(self.module, named, (inputs,))
        return result

    @torch.no_grad()
    def alone(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """`outputs` of any number of inputs, in blocks and without gradients."""
        return torch.cat([self.outputs(flat, part) for part in torch.split(inputs, _BLOCK)])

    def loss(self, flat: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """Summed over the records."""
        return F.cross_entropy(self.outputs(flat, inputs), labels, reduction="sum")

    def gradient(self, flat: Tensor, one: Tensor, label: Tensor) -> Tensor:
        """(p,), one record and its label: (p,)."""
        found: Tensor = grad(self.loss)(flat, one[None], label[None])
        return found

    def gradients(
        self,
        parameters: Tensor,
        records: Records,
        privacy: Privacy,
        taken: Tensor | None = None,
    ) -> Tensor:
        """(s, p): each model's sum over the records, shared or its own (s, n, *shape).

        taken: (s, n) of 0 and 1, where gradients are clipped; None: all of them.
        """
        which = 0 if records.labels.ndim == 2 else None
        if privacy.clips:
            if taken is None:
                taken = parameters.new_ones(len(parameters), records.labels.shape[-1])
            each = vmap(self._clipped(privacy), in_dims=(0, which, which, 0))
            clipped: Tensor = each(parameters, records.inputs, records.labels, taken)
            return clipped
        over_models = vmap(grad(self.loss), in_dims=(0, which, which))
        result: Tensor = over_models(parameters, records.inputs, records.labels)
        return result

    def _clipped(self, privacy: Privacy):  # type: ignore[no-untyped-def]
        def clipped(flat: Tensor, inputs: Tensor, labels: Tensor, taken: Tensor) -> Tensor:
            each = vmap(self.gradient, in_dims=(None, 0, 0))(flat, inputs, labels)
            factors = (privacy.clip / each.square().sum(1).sqrt()).clamp(max=1)
            return (factors * taken) @ each

        return clipped


def check_side_by_side(architecture: Architecture) -> None:
    """Raises `ExhumeError` with the layer, or the operation, that stands against it."""
    _Network.trained(architecture, torch.device("cpu"))


@lru_cache(maxsize=8)
def _try(architecture: OwnArchitecture) -> None:
    """One gradient of two models on two records of zeros, or a sentence that says why there is none."""
    network = _Network(architecture.trainable(), architecture.layout)
    start = architecture.initial(Key.from_seed(0)).expand(2, -1)
    labels = torch.zeros(2, dtype=torch.int64)
    records = Records(torch.zeros(2, *architecture.input_shape), labels, ())
    try:
        network.gradients(start, records, NOT_PRIVATE)
    except Exception as error:
        raise ExhumeError(
            f"{architecture}: it cannot be trained side by side with others ({first_line(error)}); "
            "give a train function of your own"
        ) from error


def bytes_per_model(
    architecture: Architecture,
    records: int,
    optimiser: Optimiser,
    privacy: Privacy = NOT_PRIVATE,
) -> int:
    """Peak memory that one more model in a stack takes, for float32; an estimate on the safe side."""
    size = architecture.layout.size
    rows = min(records, _PRIVATE_BLOCK if privacy.clips else _BLOCK)
    values = 4 * activations(architecture)  # outputs, their gradients and the kernels' workspace
    copies = (6 if isinstance(optimiser, Adam) else 5) + (2 * rows if privacy.clips else 0)
    return 4 * (rows * values + copies * size)


def activations(architecture: Architecture) -> int:
    """Numbers that one record leaves behind in a forward pass; other views of the same ones do not count."""
    module, counts = architecture.build().eval(), list[int]()

    def count(_: str, given: object, out: object) -> None:
        outputs = out if isinstance(out, tuple | list) else (out,)
        inputs = given if isinstance(given, tuple | list) else (given,)
        there = {part.data_ptr() for part in inputs if isinstance(part, Tensor)}
        counts.extend(
            part.numel()
            for part in outputs
            if isinstance(part, Tensor) and part.data_ptr() not in there
        )

    with torch.no_grad(), after(module, leaves(module), count):
        module(torch.zeros(1, *architecture.input_shape))
    return sum(counts)


def own_gradients(architecture: Architecture, parameters: Tensor, own: Records) -> Tensor:
    """(s, p) models, each on its own records (s, n, *shape): (s, p) gradients of their summed losses."""
    network = _Network.trained(architecture, parameters.device)
    return network.gradients(parameters, own, NOT_PRIVATE)


def own_answers(
    architecture: Architecture, parameters: Tensor, own: Records
) -> tuple[Tensor, Tensor]:
    """(s, p) models as released, each on its own records (s, n, *shape): logits and gradients.

    (s, n, c), and (s, p) of their summed losses.
    """
    network = _Network.released(architecture, parameters.device)
    outputs: Tensor = vmap(network.outputs)(parameters, own.inputs)
    return outputs.detach(), network.gradients(parameters, own, NOT_PRIVATE).detach()


def record_gradients(
    architecture: Architecture, parameters: Tensor, records: Records, privacy: Privacy = NOT_PRIVATE
) -> Tensor:
    """(s, p) models on (n, *shape) shared records: (s, n, p), each record's gradient, clipped."""
    network = _Network.trained(architecture, parameters.device)
    one = vmap(network.gradient, in_dims=(None, 0, 0))
    each: Tensor = vmap(one, in_dims=(0, None, None))(parameters, records.inputs, records.labels)
    each = each.detach()
    if privacy.clips:
        each.mul_(privacy.factors(each.square().sum(2))[:, :, None])
    return each


def logits(architecture: Architecture, parameters: Tensor, inputs: Tensor) -> Tensor:
    """(s, p) models on (n, *shape) shared inputs: (s, n, c)."""
    if mlp := fully_connected(architecture):
        return stacked.logits(mlp, parameters, inputs)
    network = _Network.released(architecture, parameters.device)
    if isinstance(architecture, OwnArchitecture):  # one by one: it may hold what vmap cannot do
        return torch.stack([network.alone(flat, inputs) for flat in parameters])
    parts = [
        vmap(network.outputs, in_dims=(0, None))(parameters, part)
        for part in torch.split(inputs, _BLOCK)
    ]
    return torch.cat(parts, dim=1).detach()


def accuracy(architecture: Architecture, parameters: Tensor, records: Records) -> Tensor:
    """(s, p) to (s,): share of the records that each model classifies rightly."""
    right = logits(architecture, parameters, records.inputs).argmax(2) == records.labels
    return right.double().mean(1)
