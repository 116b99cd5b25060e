"""Records and parameters of a stack of MLPs, laid out as the products of train/stacked.py want them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.core.contract import Records
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.train.batches import Order

__all__ = ["ALIGNED", "LARGEST_CHUNK", "Block", "Stack", "block_records"]

_BLOCK_BYTES = 1 << 22  # of one layer's activations in a block: a few of these fit a shared cache
_FEWEST_RECORDS = 256  # in a block: below this the large products lose efficiency
LARGEST_CHUNK = (
    64  # models: beyond this a stack falls out of the processor's caches and gains nothing
)
ALIGNED = 16  # a row of weights or activations takes a multiple of so many numbers


@dataclass(frozen=True, eq=False)
class Block:
    """Some fixed records, and every model's extra records if they belong here: b + f columns.

    Activations get empty columns up to an aligned number: the products are up to 40% slower without.
    """

    fixed: Tensor  # (b, live + 1), the last input is 1
    extra: Tensor  # (s, f, aligned)
    onehot: Tensor  # (c, b)
    extra_onehot: Tensor  # (s, c, f)

    @property
    def width(self) -> int:
        return self.fixed.shape[0] + self.extra.shape[1]

    @property
    def columns(self) -> int:
        return aligned(self.width)

    def squared_norms(self) -> Tensor:
        """(s, columns) of the inputs, the 1 included."""
        shared, own = self.fixed.square().sum(1), self.extra.square().sum(2)
        every = torch.cat([shared.expand(len(own), -1), own], dim=1)
        return F.pad(every, (0, self.columns - self.width))


@dataclass(frozen=True, eq=False)
class Stack:
    """The records as the products want them, and the parameters likewise.

    Inputs that are zero in every fixed record (the rim of MNIST's images) get no gradient from them:
    the columns of the first layer are the live inputs, the bias, the dead inputs, and nothing up to a
    multiple of 16; the big products run over the first live + 1 only. It changes nothing but the time.
    """

    mlp: MLP
    act: Activation
    order: Tensor  # (d,) permutation of the inputs, live ones first
    records: Block  # all of them

    @staticmethod
    def of(mlp: MLP, fixed: Records, extra: Records) -> Stack:
        flat = fixed.inputs.flatten(1)
        (n, d), (s, e) = flat.shape, extra.labels.shape
        dead = (flat == 0).all(0)
        order = torch.argsort(dead.to(torch.uint8), stable=True)
        live = int((~dead).sum())
        shared = flat.new_ones(n, live + 1)
        shared[:, :live] = flat[:, order[:live]]
        own = flat.new_zeros(s, e, aligned(d + 1))
        permuted = extra.inputs.reshape(s, e, d)[:, :, order]
        own[:, :, :live], own[:, :, live + 1 : d + 1] = permuted[:, :, :live], permuted[:, :, live:]
        own[:, :, live] = 1
        onehot = F.one_hot(fixed.labels, mlp.outputs).T.to(flat.dtype).contiguous()
        own_onehot = F.one_hot(extra.labels, mlp.outputs).transpose(1, 2).to(flat.dtype)
        return Stack(mlp, activation(mlp.activation), order, Block(shared, own, onehot, own_onehot))

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
            torch.split(whole.fixed, size), torch.split(whole.onehot, size, dim=1), strict=True
        )
        shared = [(rows, onehot.contiguous()) for rows, onehot in cuts]
        none, none_hot = whole.extra[:, :0], whole.extra_onehot[:, :, :0]
        return [
            *(Block(rows, none, onehot, none_hot) for rows, onehot in shared[:-1]),
            Block(shared[-1][0], whole.extra, shared[-1][1], whole.extra_onehot),
        ]

    def batches(self, order: Order) -> Iterator[list[Block]]:
        whole = self.records
        for batch in order.batches(len(whole.fixed), whole.extra.shape[1]):
            rows, own = batch.fixed.to(whole.fixed.device), batch.extra.to(whole.fixed.device)
            part = Block(
                whole.fixed[rows],
                whole.extra[:, own],
                whole.onehot[:, rows],
                whole.extra_onehot[:, :, own],
            )
            yield Stack(self.mlp, self.act, self.order, part).blocks()

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
