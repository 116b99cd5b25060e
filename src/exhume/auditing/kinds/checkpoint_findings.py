"""What an attack on weights found, as the run folder and the page have it (Buzaglo23).

An audit and a study call the same functions, so that both pages show the same: each training record beside
its best reconstruction and the decoy most like that, pairs around the threshold, SSIM against margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from exhume.auditing.case import Scored
from exhume.auditing.kinds.checkpoint_records import ScoringRecords
from exhume.core.contract import Reconstruction, Records, Shard
from exhume.core.results import AttackSpec, Facts, Findings, Rate, Section, Verdict
from exhume.score.margin import MarginScores, VectorScores, above_bar, alike_vectors

_MOST = 1000  # training records whose evidence is kept, the most similar first
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
    facts: Facts | None = None,
) -> Findings:
    """A study's section on images, whose rate is the paper's: SSIM above the bar."""
    shown = scored_images(found, scores, decoys, margins=margins)
    section = Section(spec, found.status, tuple(knows), cost=found.cost)
    return _of_study(section, shown, above_bar(scores)[1], facts)


def vector_findings(
    spec: AttackSpec,
    knows: Sequence[str],
    found: Reconstruction,
    scores: VectorScores,
    given: ScoringRecords,
    *,
    margins: Tensor | None,
    leak: Rate | None,
    facts: Facts | None = None,
) -> Findings:
    """A study's section on vectors."""
    shown = scored_vectors(found, scores, given, margins=margins)
    section = Section(spec, found.status, tuple(knows), cost=found.cost)
    return _of_study(section, shown, leak, facts)


def _of_study(section: Section, shown: Scored, leak: Rate | None, facts: Facts | None) -> Findings:
    metrics = {**shown.metrics, "success": leak.share if leak else 0.0}
    section = replace(section, metrics=metrics, leak=leak, ranked_by=shown.ranked_by)
    return Findings(section, evidence=shown.evidence, facts=facts or {}, risk=shown.risk)


def scored_images(
    found: Reconstruction,
    scores: MarginScores,
    decoys: Records,
    *,
    margins: Tensor | None = None,
    beside: Mapping[str, Tensor] = _NOTHING,
) -> Scored:
    """margins: (n,) of the training images, for the owner's eyes; beside: more of such, by name."""
    everything = _with_margins({**scores.evidence, **beside}, margins)
    best = scores.members.ssim.argsort(descending=True, stable=True)[:_MOST]
    evidence = {key: values[best.to(values.device)] for key, values in everything.items()}
    evidence["decoys"] = evidence.pop("nearest")
    luckiest = scores.decoys.ssim.argsort(descending=True, stable=True)[:_LUCKIEST]
    evidence |= {
        "decoy_targets": decoys.inputs[luckiest],
        "decoy_reconstructions": found.candidates[0].clamp(0, 1)[scores.decoys.index[luckiest]],
        "decoy_ssim": scores.decoys.ssim[luckiest],
    }
    figures, _ = above_bar(scores)
    metrics = {**scores.metrics, **own_figures(found), **figures}
    return Scored(metrics, evidence, risk=everything, ranked_by="ssim")


def scored_vectors(
    found: Reconstruction,
    scores: VectorScores,
    given: ScoringRecords,
    *,
    margins: Tensor | None = None,
    beside: Mapping[str, Tensor] = _NOTHING,
) -> Scored:
    """Each record beside what came back and the decoy most like that."""
    everything = {**scores.evidence, **beside, **_pictures(scores, given)}
    everything = _with_margins(everything, margins)
    best = scores.evidence["cosine"].argsort(descending=True, stable=True)[:_MOST]
    evidence = {name: values[best] for name, values in everything.items()}
    evidence["decoys"] = evidence.pop("nearest")
    metrics = {**scores.metrics, **own_figures(found)}
    return Scored(metrics, Shard(evidence), risk=everything, ranked_by="cosine")


def _with_margins(everything: dict[str, Tensor], margins: Tensor | None) -> dict[str, Tensor]:
    return everything if margins is None else {**everything, "margins": margins}


def _pictures(scores: VectorScores, given: ScoringRecords) -> dict[str, Tensor]:
    """Images behind the vectors, for the page."""
    if given.pictures is None:
        return {}
    shown = {"target_pictures": given.pictures.trained}
    if len(given.pictures.others):
        near = alike_vectors(scores.evidence["reconstructions"], given.pictures.vectors).argmax(1)
        shown["decoy_pictures"] = given.pictures.others[near]
    return shown


def unscored(found: Reconstruction, centre: Tensor, *, confidence: str) -> Scored:
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
    return Scored(
        {**own_figures(found), "distinct": float(len(kept)), "agreed": float(agreed)},
        evidence,
        (confidence,),
        ranked_by="confidence",
        verdict=_unscored(len(kept), agreed),
    )


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
