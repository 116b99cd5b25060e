"""An adversary who suspects that the victim trained on noisy records: every candidate is also tried smoothed.

White noise sits in the high frequencies, images in the low ones, so a blur brings back what noise hid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.pool import stretched
from exhume.core.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Prepared,
    Progress,
    Reconstruction,
    Release,
    Store,
    silent,
)

__all__ = ["Smoothed", "smooth"]


@dataclass(frozen=True)
class Smoothed:
    """The first-layer attack, its candidates beside blurred copies of themselves.

    Sees: `Weights`, r networks, each trained on its own unknown records.
    Assumes: what `FirstLayer` assumes, and images.
    Guarantees: nothing about the truth is used. The candidates of `FirstLayer` are all there.
    Reference: ours, against defences that train on noisy records.
    """

    attack: FirstLayer = FirstLayer()
    width: float = 1.0  # of the Gaussian, in pixels

    def __post_init__(self) -> None:
        if not self.width > 0:
            raise ExhumeError(f"width: must be above 0, got {self.width}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedSmoothed:
        prepared = self.attack.prepare(knowledge, key=key, store=store, progress=progress)
        if len(prepared.reader.architecture.input_shape) != 3:
            raise NotApplicable(
                f"input: records of shape {prepared.reader.architecture.input_shape} cannot be smoothed; "
                "images can",
                ever=False,
            )
        return PreparedSmoothed(prepared, self.width)


@dataclass(frozen=True, eq=False)
class PreparedSmoothed:
    prepared: Prepared
    width: float

    def run(self, releases: Release) -> Reconstruction:
        found = self.prepared.run(releases)
        if found.status.outcome is Outcome.NOT_APPLICABLE:
            return found
        soft = torch.stack([smooth(images, self.width) for images in found.candidates])
        confidence = torch.cat([found.confidence, found.confidence], 1)
        order = confidence.argsort(dim=1, descending=True, stable=True)
        labels = found.labels
        if labels is not None:
            labels = torch.cat([labels, labels], 1).gather(1, order)
        both = torch.cat([found.candidates, soft], 1)
        rows = torch.arange(len(both))[:, None]
        return replace(
            found,
            candidates=both[rows, order],
            confidence=confidence.gather(1, order),
            labels=labels,
        )


def smooth(images: Tensor, width: float) -> Tensor:
    """(k, c, h, w) blurred by a Gaussian and stretched to [0, 1] again."""
    channels = images.shape[1]
    reach = min(max(1, round(3 * width)), images.shape[-1] - 1, images.shape[-2] - 1)
    at = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    line = torch.exp(-0.5 * (at / width) ** 2)
    line = (line / line.sum()).expand(channels, 1, 1, -1)
    padded = F.pad(images, (reach, reach, reach, reach), mode="reflect")
    across = F.conv2d(padded, line, groups=channels)
    return stretched(F.conv2d(across, line.transpose(2, 3), groups=channels))
