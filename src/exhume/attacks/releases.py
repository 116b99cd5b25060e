"""The kind of release that an attack reads; of another kind, the empty result that says why."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from exhume.core.contract import (
    Activations,
    Cost,
    ExhumeError,
    NotApplicable,
    Outcome,
    Reconstruction,
    Release,
    Status,
    Weights,
)


def weights_of(
    releases: Release, shape: tuple[int, ...], size: int, *, who: str, whose: str
) -> Weights | Reconstruction:
    """Weights of r models of `size` parameters, which is what `whose` has. shape: of a record."""
    if not isinstance(releases, Weights):
        why = NotApplicable(f"{who} reads weights, not gradients or features", ever=False)
        return Reconstruction.none(0, shape, why)
    if releases.parameters.shape[1] != size:
        given = releases.parameters.shape[1]
        raise ExhumeError(f"release: {given} parameters, {whose} {size}")
    return releases


def features_of(
    releases: Release, shape: tuple[int, ...], features: tuple[int, ...], wanted: str
) -> Tensor | Reconstruction:
    """(n, *features) what a client has sent; `wanted` ends the complaint about another shape."""
    if not isinstance(releases, Activations):
        why = NotApplicable("this attack reads features, not weights or gradients", ever=False)
        return Reconstruction.none(0, shape, why)
    given = tuple(releases.values.shape[1:])
    if given != features:
        raise ExhumeError(f"release: features of shape {given}, {wanted}")
    return releases.values


Answer = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
"""(n, k, *shape) candidates, (n, k) confidence, and perhaps (n, k) labels."""


@dataclass(frozen=True, eq=False)
class EachSent:
    """An attack ready to run on whatever one client sends."""

    shape: tuple[int, ...]  # of a record
    features: tuple[int, ...]  # of what is sent for it
    wanted: str  # ends the complaint about features of another shape
    answer: Callable[[Tensor], Answer]  # to (n, *features)
    cost: Cost = field(default_factory=Cost)  # of what was prepared
    observed: dict[str, float] = field(default_factory=dict)

    def run(self, releases: Release) -> Reconstruction:
        values = features_of(releases, self.shape, self.features, self.wanted)
        if isinstance(values, Reconstruction):
            return values
        started = time.perf_counter()
        candidates, confidence, *labels = self.answer(values)
        return Reconstruction(
            candidates,
            confidence,
            Status(Outcome.CONVERGED),
            replace(self.cost, seconds=self.cost.seconds + time.perf_counter() - started),
            labels[0] if labels else None,
            observed=self.observed,
        )
