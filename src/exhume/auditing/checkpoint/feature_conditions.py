"""Whether images can be read off the first fully connected layer behind convolutions: as `conditions.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.attacks.gradient.chains import features_of
from exhume.attacks.margin.reading import LEFT, FeaturePremises
from exhume.auditing.checkpoint.conditions import (
    EQUATIONS,
    START_GONE,
    counted,
    of_the_owner,
    share_of,
)
from exhume.auditing.checkpoint.fit import Fit, fit_to
from exhume.core.contract import Records
from exhume.core.evidence import Condition
from exhume.models.heads import Head
from exhume.models.own import Convolved

__all__ = ["feature_conditions", "feature_fit"]

_ROUNDING = 1e-6  # share of the largest singular value


def feature_conditions(premises: FeaturePremises, fit: Fit | None) -> tuple[Condition, ...]:
    """In the order in which they are read; fit: None without training records."""
    layer = premises.layer
    read = (counted(layer, premises.records, premises.fall, fit), *_read(premises))
    return read if fit is None else (*read, *of_the_owner(fit, layer))


def feature_fit(
    network: Convolved, parameters: Tensor, layer: str, records: Records, head: Head
) -> Fit:
    """records: as they enter; unexplained: the layer's square outside the span of their features."""
    module, named = network.build(), network.layout.split(parameters)
    inputs = records.inputs.to(parameters)
    with torch.no_grad():
        outputs = torch.func.functional_call(module, named, (inputs,))
        features = features_of(module, named, layer, inputs).double()

    def outside() -> float:
        weights = named[f"{layer}.weight"].double()
        axes = torch.linalg.svd(features, full_matrices=False)
        basis = axes.Vh[_ROUNDING * axes.S[0] < axes.S]
        inside = (weights @ basis.T).square().sum()
        return float(1 - inside / weights.square().sum())

    return fit_to(outputs, records.labels, head, outside)


def _read(premises: FeaturePremises) -> tuple[Condition, Condition]:
    layer, left = premises.layer, premises.left
    gone, have, want = left <= LEFT, premises.equations, premises.unknowns
    start = Condition(
        START_GONE,
        f"{share_of(left)} of {layer} lies outside what the records span, at most {LEFT:.1%}",
        holds=gone,
        why=""
        if gone
        else f"{layer} keeps its random start ({share_of(left)} of it), and only training with weight decay "
        "until that is gone makes its weights a sum over the records",
    )
    found = f"{have:,} equations for the {want:,} pixels of each record"
    enough = Condition(
        EQUATIONS,
        found,
        holds=have > want,
        why="" if have > want else f"the convolutions leave too few features: {found}",
    )
    return start, enough
