"""What justifies the threshold of similarity: pairs on both sides of it, and SSIM against margin.

Buzaglo23's App. A shows pairs around SSIM 0.4 and lets the reader judge; Fig. 1 plots SSIM against the
distance of a training image from the margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup
from torch import Tensor

from exhume.report.axes import (
    BOTTOM,
    LEFT,
    NOTHING,
    RIGHT,
    TOP,
    LinearAxis,
    dots,
    finite_pairs,
    legend,
    svg,
    x_axis,
    y_axis,
)
from exhume.report.figures import img
from exhume.score.margin import GOOD

__all__ = ["Pair", "Side", "sides_of_threshold", "ssim_against_margin"]

_EACH = 8  # pairs on a side


@dataclass(frozen=True)
class Pair:
    ssim: float
    truth: Markup
    found: Markup


@dataclass(frozen=True)
class Side:
    """Pairs of one kind, in falling order of SSIM."""

    title: str
    pairs: tuple[Pair, ...]


def sides_of_threshold(evidence: dict[str, Tensor]) -> list[Side]:
    """Training images just above and just below the threshold, and the decoys that came nearest to it."""
    if not {"targets", "reconstructions", "ssim"} <= set(evidence):
        return []
    if evidence["targets"].ndim != 4:
        return []
    ssim = evidence["ssim"]
    order = [i for i in ssim.argsort(descending=True).tolist() if math.isfinite(float(ssim[i]))]
    above = [i for i in order if float(ssim[i]) > GOOD][-_EACH:]
    below = [i for i in order if float(ssim[i]) <= GOOD][:_EACH]
    sides = [
        Side(f"Just above {GOOD:g}: counted as brought back", _pairs(evidence, "", above)),
        Side(f"Just below {GOOD:g}: not counted", _pairs(evidence, "", below)),
    ]
    if {"decoy_targets", "decoy_reconstructions", "decoy_ssim"} <= set(evidence):
        lucky = evidence["decoy_ssim"].argsort(descending=True).tolist()[:_EACH]
        title = "The luckiest decoys: images that were not trained on"
        sides.append(Side(title, _pairs(evidence, "decoy_", lucky)))
    return [side for side in sides if side.pairs]


def _pairs(evidence: dict[str, Tensor], of: str, chosen: list[int]) -> tuple[Pair, ...]:
    """of: how the tensors' names begin."""
    images, back = evidence[f"{of}targets"], evidence[f"{of}reconstructions"]
    ssim = evidence[f"{of}ssim"]
    return tuple(
        Pair(
            float(ssim[i]),
            img(images[i], f"Image of a pair with SSIM {float(ssim[i]):.2f}"),
            img(back[i], "Its best match among the reconstructions"),
        )
        for i in chosen
    )


def ssim_against_margin(evidence: dict[str, Tensor]) -> Markup:
    """A point per training image; the threshold as a line. Margins are over the smallest positive one."""
    if not {"margins", "ssim"} <= set(evidence):
        return Markup("")
    margins, ssim = evidence["margins"].double(), evidence["ssim"].double()
    positive = margins[margins > 0]
    unit = float(positive.min()) if len(positive) else 1.0
    pairs = finite_pairs((margins / unit).tolist(), ssim.tolist())
    if not pairs:
        return NOTHING
    across = LinearAxis.around([a for a, _ in pairs], LEFT, RIGHT)
    up = LinearAxis.around([*(b for _, b in pairs), GOOD, 0.0, 1.0], BOTTOM, TOP)
    good = sum(b > GOOD for _, b in pairs)
    marks = [
        x_axis(across, "margin of the training image, over the smallest"),
        y_axis(up, "SSIM of its best match"),
        Markup('<path class="diagonal" d="M{} {:.1f}H{}"/>').format(LEFT, up.place(GOOD), RIGHT),
        dots([p for p in pairs if p[1] <= GOOD], across, up, "s1"),
        dots([p for p in pairs if p[1] > GOOD], across, up, "s0"),
    ]
    label = f"SSIM against margin. {good} of {len(pairs)} training images lie above {GOOD:g}."
    below = ("dot s1", f"at most {GOOD:g}", len(pairs) - good)
    return svg(marks, label) + legend([("dot s0", f"above {GOOD:g}", good), below])
