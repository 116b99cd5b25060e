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

Which records a step of training sees, the same for every model of a stack.

An epoch goes once through all n fixed and e extra records in a random order, cut into batches; the
last batch of an epoch may be shorter. The order is a permutation of the fixed records into which the
extra ones are inserted, one after another, each at a uniformly random place: so every order of the
n + e records is equally likely, and models with and without extra records see the fixed ones in the
same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy, Sampler
from exhume.train.objective import CROSS_ENTROPY, Objective
from exhume.train.optimisers import Adam, Optimiser

_BLOCK_BYTES = 1 << 22  # of one layer's activations in a block: a few of these fit a shared cache
_FEWEST_RECORDS = 256  # in a block: below this the large products lose efficiency
LARGEST_CHUNK = (
    64  # models: beyond this a stack falls out of the processor's caches and gains nothing
)
ALIGNED = 16  # a row of weights or activations takes a multiple of so many numbers


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
    objective: Objective,
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
    error = signal if objective.of_numbers else torch.softmax(signal, 1)
    b = len(block.fixed)  # d loss / d outputs: what they are, less what is wanted
    error[:, :, :b].sub_(block.wanted)
    error[:, :, b : block.width].sub_(block.extra_wanted)
    error[:, :, block.width :] = 0
    if objective.of_numbers:
        error.mul_(2)
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


@dataclass(frozen=True, eq=False)
class Block:
    """Some fixed records, and every model's extra records if they belong here: b + f columns.

    Activations get empty columns up to an aligned number: the products are up to 40% slower without.
    """

    fixed: Tensor  # (b, live + 1), the last input is 1
    extra: Tensor  # (s, f, aligned)
    wanted: Tensor  # (c, b) of the outputs, or of their softmax
    extra_wanted: Tensor  # (s, c, f)

    @property
    def width(self) -> int:
        return self.fixed.shape[0] + self.extra.shape[1]

    @property
    def columns(self) -> int:
        return aligned(self.width)

    def squared_norms(self) -> Tensor:
        """(s, columns) of the inputs, the 1 included."""
        shared, extra = self.fixed.square().sum(1), self.extra.square().sum(2)
        every = torch.cat([shared.expand(len(extra), -1), extra], dim=1)
        return F.pad(every, (0, self.columns - self.width))


