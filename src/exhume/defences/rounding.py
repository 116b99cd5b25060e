"""Releasing weights in fewer bits: half precision, bfloat16, or eight-bit integers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.core.contract import (
    Architecture,
    ExhumeError,
    Key,
    Layout,
    NotApplicable,
    Recipe,
    Records,
    Release,
    Weights,
)

FORMATS = {"fp32": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8, "int8": 2.0**-7}
"""Names, and the largest relative error of each; of int8 relative to a tensor's largest value."""


@dataclass(frozen=True)
class Rounding:
    """Round every released weight to a format with fewer bits.

    Sees: the release; nothing of the records.
    Assumes: nothing.
    Guarantees: nothing formal. Differences between models that are smaller than the rounding step are
    gone; larger ones stay. `harden` is the same for the recipe, which an adversary who knows of the
    rounding trains its shadow models with.
    Reference: ours; int8 is symmetric, one scale per tensor.
    """

    format: str = "fp32"  # one of FORMATS

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ExhumeError(f"format: {self.format!r} is not one of {', '.join(FORMATS)}")

    @property
    def strength(self) -> float:
        return FORMATS[self.format]

    def protect(self, release: Release, key: Key) -> Release:
        if not self.strength:
            return release
        if not isinstance(release, Weights):
            raise NotApplicable(
                f"rounding is there for weights, not yet for {type(release).__name__.lower()}",
                ever=True,
            )
        return replace(
            release, parameters=_rounded(release.parameters, release.layout, self.format)
        )

    def harden(self, recipe: Recipe) -> Recipe:
        return RoundedRecipe(recipe, self.format) if self.strength else recipe


@dataclass(frozen=True)
class RoundedRecipe:
    """Training as before; the trained weights are rounded."""

    trained_by: Recipe
    format: str

    @property
    def architecture(self) -> Architecture:
        return self.trained_by.architecture

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        return self.finished(self.trained_by.fit(initial, fixed, extra, key, first))

    def finished(self, parameters: Tensor) -> Tensor:
        return _rounded(parameters, self.architecture.layout, self.format)

    def __str__(self) -> str:
        return f"{self.trained_by}, rounded to {self.format}"


def _rounded(parameters: Tensor, layout: Layout, name: str) -> Tensor:
    """(r, p) to (r, p) of the same type, with values that the format can hold."""
    if name == "fp16":
        return parameters.to(torch.float16).to(parameters.dtype)
    if name == "bf16":
        return parameters.to(torch.bfloat16).to(parameters.dtype)
    parts = layout.split(parameters)
    return layout.join({part: _integers(values) for part, values in parts.items()})


def _integers(values: Tensor) -> Tensor:
    """(r, *shape): multiples of a 127th of each model's largest value."""
    largest = values.abs().flatten(1).amax(1).clamp_min(torch.finfo(values.dtype).tiny)
    step = (largest / 127).reshape(-1, *[1] * (values.ndim - 1))
    return (values / step).round() * step
