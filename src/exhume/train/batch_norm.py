"""Training of networks with batch norm, one model after another: a step's records are normalised together.

The module itself is trained, in the modes in which its factory returns it, so that its running
statistics move as they do for whoever wrote it. They are part of the layout: what is released holds
them. Every step sees all records, or its batch of a known order; the unknown record is wherever the
order puts it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice, repeat
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exhume.core.contract import Architecture, ExhumeError, Layout, Records
from exhume.models.own.architecture import OwnArchitecture
from exhume.models.own.per_record_check import not_per_record
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy, Sampler
from exhume.train.local import batch_loss
from exhume.train.optimisers import Optimiser
from exhume.train.stacked import Order

__all__ = ["descend", "mixes_batches", "without_memory"]

_NORM = nn.modules.batchnorm._BatchNorm


def mixes_batches(architecture: Architecture) -> TypeGuard[OwnArchitecture]:
    """Whether batch norm, and nothing else, makes training more than a sum over records."""
    if not isinstance(architecture, OwnArchitecture) or not architecture.not_per_record:
        return False
    return _only_batch_norm(architecture)


@lru_cache(maxsize=8)
def _only_batch_norm(architecture: OwnArchitecture) -> bool:
    module = architecture.trainable()
    norms = [layer for layer in module.modules() if isinstance(layer, _NORM) and layer.training]
    for layer in norms:
        layer.eval()
    return bool(norms) and not not_per_record(module, architecture.input_shape)


def without_memory(module: nn.Module) -> nn.Module:
    """A copy whose batch norm in train mode uses its batch and remembers nothing: the same gradients."""
    own = copy.deepcopy(module)
    for layer in own.modules():
        if isinstance(layer, _NORM) and layer.training:
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return own


def descend(
    architecture: OwnArchitecture,
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
    """(s, p) as `functional.descend` has it; no per-record gradients, so no privacy, and nobody may watch."""
    if privacy.clips or noise is not None or sampler is not None or watch is not None:
        raise ExhumeError(
            f"{architecture}: {architecture.not_per_record}, so that no record has a gradient of its own to "
            "clip: replace it (nn.GroupNorm for batch norm)"
        )
    models = extra.labels.shape[0]
    starts = initial.expand(models, -1)
    return torch.stack(
        [
            _trained(architecture, optimiser, starts[i], fixed, extra[i : i + 1], order)
            for i in range(models)
        ]
    )


def _trained(  # noqa: PLR0917
    architecture: OwnArchitecture,
    optimiser: Optimiser,
    start: Tensor,
    fixed: Records,
    extra: Records,
    order: Order | None,
) -> Tensor:
    module = architecture.trainable().to(start.device)
    parts = architecture.layout.split(start)
    names = {name for name, _ in module.named_parameters()}
    followed = Layout(
        *zip(*((n, tuple(t.shape)) for n, t in parts.items() if n in names), strict=True)
    )
    flat = followed.join({n: parts[n].clone() for n in followed.names})
    buffers = dict(module.named_buffers())
    for name in parts.keys() - names:  # running statistics, which the module moves by itself
        buffers[name].copy_(parts[name])
    update = optimiser.start([flat])
    everything = fixed.with_extra(extra, 0)
    for rows in islice(_rows(len(fixed), extra.labels.shape[1], order), optimiser.steps):
        seen = everything if rows is None else everything[rows.to(start.device)]
        update([_gradient(module, followed, flat, seen)], 1)
    ended = followed.split(flat) | {name: buffers[name] for name in parts.keys() - names}
    return architecture.layout.join(ended)


def _rows(n: int, e: int, order: Order | None) -> Iterator[Tensor | None]:
    """Places of a step's records in the fixed and then the extra ones; None: all."""
    if order is None:
        return repeat(None)
    return (torch.cat([batch.fixed, n + batch.extra]) for batch in order.batches(n, e))


def _gradient(module: nn.Module, layout: Layout, flat: Tensor, seen: Records) -> Tensor:
    """(p,) of the mean loss."""
    with torch.enable_grad():
        weights = flat.detach().clone().requires_grad_()
        outputs = functional_call(module, layout.split(weights), (seen.inputs,))
        (slope,) = torch.autograd.grad(batch_loss(outputs, seen.labels), weights)
    return slope
