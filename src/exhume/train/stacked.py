"""Gradient descent for s MLPs at once, each on the fixed records and its own extra ones.

The fixed records are shared, so the first layer of all s models is one product of (s·k, d) with
(d, n) instead of s small ones; the later layers are batched products. The records come in blocks small
enough for the activations of all s models to stay in the processor's caches; the extra records are e
more columns of the last block. A bias is one more column of its layer's weights, and its input is 1.

Per-record gradients are never formed: ||g_i||^2 is, summed over the layers, the squared norm of the
record's error there times that of the layer's input (the bias's 1 included), and clipping scales the
error columns before the same products (train/dp.py).

Memory: see `bytes_per_model`. Cost: (4·n·d·k + 6·n·k·c)·steps floating-point operations a model for
one hidden layer.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, repeat

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.core.contract import Records
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.train.batches import Order
from exhume.train.blocks import ALIGNED, Block, Stack, block_records
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy, Sampler
from exhume.train.optimisers import Adam, Descent, Optimiser

__all__ = ["Adam", "Descent", "accuracy", "bytes_per_model", "descend", "logits"]


def descend(
    mlp: MLP,
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
    records, or the batch that `order` gives it; with a sampler, each model's own draw of all records (which
    takes as long as all of them). `watch` is shown the parameters (s, p) before each step.
    """
    stack = Stack.of(mlp, fixed, extra)
    weights = stack.unpack(initial.expand(extra.labels.shape[0], -1))
    sums = [torch.zeros_like(weight) for weight in weights]
    update = optimiser.start(weights)
    steps = repeat(stack.blocks()) if order is None else stack.batches(order)
    for blocks in islice(steps, optimiser.steps):
        if watch is not None:
            watch(stack.pack(weights))
        for total in sums:
            total.zero_()
        records = sum(block.width for block in blocks)
        taken = _taken(sampler, blocks, extra.labels.shape[1], initial)
        for block, mask in zip(blocks, taken, strict=True):
            _add_gradients(sums, weights, block, stack.act, privacy=privacy, taken=mask)
        if noise is not None and privacy.deviation:
            drawn = stack.unpack(noise.draw(initial).mul_(privacy.deviation))
            for total, part in zip(sums, drawn, strict=True):
                total.add_(part)
        update(sums, records if sampler is None else privacy.sampling * records)
    return stack.pack(weights)


def _taken(
    sampler: Sampler | None, blocks: list[Block], extra: int, like: Tensor
) -> list[Tensor | None]:
    """Who is drawn in each block, (s, columns) of 0 and 1; None: all are."""
    if sampler is None:
        return [None] * len(blocks)
    sizes = [len(block.fixed) for block in blocks]
    drawn = sampler.draw(sum(sizes), extra).to(like)
    parts = list(torch.split(drawn[:, : sum(sizes)], sizes, dim=1))
    parts[-1] = torch.cat([parts[-1], drawn[:, sum(sizes) :]], dim=1)  # the extra ones are there
    return [
        F.pad(part, (0, block.columns - block.width))
        for part, block in zip(parts, blocks, strict=True)
    ]


def _add_gradients(
    sums: list[Tensor],
    weights: list[Tensor],
    block: Block,
    act: Activation,
    *,
    privacy: Privacy,
    taken: Tensor | None,
) -> None:
    """Add the gradients of the block's losses, each clipped and those not drawn left out, by hand."""
    signal = _first_layer(weights[0], block)
    inputs: list[Tensor] = []  # pre-activations, (s, k, w) each
    hidden: list[Tensor] = []  # activations and a row of ones, (s, k + 1, w)
    for weight in weights[1:]:
        s, k, w = signal.shape
        inputs.append(signal)
        hidden.append(signal.new_ones(s, k + 1, w))
        hidden[-1][:, :k] = act.apply(signal)
        signal = torch.bmm(weight, hidden[-1])
    error = torch.softmax(signal, 1)  # cross-entropy: d loss / d logits = softmax - onehot
    b = len(block.fixed)
    error[:, :, :b].sub_(block.onehot)
    error[:, :, b : block.width].sub_(block.extra_onehot)
    error[:, :, block.width :] = 0
    errors = [error]
    for layer in range(len(weights) - 1, 0, -1):
        slope = act.slope(inputs[layer - 1], hidden[layer - 1][:, :-1])
        back = torch.bmm(weights[layer][:, :, :-1].transpose(1, 2), errors[0])
        errors.insert(0, back.mul_(slope))
    if privacy.clips:
        _clip(errors, hidden, block, privacy, taken)
    _add_first_gradient(sums[0], errors[0], block)
    for total, error, below in zip(sums[1:], errors[1:], hidden, strict=True):
        total.baddbmm_(error, below.transpose(1, 2))


def _clip(
    errors: list[Tensor],
    hidden: list[Tensor],
    block: Block,
    privacy: Privacy,
    taken: Tensor | None,
) -> None:
    squared = errors[0].square().sum(1).mul_(block.squared_norms())
    for error, below in zip(errors[1:], hidden, strict=True):
        squared.addcmul_(error.square().sum(1), below.square().sum(1))
    factors = privacy.factors(squared)
    if taken is not None:
        factors = factors * taken
    factors = factors[:, None]
    for error in errors:
        error.mul_(factors)


def _first_layer(weight: Tensor, block: Block) -> Tensor:
    """(s, k, aligned) weights times all records: (s, k, columns)."""
    s, k, _ = weight.shape
    b, columns = block.fixed.shape
    out = weight.new_empty(s, k, block.columns)
    shared = weight.view(s * k, -1)[:, :columns]
    torch.mm(shared, block.fixed.T, out=out.view(s * k, -1)[:, :b])
    if block.extra.shape[1]:
        out[:, :, b : block.width] = torch.bmm(weight, block.extra.transpose(1, 2))
    out[:, :, block.width :] = 0
    return out


def _add_first_gradient(total: Tensor, error: Tensor, block: Block) -> None:
    """Add (s, k, columns) errors times all records to (s, k, aligned)."""
    s, k, _ = error.shape
    b, columns = block.fixed.shape
    total.view(s * k, -1)[:, :columns].addmm_(error.view(s * k, -1)[:, :b], block.fixed)
    if block.extra.shape[1]:
        total.baddbmm_(error[:, :, b : block.width], block.extra)


def bytes_per_model(mlp: MLP, records: int, optimiser: Optimiser) -> int:
    """Peak memory that one more model in a stack takes, for float32."""
    activations = sum(5 * width + 2 for width in mlp.sizes[1:-1]) + 4 * mlp.outputs
    copies = 6 if isinstance(optimiser, Adam) else 5
    rows = min(records, block_records(mlp) + 1)
    return 4 * (rows * activations + copies * (mlp.layout.size + ALIGNED * mlp.sizes[1]))


def logits(mlp: MLP, parameters: Tensor, inputs: Tensor) -> Tensor:
    """(s, p) models on (n, *shape) shared inputs: (s, n, c)."""
    layers = list(mlp.layout.split(parameters).values())
    act = activation(mlp.activation)
    signal = inputs.flatten(1).T
    for index, (weight, bias) in enumerate(zip(layers[::2], layers[1::2], strict=True)):
        signal = torch.matmul(weight, signal if index == 0 else act.apply(signal)) + bias[..., None]
    return signal.transpose(1, 2)


def accuracy(mlp: MLP, parameters: Tensor, records: Records) -> Tensor:
    """(s, p) to (s,): share of the records that each model classifies rightly."""
    right = logits(mlp, parameters, records.inputs).argmax(2) == records.labels
    return right.double().mean(1)
