"""What batch norm saw of a client's batch, read off the running statistics that it sends back.

after = (1 - m) before + m seen,      m the momentum, of one step
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["batch_statistics"]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def batch_statistics(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], module: nn.Module
) -> dict[str, Tensor]:
    """`layer.mean` and `layer.var` to (c,), of layers whose statistics one step has moved; else nothing."""
    found: dict[str, Tensor] = {}
    for name, layer in module.named_modules():
        if not isinstance(layer, _NORMS) or layer.running_mean is None:
            continue
        share = _share(name, layer, before, after)
        for kind in ("mean", "var"):
            buffer = f"{name}.running_{kind}"
            if share is None or buffer not in before or buffer not in after:
                continue
            old, new = before[buffer].double(), after[buffer].double()
            if not torch.equal(old, new):
                found[f"{name}.{kind}"] = ((new - (1 - share) * old) / share).float()
    return found


def _share(
    name: str, layer: _Norm, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> float | None:
    """Of the batch in the new statistics; None: there were several steps, or nobody knows."""
    counter = f"{name}.num_batches_tracked"
    if counter in before and counter in after and int(after[counter] - before[counter]) != 1:
        return None
    momentum = layer.momentum
    if momentum is None:  # a plain average over all batches
        return 1 / int(after[counter]) if counter in after and int(after[counter]) else None
    return float(momentum)
