"""What weights alone show of whether their records can be read off them. No attack yet, and no truth.

Three things must be so. The first layer's spectrum ends, and so tells how many records there are. Nothing is
left of the random start, so that layers are sums over records. And a record is asked for by more equations
than it has unknowns. Behind convolutions the first fully connected layer takes the first layer's place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.margin.feature_span import first_connected, records_by
from exhume.attacks.margin.reading import rank_of
from exhume.core.contract import Architecture
from exhume.models.matrices import Matrices

__all__ = ["LEFT", "FeaturePremises", "Premises", "feature_premises", "premises_of"]

LEFT = 1e-3  # share of a layer's square that may lie outside its records' directions
_ROUNDING = 1e-6  # of the largest singular value


@dataclass(frozen=True)
class Premises:
    """Of one release."""

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
    behind = float(values[rank]) if rank < len(values) else 0.0
    rounding = behind <= _ROUNDING * float(values[0])
    directions = round(widen * (rank + 1))
    second = _left(network.later[0], directions) if len(network.later) > 1 else None
    return Premises(
        records=rank + 1,
        fall=math.inf if rounding else float(values[rank - 1]) / behind,
        whole=rank == len(values),
        left_first=float(values[rank:].square().sum() / values.square().sum()),
        left_second=second,
        directions=directions,
        unknowns=rank,
        neurons=neurons,
    )


@dataclass(frozen=True)
class FeaturePremises:
    """Of one release with convolutions."""

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
    behind = float(values[records]) if records < len(values) else 0.0
    rounding = behind <= _ROUNDING * float(values[0])
    directions = round(widen * records)
    return FeaturePremises(
        layer=name,
        records=records,
        fall=math.inf if rounding else float(values[records - 1]) / behind,
        left=_outside(values, directions),
        directions=directions,
        features=weights.shape[1],
        unknowns=math.prod(architecture.input_shape),
    )


def _left(matrix: Tensor, directions: int) -> float:
    return _outside(torch.linalg.svdvals(matrix.double()), directions)


def _outside(values: Tensor, directions: int) -> float:
    """Share of the squares behind so many singular values."""
    squares = values.square()
    return float(squares[directions:].sum() / squares.sum())
