"""Which label did the unknown record have? Read off the released weights.

A linear reading of the last layer's change is right about 9 times in 10; the map from change to label
is quadratic rather than linear (the sign of the change depends on what the model already believed),
and a Gaussian kernel on the same few numbers is right about 99 times in 100. The size of the change depends
on how surprising the record was, its direction on what the record is: only directions are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.informed.ridge import Ridge, fit_ridge, gaussian_kernel
from exhume.core.contract import Layout

__all__ = ["MOST_ANCHORS", "LabelReader", "read_labels"]

MOST_ANCHORS = 4000  # an eigendecomposition of this size takes seconds; more shadows add little
_WIDTHS = (1.0, 3.0, 10.0)  # of the kernel, times the median squared distance


@dataclass(frozen=True, eq=False)
class LabelReader:
    """Fitted on shadows, where the labels are known to the adversary."""

    base: Tensor  # (p,)
    layout: Layout
    centre: Tensor  # (f,)
    scale: Tensor  # (f,)
    anchors: Tensor  # (a, f)
    width: float
    ridge: Ridge
    rows: Tensor  # (a,) the shadows that are anchors
    held_out_accuracy: float  # leave-one-out, over the shadows

    def scores(self, parameters: Tensor) -> Tensor:
        """(r, p) to (r, c): about 1 for the label, about 0 elsewhere."""
        found = _decision_features(parameters, self.base, self.layout)
        cross = gaussian_kernel((found - self.centre) / self.scale, self.anchors, self.width)
        return self.ridge.predict(cross)

    def held_out_scores(self) -> Tensor:
        """(a, c): the same for the anchors, each left out."""
        return self.ridge.held_out


def read_labels(
    parameters: Tensor, labels: Tensor, base: Tensor, layout: Layout, classes: int
) -> LabelReader:
    """parameters: (s, p) shadows; labels: (s,) of their targets."""
    keep = torch.linspace(0, len(labels) - 1, min(len(labels), MOST_ANCHORS)).long()
    labels = labels[keep]
    found = _decision_features(parameters, base, layout, keep)
    centre, scale = found.mean(0), found.std(0).clamp_min(1e-12)
    anchors = (found - centre) / scale
    onehot = F.one_hot(labels, classes).double()
    sample = anchors[:: max(1, len(anchors) // 500)]
    typical = float(torch.pdist(sample).square().median()) if len(sample) > 1 else 1.0
    best: LabelReader | None = None
    for factor in _WIDTHS:
        width = factor * max(typical, 1e-12)
        kernel = gaussian_kernel(anchors, anchors, width)
        ridge = fit_ridge(
            kernel, onehot, lambda held_out: float((held_out - onehot).square().mean())
        )
        accuracy = float((ridge.held_out.argmax(1) == labels).double().mean())
        if best is None or accuracy > best.held_out_accuracy:
            best = LabelReader(base, layout, centre, scale, anchors, width, ridge, keep, accuracy)
    assert best is not None  # _WIDTHS is not empty
    return best


def _decision_features(
    parameters: Tensor, base: Tensor, layout: Layout, rows: Tensor | slice = slice(None)
) -> Tensor:
    """(s, f): the direction of the change of the last layer and of every bias, of these rows.

    The gradient of the last bias is softmax minus the label's one-hot vector, so this is where the
    label is written; the first layer's weights, where the record itself is, are left out.
    """
    parts, known = layout.split(parameters), layout.split(base)
    matrices = [
        name for name, shape in zip(layout.names, layout.shapes, strict=True) if len(shape) > 1
    ]
    chosen = [
        (part[rows] - known[name]).double().reshape(len(part[rows]), -1)
        for (name, part), shape in zip(parts.items(), layout.shapes, strict=True)
        if name in matrices[-1:] or len(shape) <= 1
    ]
    return F.normalize(torch.cat(chosen, dim=1), dim=1)
