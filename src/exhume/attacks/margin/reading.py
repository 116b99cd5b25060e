"""What a margin attack reads off a release before it searches: the network, the span, how many records.

The first layer's updates are combinations of the training inputs, so its rows lie in their span: exactly
once weight decay has removed the initial weights, up to a floor of noise if they were small. The
spectrum shows where the records end and the floor begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from exhume.attacks.margin.known import centre_of
from exhume.attacks.margin.residual import Span, span_of
from exhume.core.contract import Architecture, ExhumeError, Knowledge, NotApplicable
from exhume.models.cnn import CNN
from exhume.models.heads import Head, check_head
from exhume.models.homogeneous import HomogeneousMLP
from exhume.models.matrices import Dense
from exhume.models.mlp import MLP
from exhume.store.shards import digest

__all__ = [
    "GAP",
    "Reader",
    "check_homogeneous",
    "labels_for",
    "noise_edge",
    "rank_of",
    "scale_of",
    "spread_of",
]

GAP = 1.5  # factor between neighbouring singular values that ends the span
_CLEAR = 1.05  # times the edge of a floor: above it
_CLIFF = (
    30.0  # factor of a drop that ends the data wherever it is, if what follows is next to nothing
)
_FLOOR = 1e-4  # share of the largest singular value that is next to nothing
_LONGER = 1.7  # inputs over the first layer's norm per its bias's, whose terms cancel less
_ROUNDING = 1e-6  # share of the largest singular value below which one is rounding


@dataclass(frozen=True, eq=False)
class Reader:
    """A checked architecture and what is known besides."""

    mlp: Dense
    head: Head
    labels: Tensor | None  # (n,) of the unknown records
    centre: Tensor  # (*shape)
    _spans: dict[tuple[str, int | None], Span] = field(default_factory=dict)  # of the last release

    @staticmethod
    def of(knowledge: Knowledge, head: Head) -> Reader:
        mlp = dense(knowledge.architecture)
        check_head(head, mlp.outputs)
        return Reader(mlp, head, knowledge.labels, centre_of(knowledge, mlp))

    @property
    def architecture(self) -> Dense:
        return self.mlp

    def span(self, parameters: Tensor, rank: int | None) -> Span:
        """(p,) to the span of its first layer; rank 0: all of it, None: where the spectrum ends."""
        network = self.mlp.matrices(parameters)
        if not bool(torch.isfinite(parameters).all()):
            raise ExhumeError("release: the weights are not finite")
        known = (digest(parameters), rank)
        if known not in self._spans:
            self._spans.clear()
            full, long = sorted(network.first.shape)
            read = partial(rank_of, aspect=full / long)
            self._spans[known] = span_of(network, read if rank is None else min(rank, full) or full)
        return self._spans[known]


def rank_of(values: Tensor, aspect: float = 1.0) -> int:
    """How many of the singular values (falling) belong to the data; `aspect` is short side over long.

    Values that are rounding are none. Where what is left of the initial weights makes a floor, the data end
    at the last gap before it: a gap further up may be between classes. A floor is flat in the first half of
    a spectrum. Where the data run into it without a gap, they end at the floor's edge; without data above an
    edge, all counts.
    """
    kept = values[values > _ROUNDING * values[0]]
    half = max(2, len(values) // 2)
    tops = values.clamp_min(_ROUNDING * float(values[0]))  # what is rounding has no cliffs
    cliffs = ((tops[:-1] > _CLIFF * tops[1:]) & (tops[1:] < _FLOOR * values[0])).nonzero()
    if len(cliffs):
        return int(cliffs[-1]) + 1
    if len(kept) <= half:
        return len(kept)
    gaps = (kept[: half - 1] / kept[1:half] >= GAP).nonzero()
    if len(gaps):
        return int(gaps[-1]) + 1
    above = int((kept > _CLEAR * noise_edge(values, aspect)).sum())
    return above if 0 < above < half else len(kept)


def noise_edge(values: Tensor, aspect: float) -> float:
    """The largest singular value that noise alone would have, from the median of all.

    Gavish and Donoho 2014: their threshold is omega(b)·median = lambda(b)·sigma·sqrt(long side), which gives
    sigma; the edge of the bulk is (1 + sqrt(b))·sigma·sqrt(long side).
    """
    b = aspect
    omega = 0.56 * b**3 - 0.95 * b**2 + 1.82 * b + 1.43
    lam = math.sqrt(2 * (b + 1) + 8 * b / (b + 1 + math.sqrt(b * b + 14 * b + 1)))
    return (1 + math.sqrt(b)) * omega / lam * float(values.median())


def scale_of(span: Span, shape: tuple[int, ...], contrast: float) -> float:
    """The norm of a start: that of an image of such contrast.

    Vectors may have any scale; the first layer and its bias show it: they are the same sum, of the inputs and
    of ones.
    """
    bias = float(span.network.bias.norm())
    if len(shape) == 3 or not bias:
        return contrast * math.sqrt(span.basis.shape[1])
    return _LONGER * float(span.network.first.norm()) / bias


def spread_of(span: Span, scale: float) -> Tensor:
    """(r,) what starts have in each direction, for a norm of `scale`."""
    spread = span.values.sqrt()
    scaled: Tensor = spread * (scale / spread.norm())
    return scaled


def labels_for(count: int, reader: Reader, like: Tensor) -> Tensor:
    """(count,) labels of the candidates: those known, repeated, or as many of each class."""
    if reader.labels is not None:
        times = -(-count // len(reader.labels))
        return reader.labels.repeat(times)[:count].to(like.device)
    classes = max(2, reader.mlp.outputs)
    return torch.arange(count, device=like.device) % classes


def dense(architecture: Architecture | None) -> Dense:
    """The architecture, if it is fully connected with a hidden layer."""
    if architecture is None:
        raise NotApplicable("the margin attack needs the architecture", ever=True)
    if isinstance(architecture, Dense):
        if not architecture.hidden:
            raise NotApplicable(
                "fc1: without a hidden layer the weights are one sum over all records, which no gate "
                "tells apart",
                ever=False,
            )
        if isinstance(architecture, MLP) and architecture.activation == "identity":
            raise NotApplicable(
                "act1: a linear network's weights are one sum over all records, which nothing tells apart",
                ever=False,
            )
        return architecture
    if isinstance(architecture, CNN):
        raise NotApplicable(
            "conv1: shared filters have no row span of whole images; not yet covered", ever=True
        )
    raise NotApplicable(
        f"{type(architecture).__name__}: only fully connected networks are covered so far",
        ever=True,
    )


def check_homogeneous(mlp: Dense) -> None:
    """Refuse what eq. (6) does not hold for."""
    if isinstance(mlp, MLP) and mlp.activation != "relu":
        raise NotApplicable(
            f"act1: eq. (6) needs a homogeneous network, and this one has {mlp.activation}; FirstLayer and "
            "HiddenSpan read any activation",
            ever=False,
        )
    if not isinstance(mlp, HomogeneousMLP):
        raise NotApplicable(
            f"fc{len(mlp.hidden) + 1}.bias: a bias after the first layer breaks homogeneity, on which "
            "eq. (6) rests; FirstLayer and HiddenSpan read such networks",
            ever=False,
        )