@dataclass(frozen=True, eq=False)
class Stack:
    """Records and parameters of s MLPs, laid out as the products want them.

    Inputs that are zero in every fixed record (the rim of MNIST's images) get no gradient from them:
    the columns of the first layer are the live inputs, the bias, the dead inputs, and nothing up to a
    multiple of 16; the big products run over the first live + 1 only. It changes nothing but the time.
    """

    mlp: MLP
    act: Activation
    order: Tensor  # (d,) permutation of the inputs, live ones first
    records: Block  # all of them
    objective: Objective = CROSS_ENTROPY

    @staticmethod
    def of(mlp: MLP, fixed: Records, extra: Records, objective: Objective = CROSS_ENTROPY) -> Stack:
        flat = objective.seen(fixed.inputs).flatten(1)
        (n, d), (s, e) = flat.shape, extra.labels.shape
        dead = (flat == 0).all(0)
        order = torch.argsort(dead.to(torch.uint8), stable=True)
        live = int((~dead).sum())
        shared = flat.new_ones(n, live + 1)
        shared[:, :live] = flat[:, order[:live]]
        padded = flat.new_zeros(s, e, aligned(d + 1))
        permuted = objective.seen(extra.inputs).reshape(s, e, d)[:, :, order]
        padded[:, :, :live], padded[:, :, live + 1 : d + 1] = (
            permuted[:, :, :live],
            permuted[:, :, live:],
        )
        padded[:, :, live] = 1
        wanted = objective.wanted(fixed, mlp.outputs).T.contiguous()
        own_wanted = objective.wanted(extra, mlp.outputs).transpose(1, 2)
        block = Block(shared, padded, wanted, own_wanted)
        return Stack(mlp, activation(mlp.activation), order, block, objective)

    @property
    def live(self) -> int:
        return self.records.fixed.shape[1] - 1

    def blocks(self) -> list[Block]:
        """All records, in blocks of about equal size, the extra ones in the last."""
        whole = self.records
        n = len(whole.fixed)
        count = max(1, -(-n // block_records(self.mlp)))
        size = aligned(max(1, -(-n // count)))
        cuts = zip(
            torch.split(whole.fixed, size), torch.split(whole.wanted, size, dim=1), strict=True
        )
        shared = [(rows, wanted.contiguous()) for rows, wanted in cuts]
        none, none_wanted = whole.extra[:, :0], whole.extra_wanted[:, :, :0]
        return [
            *(Block(rows, none, wanted, none_wanted) for rows, wanted in shared[:-1]),
            Block(shared[-1][0], whole.extra, shared[-1][1], whole.extra_wanted),
        ]

    def batches(self, order: Order) -> Iterator[list[Block]]:
        whole = self.records
        for batch in order.batches(len(whole.fixed), whole.extra.shape[1]):
            rows, columns = batch.fixed.to(whole.fixed.device), batch.extra.to(whole.fixed.device)
            part = Block(
                whole.fixed[rows],
                whole.extra[:, columns],
                whole.wanted[:, rows],
                whole.extra_wanted[:, :, columns],
            )
            yield replace(self, records=part).blocks()

    def gradients(
        self, weights: list[Tensor], plan: StepPlan
    ) -> Iterator[tuple[list[Tensor], int]]:
        """Step by step, sums of gradients at the weights as they are by then; see `recipe.Engine`.

        A model's own draw of the records takes as long as all of them.
        """
        sums, extra = [torch.zeros_like(weight) for weight in weights], self.records.extra.shape[1]
        for blocks in repeat(self.blocks()) if plan.order is None else self.batches(plan.order):
            for total in sums:
                total.zero_()
            taken = _taken(plan.sampler, blocks, extra, weights[0])
            for block, mask in zip(blocks, taken, strict=True):
                _add_gradients(
                    sums,
                    weights,
                    block,
                    self.act,
                    objective=self.objective,
                    privacy=plan.privacy,
                    taken=mask,
                )
            yield sums, sum(block.width for block in blocks)

    def unpack(self, flat: Tensor) -> list[Tensor]:
        """(s, p) to one new (s, fan_out, fan_in + 1) tensor per layer, the first one's columns moved."""
        named = list(self.mlp.layout.split(flat).values())
        (first, bias), live = named[:2], self.live
        d, moved = first.shape[2], first[:, :, self.order]
        out = first.new_zeros(*first.shape[:2], aligned(d + 1))
        out[:, :, :live], out[:, :, live + 1 : d + 1] = moved[:, :, :live], moved[:, :, live:]
        out[:, :, live] = bias
        pairs = zip(named[2::2], named[3::2], strict=True)
        return [out, *(torch.cat([weight, bias[:, :, None]], dim=2) for weight, bias in pairs)]

    def pack(self, weights: list[Tensor]) -> Tensor:
        """The inverse of `unpack`."""
        first, *rest = weights
        live, d = self.live, len(self.order)
        original = first.new_empty(*first.shape[:2], d)
        original[:, :, self.order[:live]] = first[:, :, :live]
        original[:, :, self.order[live:]] = first[:, :, live + 1 : d + 1]
        parts = [original, first[:, :, live]]
        for weight in rest:
            parts += [weight[:, :, :-1], weight[:, :, -1]]
        return torch.cat([part.flatten(1) for part in parts], dim=1)


def aligned(columns: int) -> int:
    return -(-columns // ALIGNED) * ALIGNED


def block_records(mlp: MLP) -> int:
    """Independent of the number of models, so that it does not change a model's arithmetic."""
    return max(_FEWEST_RECORDS, _BLOCK_BYTES // (4 * LARGEST_CHUNK * max(mlp.sizes[1:])))


@dataclass(frozen=True, eq=False)
class StepRecords:
    fixed: Tensor  # (b,) rows of the fixed records
    extra: Tensor  # (f,) columns of every model's extra records

    def __len__(self) -> int:
        return len(self.fixed) + len(self.extra)


@dataclass(frozen=True)
class Order:
    """How training walks through its records: known to whoever holds the key."""

    size: int
    key: Key

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ExhumeError(f"batch: {self.size} given, at least 1 needed")

    def epoch(self, index: int, n: int, e: int) -> Tensor:
        """(n + e,) positions in the concatenation of fixed and extra records."""
        generator = self.key.fold("epoch", index).generator()
        order = torch.randperm(n, generator=generator).tolist()
        for extra in range(e):
            place = int(torch.randint(len(order) + 1, (), generator=generator))
            order.insert(place, n + extra)
        return torch.tensor(order, dtype=torch.int64)

    def batches(self, n: int, e: int) -> Iterator[StepRecords]:
        """Epoch after epoch, without end; nothing if there are no records."""
        index = 0
        while n + e:
            for part in torch.split(self.epoch(index, n, e), self.size):
                yield StepRecords(part[part < n], part[part >= n] - n)
            index += 1


@dataclass(frozen=True, eq=False)
class StepPlan:
    """Which records a step of training sees, and what becomes of their gradients."""

    order: Order | None = None  # of batches; None: all records
    privacy: Privacy = NOT_PRIVATE
    noise: NoiseStream | None = None  # on the sum of gradients
    sampler: Sampler | None = None  # each model's own draw of all records; None: all are drawn
    dropout: tuple[Key, ...] = ()  # of each model, where something is dropped


EVERY_RECORD = StepPlan()
