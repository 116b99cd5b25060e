"""Whether an answer proves itself: without any record to compare with, by the update alone.

1. Training on all reconstructions gives the update back (its local steps included), and the update has
   more numbers than the records have: then the records are those of the update.
2. Three neurons or more of the first layer agree on a record, though the next layer weighs them
   differently: a mixture of records would differ from neuron to neuron.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exhume.attacks.gradient.span.signs_and_norms import odd
from exhume.contract import Architecture, Gradient, Reconstruction, Records
from exhume.models.two_layer import TwoLayer
from exhume.victims.gradient import release_batches

__all__ = ["Proof", "Steps", "labels_behind", "proof_of"]

_EXPLAINED = 1e-3  # relative: rounding of fp32 states leaves 1e-5 to 1e-4
_AGREEING = 3  # neurons
_GENERIC = 1e-3  # second singular value of the next layer, over the first


@dataclass(frozen=True, eq=False)
class Proof:
    records: int  # reconstructions that are proved
    sentence: str = ""
    residual: float | None = None  # of the recomputed update, where it could be recomputed
    chosen: Tensor | None = (
        None  # (k,) bool: those that explain the whole update; no other is a record
    )
    labels: Tensor | None = None  # (c,) of the chosen


@dataclass(frozen=True)
class Steps:
    """How the client trained."""

    count: int = 1
    rate: float = 1.0


def proof_of(
    gradient: Gradient, architecture: Architecture, found: Reconstruction, steps: Steps, by: str
) -> Proof:
    """One release (1, p) of a mean loss and its candidates (1, k, *shape); `by` is the attack's id."""
    real = found.real[0]
    agreed = real & (found.confidence[0] >= _AGREEING) if by == "bias-ratio" else real
    residuals = []
    for chosen in (real, agreed):
        if bool(chosen.any()):
            tried = _explained(gradient, architecture, found, chosen, steps)
            if tried.records:
                return tried
            residuals += [] if tried.residual is None else [tried.residual]
    least = min(residuals, default=None)
    count = int(agreed.sum())
    if by == "bias-ratio" and count and _generic(gradient, architecture):
        return Proof(count, f"{_AGREEING} neurons or more agree on each of {count} records.", least)
    return Proof(0, "", least)


def _explained(
    gradient: Gradient,
    architecture: Architecture,
    found: Reconstruction,
    chosen: Tensor,
    steps: Steps,
) -> Proof:
    """Whether training on the chosen candidates (k,) gives the update back."""
    records = found.candidates[0][chosen].to(gradient.values.dtype)
    labels = None if found.labels is None else found.labels[0][chosen]
    if labels is None or int(labels.min()) < 0:
        labels = labels_behind(gradient, architecture, records)
    if labels is None:
        return Proof(0)
    batch = Records(records[None], labels[None], ())
    again, _ = release_batches(
        architecture, _start(gradient), batch, steps=steps.count, rate=steps.rate
    )
    size = gradient.values.norm().clamp_min(1e-30)
    residual = float((again.values - gradient.values).norm() / size)
    enough = architecture.layout.size > len(records) * math.prod(architecture.input_shape)
    if not residual < _EXPLAINED or not enough:
        return Proof(0, "", residual)
    sentence = (
        f"Training on {len(records)} reconstructions gives the update back up to {residual:.1e}"
    )
    sign = ", and so would the negative of each." if _sign_open(architecture) else "."
    return Proof(len(records), sentence + sign, residual, chosen, labels)


def _sign_open(architecture: Architecture) -> bool:
    if not isinstance(architecture, TwoLayer) or architecture.outputs > 2:
        return False
    return odd(architecture.sigma)


def labels_behind(gradient: Gradient, architecture: Architecture, records: Tensor) -> Tensor | None:
    """(b,) labels, given all records: dL/dW of the last layer is 1/b sum_i (p_i - y_i) h_i^T."""
    module, layout = architecture.build(), architecture.layout
    seen: list[tuple[str, Tensor]] = []  # in the order of use
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, inputs, name=name: seen.append((f"{name}.weight", inputs[0].detach()))
        )
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    outputs = functional_call(module, layout.split(_start(gradient)), (records,)).detach().double()
    for hook in hooks:
        hook.remove()
    if not seen or seen[-1][0] not in layout.names:
        return None
    name, heights = seen[-1][0], seen[-1][1].double()
    slope = layout.split(gradient.values[0])[name].double()
    if len(slope) != outputs.shape[1] or heights.ndim != 2 or heights.shape[1] < len(records):
        return None
    residuals: Tensor = (
        len(records) * torch.linalg.lstsq(heights.T, slope.T, driver="gelsd").solution
    )
    if outputs.shape[1] == 1:
        found = (torch.sigmoid(outputs) - residuals > 0.5).long()[:, 0]
    else:
        found = (torch.softmax(outputs, 1) - residuals).argmax(1)
    return found


def _generic(gradient: Gradient, architecture: Architecture) -> bool:
    """The layer after the first weighs its neurons in more than one pattern."""
    layout = architecture.layout
    if len(layout.shapes) < 3 or layout.shapes[2][1:] != layout.shapes[0][:1]:
        return False
    outer = layout.split(_start(gradient))[layout.names[2]].double()
    sizes = torch.linalg.svdvals(outer)
    return len(sizes) > 1 and float(sizes[1]) > _GENERIC * float(sizes[0])


def _start(gradient: Gradient) -> Tensor:
    return gradient.at if gradient.at.ndim == 1 else gradient.at[0]
