"""Gradient descent for s models of any architecture at once, through `torch.func`.

What `train/stacked.py` does by hand for MLPs, by `vmap(grad)` for whatever an `Architecture` builds.
Records come in blocks, so that memory stays bounded; with clipping, per-record gradients are formed
for one block at a time.

Networks with batch norm or dropout are trained one model after another: a step's records are normalised
together, and what is dropped is drawn step by step.
The module itself is trained, in the modes in which its factory returns it, so that its running
statistics move as they do for whoever wrote it. They are part of the layout: what is released holds
them. Every step sees all records, or its batch of a known order; the unknown record is wherever the
order puts it.

Memory: see `bytes_per_model`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from exhume.core.contract import Architecture, ExhumeError, Key, Layout, Records
from exhume.core.own_code import first_line
from exhume.models.own import OwnArchitecture, fully_connected, not_per_record
from exhume.models.probes import after, leaves
from exhume.train import stacked
from exhume.train.dp import NOT_PRIVATE, Privacy, Sampler
from exhume.train.objective import CROSS_ENTROPY, Objective
from exhume.train.optimisers import Adam, Optimiser
from exhume.train.stacked import Order, StepPlan

_NORM = nn.modules.batchnorm._BatchNorm
_DROPOUT = nn.modules.dropout._DropoutNd
_BLOCK = 64  # records whose activations are held at once, a model
_PRIVATE_BLOCK = 8  # records whose gradients are held at once, a model


@dataclass(frozen=True, eq=False)
class SideBySide:
    """s models of any other architecture, each on the fixed records and its own extra ones."""

    network: SideBySideNetwork
    fixed: Records
    extra: Records

    @staticmethod
    def of(
        architecture: Architecture,
        fixed: Records,
        extra: Records,
        objective: Objective = CROSS_ENTROPY,
    ) -> SideBySide:
        network = SideBySideNetwork.trained(architecture, fixed.inputs.device)
        return SideBySide(replace(network, objective=objective), fixed, extra)

    def unpack(self, flat: Tensor) -> list[Tensor]:
        return [flat.clone()]

    def pack(self, weights: list[Tensor]) -> Tensor:
        return weights[0]

    def gradients(
        self, weights: list[Tensor], plan: StepPlan
    ) -> Iterator[tuple[list[Tensor], int]]:
        """Step by step, sums of gradients at the weights as they are by then; see `recipe.Engine`."""
        (parameters,), privacy = weights, plan.privacy
        size = _PRIVATE_BLOCK if privacy.clips else _BLOCK
        for seen, own in _steps(self.fixed, self.extra, plan.order):
            total, extra = torch.zeros_like(parameters), own.labels.shape[1]
            fixed_taken, own_taken = _taken(plan.sampler, len(seen), extra, parameters)
            for start in range(0, len(seen), size):
                cut = slice(start, start + size)
                part = seen[cut]
                total += self.network.gradients(parameters, part, privacy, fixed_taken[:, cut])
            for start in range(0, extra, size):
                cut = slice(start, start + size)
                part = Records(own.inputs[:, cut], own.labels[:, cut], own.classes)
                total += self.network.gradients(parameters, part, privacy, own_taken[:, cut])
            yield [total], len(seen) + extra


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
        rows, columns = batch.fixed.to(fixed.inputs.device), batch.extra.to(fixed.inputs.device)
        yield (
            fixed[rows],
            Records(extra.inputs[:, columns], extra.labels[:, columns], extra.classes),
        )


@dataclass(frozen=True, eq=False)
class SideBySideNetwork:
    module: nn.Module
    layout: Layout
    objective: Objective = CROSS_ENTROPY

    @staticmethod
    def released(architecture: Architecture, device: torch.device) -> SideBySideNetwork:
        return SideBySideNetwork(architecture.build().eval().to(device), architecture.layout)

    @staticmethod
    def trained(architecture: Architecture, device: torch.device) -> SideBySideNetwork:
        """Refuses what a gradient does not tell: dropout, and statistics over batches."""
        if isinstance(architecture, OwnArchitecture):
            module, why = architecture.trainable(), architecture.not_per_record
            why = why and (_beside(architecture, _NORM) or why)  # batch norm only by itself
        else:
            module = architecture.build()
            stateful = any(True for _ in module.buffers())
            why = not_per_record(module, architecture.input_shape) if stateful else ""
        if why:
            raise ExhumeError(
                f"{architecture}: {why}, which models trained side by side do not: give a train function "
                'of your own, which may (train = "file.py:train"), put the layer into eval mode, or replace '
                "it (p=0 for dropout, nn.GroupNorm for batch norm)"
            )
        if isinstance(architecture, OwnArchitecture):
            _try(architecture)
        return SideBySideNetwork(module.to(device), architecture.layout)

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
        """() the loss, summed over the records."""
        outputs = self.outputs(flat, self.objective.seen(inputs))
        return self.objective.value(outputs, Records(inputs, labels, ()))

    def gradient(self, flat: Tensor, one: Tensor, label: Tensor) -> Tensor:
        """(p,), one record and its label: (p,)."""
        slope: Tensor = grad(self.loss)(flat, one[None], label[None])
        return slope

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
    SideBySideNetwork.trained(architecture, torch.device("cpu"))


@lru_cache(maxsize=8)
def _try(architecture: OwnArchitecture) -> None:
    """One gradient of two models on two records of zeros, or a sentence that says why there is none."""
    network = SideBySideNetwork(architecture.trainable(), architecture.layout)
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
    network = SideBySideNetwork.trained(architecture, parameters.device)
    return network.gradients(parameters, own, NOT_PRIVATE)


def own_answers(
    architecture: Architecture, parameters: Tensor, own: Records
) -> tuple[Tensor, Tensor]:
    """(s, p) models as released, each on its own records (s, n, *shape): logits and gradients.

    (s, n, c), and (s, p) of their summed losses.
    """
    network = SideBySideNetwork.released(architecture, parameters.device)
    outputs: Tensor = vmap(network.outputs)(parameters, own.inputs)
    return outputs.detach(), network.gradients(parameters, own, NOT_PRIVATE).detach()


def record_gradients(architecture: Architecture, parameters: Tensor, records: Records) -> Tensor:
    """(s, p) models on (n, *shape) shared records: (s, n, p), each record's gradient."""
    network = SideBySideNetwork.trained(architecture, parameters.device)
    one = vmap(network.gradient, in_dims=(None, 0, 0))
    each: Tensor = vmap(one, in_dims=(0, None, None))(parameters, records.inputs, records.labels)
    return each.detach()


