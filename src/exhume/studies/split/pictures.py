"""Pictures of a study of split networks: one card for each row, sixteen inputs beside what came back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.report.folder import RunFolder
from exhume.score.features import InputScores

__all__ = ["mosaic", "picture_section"]

_ACROSS = 4
_SHOWN = _ACROSS**2


def picture_section(
    folder: RunFolder, name: str, rows: Mapping[str, InputScores], classes: list[str]
) -> dict[str, Any]:
    """A section of the page; the rows' names are added to the classes, as the cards' labels."""
    labels = torch.arange(len(rows)) + len(classes)
    classes += rows
    evidence = {
        "targets": torch.stack([mosaic(scores.targets) for scores in rows.values()]),
        "reconstructions": torch.stack([mosaic(s.reconstructions) for s in rows.values()]),
        "mse": torch.stack([scores.each["mse"].mean() for scores in rows.values()]),
        "labels": labels,
    }
    file = f"{name.lower().replace(' ', '-')}.safetensors"
    folder.write_tensors(file, evidence)
    return {
        "name": name,
        "paper": "Ensembler24",
        "sees": "what the client sends",
        "evidence": file,
        "notes": [
            "Every card is one row of the result, under its label: sixteen inputs, and what came back."
        ],
    }


def mosaic(images: Tensor) -> Tensor:
    """(n, c, h, w): the first sixteen as one image, four in a row, with a pixel between; black if fewer."""
    shown = images[:_SHOWN].float()
    shown = F.pad(shown, [0, 1, 0, 1, 0, 0, 0, _SHOWN - len(shown)])
    _, c, h, w = shown.shape
    rows = shown.reshape(_ACROSS, _ACROSS, c, h, w).permute(2, 0, 3, 1, 4)
    return rows.reshape(c, _ACROSS * h, _ACROSS * w).contiguous()
