"""What a margin attack found, as the run folder and the page have it (Buzaglo23).

An audit and a study call the same function, so that both pages show the same: each training image beside its
best reconstruction and the decoy that resembles that most, pairs around the threshold, SSIM against margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from exhume.core.contract import Reconstruction, Records
from exhume.core.evidence import LineupRow
from exhume.core.results import AttackSpec, Facts, Findings, Section, Verdict
from exhume.score.margin import MarginScores, above_bar
from exhume.score.verdict import leak_of

__all__ = ["margin_findings", "own_figures", "unscored_findings"]

_MOST = 1000  # training images whose evidence is kept, the most similar first
_LUCKIEST = 8  # decoys whose best match is kept
_SHOWN = 200  # reconstructions that are kept where there is no truth
_SAME = 0.7  # cosine above which a surer reconstruction already shows the image
_NOTHING: Mapping[str, Tensor] = MappingProxyType({})


def margin_findings(
    spec: AttackSpec,
    knows: Sequence[str],
    found: Reconstruction,
    scores: MarginScores,
    decoys: Records,
    *,
    margins: Tensor | None = None,
    beside: Mapping[str, Tensor] = _NOTHING,
    notes: Sequence[str] = (),
    facts: Facts | None = None,
    lineup: LineupRow | None = None,
    doubt: str = "",
) -> Findings:
    """A scored attack. lineup: of an audit, which judges by it; None: a study's rate is the paper's.

    margins: (n,) of the training images, for the owner's eyes; beside: more of such, by name.
    """
    everything = {**scores.evidence, **beside}
    if margins is not None:
        everything["margins"] = margins
    best = scores.members.ssim.argsort(descending=True, stable=True)[:_MOST]
    evidence = {key: values[best.to(values.device)] for key, values in everything.items()}
    evidence["decoys"] = evidence.pop("nearest")
    luckiest = scores.decoys.ssim.argsort(descending=True, stable=True)[:_LUCKIEST]
    evidence |= {
        "decoy_targets": decoys.inputs[luckiest],
        "decoy_reconstructions": found.candidates[0].clamp(0, 1)[scores.decoys.index[luckiest]],
        "decoy_ssim": scores.decoys.ssim[luckiest],
    }
    figures, above = above_bar(scores)
    leak = above if lineup is None else leak_of(lineup)
    section = Section(
        spec,
        found.status,
        tuple(knows),
        {**scores.metrics, **own_figures(found), **figures, "success": leak.share if leak else 0.0},
        leak,
        cost=found.cost,
        notes=tuple(notes),
        ranked_by="ssim",
        lineup=lineup,
        doubt=doubt,
    )
    return Findings(section, evidence=evidence, facts=facts or {}, risk=everything)


def unscored_findings(
    spec: AttackSpec,
    knows: Sequence[str],
    found: Reconstruction,
    centre: Tensor,
    *,
    confidence: str,
    facts: Facts,
) -> Findings:
    """An attack that nobody can score: its surest reconstructions, each image once.

    centre: (*shape) what was added to the candidates; confidence: what it is, as a sentence.
    """
    candidates, sure = found.candidates[0], found.confidence[0]
    kept, times = _distinct(candidates, centre)
    shown = kept[:_SHOWN]
    evidence = {"reconstructions": candidates[shown], "confidence": sure[shown]}
    if found.labels is not None:
        evidence["labels"] = found.labels[0][shown]
    agreed = sum(count > 1 for count in times)
    section = Section(
        spec,
        found.status,
        tuple(knows),
        {**own_figures(found), "distinct": float(len(kept)), "agreed": float(agreed)},
        cost=found.cost,
        notes=(confidence,),
        ranked_by="confidence",
    )
    return Findings(section, _unscored(len(kept), agreed), evidence, facts)


def own_figures(found: Reconstruction) -> dict[str, float]:
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


def _unscored(candidates: int, again: int) -> Verdict:
    """The attack ran, but nobody said what the truth is."""
    return Verdict(
        "not audited",
        f"Not audited: {candidates} records were reconstructed, {again} of them more than once, but without "
        "the training records nothing could be scored.",
        "Whether they were trained on is for the owner to see: the page shows them, surest first. "
        "Give the training records, and others that were not trained on, to have them scored.",
    )
