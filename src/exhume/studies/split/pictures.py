"""The gallery of split networks: one card for each row, sixteen inputs beside what came back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.core.contract import Outcome, Status
from exhume.core.results import AttackSpec, Findings, Section
from exhume.studies.split.game import Row

__all__ = ["mosaic", "pictured"]

_ACROSS = 4
_SHOWN = _ACROSS**2
_NOTE = "Every card is one row of the result, under its label: sixteen inputs, and what came back."


def pictured(sections: Mapping[str, Mapping[str, Row]]) -> tuple[list[Findings], list[str]]:
    """Sections of the page by name, and the names of all rows: the cards' labels."""
    found, names = list[Findings](), list[str]()
    for name, rows in sections.items():
        scores = [row.scores for row in rows.values()]
        evidence = {
            "targets": torch.stack([mosaic(s.targets) for s in scores]),
            "reconstructions": torch.stack([mosaic(s.reconstructions) for s in scores]),
            "mse": torch.stack([s.each["mse"].mean() for s in scores]),
            "labels": torch.arange(len(rows)) + len(names),
        }
        names += rows
        slug = name.lower().replace(" ", "-")
        spec = AttackSpec(slug, name, "Ensembler24", "what the client sends")
        section = Section(spec, Status(Outcome.CONVERGED), notes=(_NOTE,))
        found.append(Findings(section, evidence=evidence))
    return found, names


def mosaic(images: Tensor) -> Tensor:
    """(n, c, h, w): the first sixteen as one image, four in a row, with a pixel between; black if fewer."""
    shown = images[:_SHOWN].float()
    shown = F.pad(shown, [0, 1, 0, 1, 0, 0, 0, _SHOWN - len(shown)])
    _, c, h, w = shown.shape
    rows = shown.reshape(_ACROSS, _ACROSS, c, h, w).permute(2, 0, 3, 1, 4)
    return rows.reshape(c, _ACROSS * h, _ACROSS * w).contiguous()
