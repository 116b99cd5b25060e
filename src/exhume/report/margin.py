"""The part of a result that a margin attack has: numbers for `result.json`, evidence for the page.

An audit and a study call the same function, so that both pages show the same: each training image beside its
best reconstruction and the decoy that resembles that most, pairs around the threshold, SSIM against margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from exhume.contract import NotApplicable, Reconstruction, Records
from exhume.report.folder import RunFolder
from exhume.score.margin import MarginScores

__all__ = ["inapplicable_section", "margin_section", "unscored_section"]

_MOST = 1000  # training images whose evidence is kept, the most similar first
_LUCKIEST = 8  # decoys whose best match is kept
_SHOWN = 200  # reconstructions that are kept where there is no truth
_SAME = 0.7  # cosine above which a surer reconstruction already shows the image


def margin_section(
    folder: RunFolder,
    *,
    id: str,  # noqa: A002 - the name in result.json
    name: str,
    knows: Sequence[str],
    found: Reconstruction,
    scores: MarginScores,
    decoys: Records,
    margins: Tensor | None = None,
    beside: Mapping[str, Tensor] = MappingProxyType({}),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the evidence of a scored attack; return its section.

    margins: (n,) of the training images, for the owner's eyes; beside: more of such, by name.
    """
    evidence = {**scores.evidence, **beside}
    evidence["decoys"] = evidence.pop("nearest")
    if margins is not None:
        evidence["margins"] = margins
    best = scores.members.ssim.argsort(descending=True, stable=True)[:_MOST]
    evidence = {key: values[best.to(values.device)] for key, values in evidence.items()}
    luckiest = scores.decoys.ssim.argsort(descending=True, stable=True)[:_LUCKIEST]
    evidence |= {
        "decoy_targets": decoys.inputs[luckiest],
        "decoy_reconstructions": found.candidates[0].clamp(0, 1)[scores.decoys.index[luckiest]],
        "decoy_ssim": scores.decoys.ssim[luckiest],
    }
    file = f"{id}.safetensors"
    folder.write_tensors(file, evidence)
    metrics = {**scores.metrics, **_own(found)}
    return _section(id, name, knows, found, metrics=metrics, notes=notes) | {
        "evidence": file,
        "ranked_by": "ssim",
    }


def unscored_section(
    folder: RunFolder,
    *,
    id: str,  # noqa: A002
    name: str,
    knows: Sequence[str],
    found: Reconstruction,
    centre: Tensor,
    confidence: str,
) -> dict[str, Any]:
    """The same for an attack that nobody can score: its surest reconstructions, each image once.

    centre: (*shape) what was added to the candidates; confidence: what it is, as a sentence.
    """
    candidates, sure = found.candidates[0].clamp(0, 1), found.confidence[0]
    kept, times = _distinct(candidates, centre)
    file = f"{id}.safetensors"
    shown = kept[:_SHOWN]
    evidence = {"reconstructions": candidates[shown], "confidence": sure[shown]}
    if found.labels is not None:
        evidence["labels"] = found.labels[0][shown]
    folder.write_tensors(file, evidence)
    metrics = {
        **_own(found),
        "distinct": float(len(kept)),
        "agreed": float(sum(count > 1 for count in times)),
    }
    return _section(id, name, knows, found, metrics=metrics, notes=[confidence]) | {
        "evidence": file,
        "ranked_by": "confidence",
    }


def inapplicable_section(id: str, name: str, why: NotApplicable) -> dict[str, Any]:  # noqa: A002
    return _section(id, name, (), Reconstruction.none(0, (), why), metrics={}, notes=())


def _section(
    id: str,  # noqa: A002
    name: str,
    knows: Sequence[str],
    found: Reconstruction,
    *,
    metrics: dict[str, float],
    notes: Sequence[str],
) -> dict[str, Any]:
    status = found.status
    return {
        "id": id,
        "name": name,
        "paper": "Buzaglo23",
        "sees": "the released weights",
        "knows": list(knows),
        "status": {
            "outcome": status.outcome.value,
            "reason": status.reason,
            "ever": status.ever,
        },
        "metrics": metrics,
        "baselines": [],
        "cost": asdict(found.cost),
        "notes": list(notes),
    }


def _own(found: Reconstruction) -> dict[str, float]:
    """The attack's own figures, by names that say whose they are."""
    names = {"records": "records_guessed", "residual": "residual_reached"}
    return {names.get(name, name): value for name, value in found.observed.items()}


def _distinct(candidates: Tensor, centre: Tensor) -> tuple[list[int], list[int]]:
    """Those that no surer one resembles, and how many candidates each stands for; (k, *shape), surest first.

    Compared is what is left without the centre and without a constant: images were stretched after the
    centre was added, so both say nothing about a candidate.
    """
    flat = candidates.flatten(1).double()
    shared = torch.stack([torch.ones_like(flat[0]), centre.flatten().to(flat)])
    axes = torch.linalg.svd(shared, full_matrices=False)
    basis = axes.Vh[1e-6 * axes.S[0] < axes.S]
    units = torch.nn.functional.normalize(flat - (flat @ basis.T) @ basis, dim=1)
    kept, times = list[int](), list[int]()
    for index in range(len(units)):
        alike = units[kept] @ units[index]
        if len(kept) and float(alike.max()) >= _SAME:
            times[int(alike.argmax())] += 1
        else:
            kept.append(index)
            times.append(1)
    return kept, times
