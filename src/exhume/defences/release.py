"""What a client can do to an update before it leaves: noise, clipping, quantising, pruning.

Each is a `ReleaseDefence` on a `Gradient`, applied to every release of it alike. (DP-SGD, local steps and
larger batches change how the update is made: see `defences.dp` and `defences.local`.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Gradient, Key, Layout, NotApplicable, Release


def gradient_of(release: Release) -> Gradient:
    """Refuses what is no gradient."""
    if not isinstance(release, Gradient):
        raise NotApplicable(
            f"release: this defence protects gradients, not {type(release).__name__}", ever=False
        )
    return release


@dataclass(frozen=True)
class NoiseRelease:
    """Add Gaussian noise.

    Sees: the update.
    Assumes: nothing.
    Guarantees: none by itself; after `ClipRelease` it is the Gaussian mechanism for the whole batch.
    Reference: Zhu et al. 2019; Wang23 says that it does not help.
    """

    strength: float = (
        0.0  # deviation of the noise, over the root mean square of what it is added to
    )
    layers: tuple[str, ...] = ()  # that get noise, such as "fc2"; none named: the whole update

    def __post_init__(self) -> None:
        _not_negative(self.strength)

    def protect(self, release: Release, key: Key) -> Gradient:
        seen = gradient_of(release)
        if not self.strength:
            return seen
        covered = self._covered(seen.layout)
        values = seen.values.clone()
        for i, row in enumerate(values):
            row[covered] = self._one(row[covered], key.fold("noise", i))
        return replace(seen, values=values)

    def _covered(self, layout: Layout) -> slice | Tensor:
        """The places of a row that get noise."""
        if not self.layers:
            return slice(None)
        owners = [name.rpartition(".")[0] for name in layout.names]
        if unknown := set(self.layers) - set(owners):
            raise ExhumeError(
                f"layers: {', '.join(sorted(unknown))} not in this update; it has "
                f"{', '.join(dict.fromkeys(owners))}"
            )
        chosen = [owner in self.layers for owner in owners]
        sizes = [prod(shape) for shape in layout.shapes]
        return torch.repeat_interleave(torch.tensor(chosen), torch.tensor(sizes))

    def _one(self, row: Tensor, key: Key) -> Tensor:
        noise = torch.randn(row.shape, generator=key.generator(), dtype=row.dtype)
        return row + self.strength * row.square().mean().sqrt() * noise


@dataclass(frozen=True)
class ClipRelease:
    """Scale the update down to a norm.

    Sees: the update.
    Assumes: nothing.
    Guarantees: a bounded norm; the direction, and with it all that scale does not hide, is kept.
    Reference: Abadi et al. 2016, for the whole batch instead of each record.
    """

    strength: float = 0.0  # 1 / largest norm; 0: any

    def __post_init__(self) -> None:
        _not_negative(self.strength)

    def protect(self, release: Release, key: Key) -> Gradient:
        seen = gradient_of(release)
        factors = (1 / (self.strength * seen.values.norm(dim=1)).clamp_min(1e-300)).clamp(max=1)
        return replace(seen, values=seen.values * factors[:, None]) if self.strength else seen


@dataclass(frozen=True)
class QuantiseRelease:
    """Round every value to the nearest of 2^bits - 1 levels within ± its tensor's largest; 1 bit: the sign.

    Sees: the update and its layout: each tensor has levels of its own.
    Assumes: nothing.
    Guarantees: none.
    Reference: Alistarh et al. 2017 (rounding to nearest here); Bernstein et al. 2018 for the sign.
    """

    bits: int = 32  # 32 or more: not at all

    def __post_init__(self) -> None:
        if self.bits < 1:
            raise ExhumeError(f"bits: must be at least 1, got {self.bits}")

    @property
    def strength(self) -> float:
        return max(32 - self.bits, 0) / 31

    def protect(self, release: Release, key: Key) -> Gradient:
        seen = gradient_of(release)
        return _by_tensor(seen, self._one) if self.strength else seen

    def _one(self, part: Tensor) -> Tensor:
        flat = part.flatten(1)
        if self.bits == 1:
            return (flat.sign() * flat.abs().mean(1, keepdim=True)).reshape(part.shape)
        steps = 2 ** (self.bits - 1) - 1  # on either side of zero
        top: Tensor = flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(part.dtype).tiny)
        rounded: Tensor = torch.round(flat / top * steps) / steps * top
        return rounded.reshape(part.shape)


@dataclass(frozen=True)
class PruneRelease:
    """Set the smallest values of every tensor to zero.

    Sees: the update and its layout.
    Assumes: nothing.
    Guarantees: none.
    Reference: Zhu et al. 2019; Aji and Heafield 2017 (top-k).
    """

    strength: float = 0.0  # share of the values that become zero, below 1

    def __post_init__(self) -> None:
        if not 0 <= self.strength < 1:
            raise ExhumeError(f"strength: must lie in [0, 1), got {self.strength}")

    def protect(self, release: Release, key: Key) -> Gradient:
        seen = gradient_of(release)
        return _by_tensor(seen, self._one) if self.strength else seen

    def _one(self, part: Tensor) -> Tensor:
        flat = part.flatten(1)
        dropped = int(self.strength * flat.shape[1])
        if not dropped:
            return part
        bar: Tensor = flat.abs().kthvalue(dropped, dim=1, keepdim=True).values
        return flat.masked_fill(flat.abs() <= bar, 0).reshape(part.shape)


def _not_negative(strength: float) -> None:
    if not strength >= 0:
        raise ExhumeError(f"strength: must be at least 0, got {strength}")


def _by_tensor(seen: Gradient, one: Callable[[Tensor], Tensor]) -> Gradient:
    """Every tensor of the layout, (r, *shape), replaced by another."""
    parts = {name: one(part) for name, part in seen.layout.split(seen.values).items()}
    return replace(seen, values=seen.layout.join(parts))
