"""What a margin attack reads off a release before it searches: the network, the span, how many records.

The first layer's updates are combinations of the training inputs, so its rows lie in their span: exactly
once weight decay has removed the initial weights, up to a floor of noise if they were small. The
spectrum shows where the records end and the floor begins.

A deeper layer, W = sum_i s_i a_iᵀ = U diag(s) V, is read direction by direction: what entered it, a_i, drifts
while training, and decay forgets where it was, so that the sum has a tail whose singular values s_j fall
without a gap, and what training records have along v_j falls with s_j. Every direction is weighted by the
noise that is there, w_j = e² / (s_j² + e²), down to the floor e that rounding or the start makes.

Weights alone show whether their records can be read off them, without an attack and without the truth. The
first layer's spectrum must end, and so tell how many records there are; nothing may be left of the random
start; and a record must be asked for by more equations than it has unknowns (`Premises`). Behind convolutions
the first fully connected layer takes the first layer's place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from exhume.attacks.gradient.chains import chain_of
from exhume.attacks.margin.descent import RowSpan, span_of
from exhume.core.contract import Architecture, ExhumeError, Knowledge, NotApplicable
from exhume.models.cnn import CNN
from exhume.models.heads import Head, check_head
from exhume.models.matrices import DenseNetwork, Matrices
from exhume.models.mlp import MLP, HomogeneousMLP
from exhume.store.shards import digest

GAP = 1.5  # factor between neighbouring singular values that ends the span
_CLEAR = 1.05  # times the edge of a floor: above it
_CLIFF = 30.0  # factor of a drop that ends the data wherever it is, if next to nothing follows
_FLOOR = 1e-4  # share of the largest singular value that is next to nothing
_LONGER = 1.7  # inputs over the first layer's norm per its bias's, whose terms cancel less
_ROUNDING = 1e-6  # share of the largest singular value below which one is rounding
_FEATURES_ROUNDING = 1e-7  # the same, of a layer that takes features
LEFT = 1e-3  # share of a layer's square that may lie outside its records' directions


@dataclass(frozen=True, eq=False)
class Reader:
    """A checked architecture and what is known besides."""

    mlp: DenseNetwork
    head: Head
    labels: Tensor | None  # (n,) of the unknown records
    centre: Tensor  # (*shape)
    _spans: dict[tuple[str, int | None], RowSpan] = field(default_factory=dict)  # of one release

    @staticmethod
    def of(knowledge: Knowledge, head: Head) -> Reader:
        mlp = dense(knowledge.architecture)
        check_head(head, mlp.outputs)
        return Reader(mlp, head, knowledge.labels, centre_of(knowledge, mlp))

    @property
    def architecture(self) -> DenseNetwork:
        return self.mlp

    def span(self, parameters: Tensor, rank: int | None) -> RowSpan:
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


def scale_of(span: RowSpan, shape: tuple[int, ...], contrast: float) -> float:
    """The norm of a start: that of an image of such contrast.

    Vectors may have any scale; the first layer and its bias show it: they are the same sum, of the inputs and
    of ones.
    """
    bias = float(span.network.bias.norm())
    if len(shape) == 3 or not bias:
        return contrast * math.sqrt(span.basis.shape[1])
    return _LONGER * float(span.network.first.norm()) / bias


def spread_of(span: RowSpan, scale: float) -> Tensor:
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


def dense(architecture: Architecture | None) -> DenseNetwork:
    """The architecture, if it is fully connected with a hidden layer."""
    if isinstance(architecture, DenseNetwork):
        one_sum = ""
        if not architecture.hidden:
            one_sum = "fc1: without a hidden layer the weights are one sum over all records, which no gate"
        elif isinstance(architecture, MLP) and architecture.activation == "identity":
            one_sum = "act1: a linear network's weights are one sum over all records, which nothing"
        if one_sum:
            raise NotApplicable(f"{one_sum} tells apart", ever=False)
        return architecture
    why = f"{type(architecture).__name__}: only fully connected networks are covered so far"
    if architecture is None:
        why = "the margin attack needs the architecture"
    elif isinstance(architecture, CNN):
        why = "conv1: shared filters have no row span of whole images; not yet covered"
    raise NotApplicable(why, ever=True)


def check_homogeneous(mlp: DenseNetwork) -> None:
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


@dataclass(frozen=True, eq=False)
class Known:
    """Any network, and what is known besides."""

    architecture: Architecture
    labels: Tensor | None  # (n,) of the unknown records
    centre: Tensor  # (*shape)

    @staticmethod
    def of(architecture: Architecture, knowledge: Knowledge) -> Known:
        return Known(architecture, knowledge.labels, centre_of(knowledge, architecture))


def centre_of(knowledge: Knowledge, architecture: Architecture) -> Tensor:
    """(*shape) what inputs lose before they enter; where nobody says it, half of their range."""
    shape = tuple(architecture.input_shape)
    centre = torch.full(shape, 0.5) if knowledge.centre is None else knowledge.centre
    if tuple(centre.shape) != shape:
        raise ExhumeError(f"centre: shape {tuple(centre.shape)} given, the network takes {shape}")
    return centre


@dataclass(frozen=True, eq=False)
class RowSpace:
    """Directions above the floor, and how much of each counts as outside."""

    basis: Tensor  # (q, k) orthonormal, leading first
    damped: Tensor  # (q,) 1 - sqrt(w_j); 0 for all other directions
    values: Tensor  # (min(k, outputs),) all singular values of the layer, falling

    def outside(self, vectors: Tensor) -> Tensor:
        """(m, k) vectors, each component v_j times sqrt(w_j)."""
        return torch.addmm(vectors, (vectors @ self.basis.T) * self.damped, self.basis, alpha=-1)


def row_space(matrix: Tensor, directions: int | Callable[[Tensor], int], name: str) -> RowSpace:
    """Read a layer (outputs, inputs); refuses one with too much outside its directions: its start.

    directions: how many, or how many by its singular values.
    """
    _, values, rows = torch.linalg.svd(matrix.double(), full_matrices=False)
    count = directions if isinstance(directions, int) else directions(values)
    left = float(values[count:].square().sum() / values.square().sum())
    if count >= len(values) or left > LEFT:
        raise NotApplicable(
            f"{name}: {left:.1%} of its square lies outside {count} directions, so it keeps its random "
            "start, which weight decay would have removed",
            ever=False,
        )
    tail = len(values) // 2 > count  # then the median is noise: the start's, or rounding
    aspect = min(matrix.shape) / max(matrix.shape)
    floor = noise_edge(values, aspect) if tail else float(values[count])
    kept = int((values > floor).sum())
    damped = 1 - floor / (values[:kept].square() + floor**2).sqrt()
    return RowSpace(rows[:kept].to(matrix), damped.to(matrix), values)


def without(vectors: Tensor, rows: Tensor) -> Tensor:
    """(m, k) less its part in the span of orthonormal rows."""
    return torch.addmm(vectors, vectors @ rows.T, rows, alpha=-1)


def orthonormal(rows: Tensor) -> Tensor:
    """(r, k) to rows of the same span."""
    basis: Tensor = torch.linalg.qr(rows.double().T)[0].T.to(rows)
    return basis


@dataclass(frozen=True)
class Premises:
    """What one release shows of its training records, without an attack."""

    records: int  # by the first layer's spectrum: its rank, and one more for the mean
    fall: float  # from the last singular value of the records to the next; infinite: what follows is rounding
    whole: bool  # the spectrum has no end: every direction of the first layer counts
    left_first: float  # share of the first layer's square outside the records' directions
    left_second: float | None  # of the second layer's, outside `directions`; None: one hidden layer
    directions: int  # of the second layer that belong to the records
    unknowns: int  # of each record
    neurons: int  # of the first layer

    @property
    def equations(self) -> int:
        """For each record, where hidden activations span the second layer."""
        return self.neurons - self.directions

    @property
    def spans(self) -> bool:
        """Whether the second layer has lost its start, so that hidden activations span it."""
        left = self.left_second
        return left is not None and left <= LEFT and self.equations >= self.unknowns


def premises_of(network: Matrices, widen: float) -> Premises:
    """widen: directions of the second layer per training record, as `HiddenSpan` takes them."""
    neurons, inputs = network.first.shape
    values = torch.linalg.svdvals(network.first.double())
    short, long = sorted((neurons, inputs))
    rank = rank_of(values, aspect=short / long)
    directions = round(widen * (rank + 1))
    second = None
    if len(network.later) > 1:
        second = _outside(torch.linalg.svdvals(network.later[0].double()), directions)
    return Premises(
        records=rank + 1,
        fall=_fall(values, rank),
        whole=rank == len(values),
        left_first=float(values[rank:].square().sum() / values.square().sum()),
        left_second=second,
        directions=directions,
        unknowns=rank,
        neurons=neurons,
    )


@dataclass(frozen=True)
class FeaturePremises:
    """What one release with convolutions shows of its training records, without an attack."""

    layer: str  # the first fully connected one
    records: int  # by its spectrum
    fall: float  # from the last singular value of the records to the next; infinite: what follows is rounding
    left: float  # share of its square outside `directions`
    directions: int  # that belong to the records
    features: int  # that enter it
    unknowns: int  # of each record: its pixels

    @property
    def equations(self) -> int:
        return self.features - self.directions


def feature_premises(
    architecture: Architecture, parameters: Tensor, widen: float
) -> FeaturePremises:
    """widen: directions per training record, as `FeatureSpan` takes them. Refuses what it refuses."""
    name, weights = first_connected(architecture, parameters)
    values = torch.linalg.svdvals(weights.double())
    records = records_by(values)
    directions = round(widen * records)
    return FeaturePremises(
        layer=name,
        records=records,
        fall=_fall(values, records),
        left=_outside(values, directions),
        directions=directions,
        features=weights.shape[1],
        unknowns=math.prod(architecture.input_shape),
    )


def _fall(values: Tensor, rank: int) -> float:
    """From the last singular value of the records to the next; infinite: what follows is rounding."""
    behind = float(values[rank]) if rank < len(values) else 0.0
    rounding = behind <= _ROUNDING * float(values[0])
    return math.inf if rounding else float(values[rank - 1]) / behind


def _outside(values: Tensor, directions: int) -> float:
    """Share of the squares behind so many singular values."""
    squares = values.square()
    return float(squares[directions:].sum() / squares.sum())


def first_connected(architecture: Architecture, parameters: Tensor) -> tuple[str, Tensor]:
    """Name and weights of the first fully connected layer; refuses a network without convolutions."""
    chain = chain_of(architecture, parameters, lowest_alone=True)
    if chain is None:
        raise NotApplicable("no fully connected layer takes one vector a record", ever=False)
    name = chain.layers[0].name
    if chain.whole:
        raise NotApplicable(
            f"{name}: takes the record itself; HiddenSpan and FirstLayer are for such networks",
            ever=False,
        )
    return name, architecture.layout.split(parameters)[f"{name}.weight"]


def records_by(values: Tensor) -> int:
    """Where the spectrum (falling) drops most, before its middle: features drift, so it has no clear end."""
    half = values[: max(3, len(values) // 2)].clamp_min(_FEATURES_ROUNDING * float(values[0]))
    return int((half[1:-1] / half[2:]).argmax()) + 2