def logits(architecture: Architecture, parameters: Tensor, inputs: Tensor) -> Tensor:
    """(s, p) models on (n, *shape) shared inputs: (s, n, c)."""
    if mlp := fully_connected(architecture):
        return stacked.logits(mlp, parameters, inputs)
    network = SideBySideNetwork.released(architecture, parameters.device)
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


def trained_alone(architecture: Architecture) -> TypeGuard[OwnArchitecture]:
    """Whether batch norm or dropout, and nothing else, makes training more than a sum over records."""
    if not isinstance(architecture, OwnArchitecture) or not architecture.not_per_record:
        return False
    return not _beside(architecture, _NORM, _DROPOUT)


def mixes_batches(architecture: Architecture) -> TypeGuard[OwnArchitecture]:
    """Whether that is batch norm alone."""
    return trained_alone(architecture) and not _beside(architecture, _NORM)


def drops(architecture: Architecture) -> TypeGuard[OwnArchitecture]:
    """Whether it is dropout, too."""
    return trained_alone(architecture) and bool(_beside(architecture, _NORM))


@lru_cache(maxsize=8)
def _beside(architecture: OwnArchitecture, *kinds: type[nn.Module]) -> str:
    """What makes training more than a sum over records, were these layers in eval mode; empty: nothing."""
    module = architecture.trainable()
    for layer in module.modules():
        if isinstance(layer, kinds):
            layer.eval()
    return not_per_record(module, architecture.input_shape)


def without_memory(module: nn.Module) -> nn.Module:
    """A copy whose batch norm in train mode uses its batch and remembers nothing: the same gradients."""
    copied = copy.deepcopy(module)
    for layer in copied.modules():
        if isinstance(layer, _NORM) and layer.training:
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return copied


@dataclass(frozen=True, eq=False)
class Alone:
    """One model with batch norm or dropout: the module itself is trained, and moves its statistics.

    What dropout drops comes from torch's global generator, which the caller seeds.
    """

    module: nn.Module
    layout: Layout  # all that is released
    followed: Layout  # what has gradients
    fixed: Records
    extra: Records  # (1, e, *shape)
    objective: Objective = CROSS_ENTROPY

    @staticmethod
    def of(
        architecture: OwnArchitecture,
        fixed: Records,
        extra: Records,
        objective: Objective = CROSS_ENTROPY,
    ) -> Alone:
        module, layout = architecture.trainable().to(fixed.inputs.device), architecture.layout
        names = {name for name, _ in module.named_parameters()}
        known = zip(layout.names, layout.shapes, strict=True)
        followed = Layout(*zip(*((n, shape) for n, shape in known if n in names), strict=True))
        return Alone(module, layout, followed, fixed, extra, objective)

    def _statistics(self) -> dict[str, Tensor]:
        names = set(self.layout.names) - set(self.followed.names)
        return {name: part for name, part in self.module.named_buffers() if name in names}

    def unpack(self, flat: Tensor) -> list[Tensor]:
        parts = self.layout.split(flat[0])
        for name, buffer in self._statistics().items():
            buffer.copy_(parts[name])
        return [self.followed.join({name: parts[name].clone() for name in self.followed.names})]

    def pack(self, weights: list[Tensor]) -> Tensor:
        return self.layout.join(self.followed.split(weights[0]) | self._statistics())[None]

    def gradients(
        self, weights: list[Tensor], plan: StepPlan
    ) -> Iterator[tuple[list[Tensor], int]]:
        """Step by step, the gradient of the mean loss; there are none of single records to clip."""
        everything = self.fixed.with_extra(self.extra, 0)
        for rows in _batch_rows(len(self.fixed), self.extra.labels.shape[1], plan.order):
            seen = everything if rows is None else everything[rows.to(weights[0].device)]
            yield [self._mean_gradient(weights[0], seen)], 1

    def _mean_gradient(self, flat: Tensor, seen: Records) -> Tensor:
        """(p,) of the mean loss."""
        with torch.enable_grad():
            weights = flat.detach().clone().requires_grad_()
            inputs = self.objective.seen(seen.inputs)
            outputs = functional_call(self.module, self.followed.split(weights), (inputs,))
            (slope,) = torch.autograd.grad(self.objective.value(outputs, seen, "mean"), weights)
        return slope


def _batch_rows(n: int, e: int, order: Order | None) -> Iterator[Tensor | None]:
    """Places of a step's records in the fixed and then the extra ones; None: all."""
    if order is None:
        return repeat(None)
    return (torch.cat([batch.fixed, n + batch.extra]) for batch in order.batches(n, e))
