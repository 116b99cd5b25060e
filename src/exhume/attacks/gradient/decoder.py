"""Records behind the features that enter the last two layers, where the layers below are known.

    min_x || phi(x) - h ||^2,   phi the layers below at the queried parameters

by Gauss-Newton with Levenberg damping, one record at a time under vmap. Exact where phi is one to one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from exhume.core.contract import Key
from exhume.models.activations import activation
from exhume.models.mlp import MLP

__all__ = ["decode", "features_below"]

_STEPS = 60


def features_below(architecture: MLP, parameters: Tensor, records: Tensor) -> Tensor:
    """(n, *shape) to (n, k): what enters the last two layers."""
    return _Below(architecture, parameters).features(records)


class _Below:
    """The layers below the last two, built once."""

    def __init__(self, architecture: MLP, parameters: Tensor) -> None:
        below = MLP(
            architecture.input_shape,
            architecture.hidden[:-2],
            architecture.hidden[-2],
            architecture.activation,
        )
        named = architecture.layout.split(parameters)
        self.known = {name: named[name] for name in below.layout.names}
        self.module, self.sigma = below.build(), activation(architecture.activation)

    def features(self, records: Tensor) -> Tensor:
        before: Tensor = functional_call(self.module, self.known, (records,))
        return self.sigma.apply(before)


def decode(architecture: MLP, parameters: Tensor, features: Tensor, key: Key) -> Tensor:
    """(n, k) features to (n, *shape) records, from noise in [0, 1]; fp64."""
    parameters, features = parameters.double(), features.double()
    shape = architecture.input_shape
    generator = key.generator()
    start = torch.rand(len(features), *shape, generator=generator, dtype=torch.float64).flatten(1)

    below = _Below(architecture, parameters)

    def gap(flat: Tensor, wanted: Tensor) -> Tensor:
        return below.features(flat.reshape(1, *shape))[0] - wanted

    records, damping = start, torch.full((len(features),), 1e-2, dtype=torch.float64)
    left = vmap(gap)(records, features)
    for _ in range(_STEPS):
        slope = vmap(jacrev(gap))(records, features)  # (n, k, d)
        normal = slope.transpose(1, 2) @ slope
        ridge = damping[:, None] * normal.diagonal(dim1=1, dim2=2).mean(1, keepdim=True)
        normal = normal + torch.diag_embed(ridge.expand(-1, normal.shape[1]).clamp_min(1e-12))
        move = torch.linalg.solve(normal, (slope.transpose(1, 2) @ left[:, :, None]))[:, :, 0]
        trial = records - move
        there = vmap(gap)(trial, features)
        better = there.norm(dim=1) < left.norm(dim=1)
        records = torch.where(better[:, None], trial, records)
        left = torch.where(better[:, None], there, left)
        damping = torch.where(better, damping / 4, damping * 4).clamp(1e-12, 1e6)
        if float(left.norm(dim=1).max()) <= 1e-12:
            break
    return records.reshape(-1, *shape)
