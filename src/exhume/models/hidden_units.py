"""Hidden units of a fully connected network, put in the order and to the size that a reference has them in.

A network says the same whatever the order of its hidden units, and a unit behind which z -> max(0, z) or
another positively homogeneous function stands says the same at any scale c > 0:

    (w_in, b, w_out)  ->  (c w_in, c b, w_out / c)

Parameters that differ in nothing else are brought to the same numbers: each unit is matched with one of the
reference's by the direction of (w_in, b), and c makes |(w_in, b)| what it is there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from exhume.models.mlp import MLP

_HOMOGENEOUS = ("relu", "leaky-relu", "identity")


@dataclass(frozen=True, eq=False)
class HiddenUnits:
    mlp: MLP
    reference: Tensor  # (p,)

    @property
    def scaled(self) -> bool:
        """Whether a unit's scale says nothing."""
        return self.mlp.activation in _HOMOGENEOUS

    def aligned(self, parameters: Tensor) -> Tensor:
        """(s, p) to the same networks (s, p), unit by unit like the reference."""
        layers, wanted = self._layers(parameters), self._layers(self.reference[None])
        for place in range(len(layers) - 1):
            (weight, bias), (later, later_bias) = layers[place], layers[place + 1]
            rows = torch.cat([weight, bias[..., None]], 2)
            own = torch.cat([wanted[place][0], wanted[place][1][..., None]], 2)
            order = _matched(rows, own[0])
            rows = rows.gather(1, order[..., None].expand_as(rows))
            later = later.gather(2, order[:, None].expand_as(later))
            if self.scaled:
                scale = own.norm(dim=2) / rows.norm(dim=2).clamp_min(_NOTHING)
                scale = torch.where(scale > 0, scale.clamp(max=1 / _NOTHING), 1.0)
                rows, later = rows * scale[..., None], later / scale[:, None]
            layers[place] = (rows[..., :-1], rows[..., -1])
            layers[place + 1] = (later, later_bias)
        return torch.cat([part.flatten(1) for layer in layers for part in layer], 1)

    def _layers(self, parameters: Tensor) -> list[tuple[Tensor, Tensor]]:
        """(s, k, d) weights and (s, k) biases, from first to last."""
        parts = list(self.mlp.layout.split(parameters).values())
        return list(zip(parts[::2], parts[1::2], strict=True))


_NOTHING = 1e-12


def _matched(rows: Tensor, reference: Tensor) -> Tensor:
    """(s, k, d) to the unit (s, k) in the place of each of the reference's (k, d)."""
    units, own = F.normalize(rows, dim=2), F.normalize(reference, dim=1)
    every = torch.arange(len(own), device=rows.device)
    order = every.expand(len(rows), -1).clone()
    for model, unit in enumerate(units):
        alike = own @ unit.T
        if not torch.equal(alike.argmax(1), every):
            order[model] = torch.tensor(linear_sum_assignment(-alike.cpu().double())[1])
    return order
