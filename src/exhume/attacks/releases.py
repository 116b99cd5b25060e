"""The kind of release that an attack reads; of another kind, the empty result that says why."""

from __future__ import annotations

from torch import Tensor

from exhume.core.contract import (
    Activations,
    ExhumeError,
    NotApplicable,
    Reconstruction,
    Release,
    Weights,
)

__all__ = ["features_of", "weights_of"]


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
