"""How a text classifier makes one vector of a sequence, found out by running it on drawn tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from exhume.core.contract import Key
from exhume.models.own.text import TextModel, drawn_tokens

__all__ = ["Pooling", "pooling_of"]

_PROBES = 6
_SAME = 1e-4  # relative: fp32 outputs of the same function
_DRAWN = Key.from_seed(0).fold("pooling")


@dataclass(frozen=True, eq=False)
class Pooling:
    """kind: one of

    - flatten: the embeddings side by side, plus `offset`
    - mean: the mean of what every token gives alone, padding included
    - masked: the same without padding
    - other
    """

    kind: str
    ordered: bool  # whether the order of the tokens matters
    offset: Tensor = field(default_factory=lambda: torch.zeros(()))


def pooling_of(net: TextModel, at: Tensor) -> Pooling:
    """How the network pools at these parameters (p,), tried on drawn tokens."""
    tokens = drawn_tokens((_PROBES, net.length), net.vocabulary, net.padding, _DRAWN)
    seen = net.features(at, tokens).double()
    table = net.table(at).double()
    beside = table[tokens].flatten(1)
    if beside.shape == seen.shape and _alike(seen - seen[:1], beside - beside[:1]):
        return Pooling("flatten", ordered=True, offset=seen[0] - beside[0])
    turned = net.features(at, tokens.flip(1)).double()
    if net.length > 1 and not _alike(seen, turned):
        return Pooling("other", ordered=True)
    if _alike(seen, _mean(net, at, tokens)):
        return Pooling("masked" if _masked(net, at, tokens) else "mean", ordered=False)
    return Pooling("other", ordered=False)


def _mean(net: TextModel, at: Tensor, tokens: Tensor) -> Tensor:
    """(n, l) to (n, d): the mean of what every token gives if it stands at all places."""
    same = tokens.flatten()[:, None].expand(-1, net.length)
    alone = net.features(at, same).double()
    return alone.reshape(*tokens.shape, -1).mean(1)


def _masked(net: TextModel, at: Tensor, tokens: Tensor) -> bool:
    """Whether padding at the end is left out."""
    if net.padding is None or net.length == 1:
        return False
    kept = net.length // 2
    filled = tokens.clone()
    filled[:, kept:] = net.padding
    return _alike(net.features(at, filled).double(), _mean(net, at, tokens[:, :kept]))


def _alike(one: Tensor, other: Tensor) -> bool:
    return bool(one.isfinite().all()) and float((one - other).norm()) <= _SAME * float(one.norm())
