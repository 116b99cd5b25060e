"""What every attack on weights is given besides them: the network, a centre, perhaps labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from exhume.core.contract import (
    Architecture,
    ExhumeError,
    Knowledge,
    NotApplicable,
    Release,
    Weights,
)

__all__ = ["Background", "Known", "centre_of", "weights_of"]


@runtime_checkable
class Background(Protocol):
    """What restarts ask for."""

    @property
    def architecture(self) -> Architecture: ...
    @property
    def labels(self) -> Tensor | None: ...
    @property
    def centre(self) -> Tensor: ...


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


def weights_of(releases: Release) -> Tensor:
    """(r, p)."""
    if not isinstance(releases, Weights):
        raise NotApplicable(
            "the margin attack reads trained weights, not gradients or features", ever=False
        )
    return releases.parameters
