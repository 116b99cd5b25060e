"""What an attack on weights found of vectors, as the run folder and the page have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from exhume.auditing.checkpoint.findings import own_figures
from exhume.auditing.checkpoint.scoring_records import ScoringRecords
from exhume.core.contract import Reconstruction, Shard
from exhume.core.evidence import LineupRow
from exhume.core.results import AttackSpec, Facts, Findings, Section
from exhume.score.margin import VectorScores, alike_vectors
from exhume.score.verdict import leak_of

__all__ = ["vector_findings"]

_MOST = 1000  # training records whose evidence is kept, the most alike first


def vector_findings(
    spec: AttackSpec,
    knows: Sequence[str],
    found: Reconstruction,
    scores: VectorScores,
    given: ScoringRecords,
    *,
    margins: Tensor | None,
    beside: Mapping[str, Tensor],
    notes: Sequence[str],
    facts: Facts,
    lineup: LineupRow,
    doubt: str,
) -> Findings:
    """A scored attack: each record beside what came back and the decoy most like that."""
    everything = {**scores.evidence, **beside, **_pictures(scores, given)}
    if margins is not None:
        everything["margins"] = margins
    best = scores.evidence["cosine"].argsort(descending=True, stable=True)[:_MOST]
    evidence = {name: values[best] for name, values in everything.items()}
    evidence["decoys"] = evidence.pop("nearest")
    leak = leak_of(lineup)
    section = Section(
        spec,
        found.status,
        tuple(knows),
        {**scores.metrics, **own_figures(found), "success": leak.share if leak else 0.0},
        leak,
        cost=found.cost,
        notes=tuple(notes),
        ranked_by="cosine",
        lineup=lineup,
        doubt=doubt,
    )
    return Findings(section, evidence=Shard(evidence), facts=facts, risk=everything)


def _pictures(scores: VectorScores, given: ScoringRecords) -> dict[str, Tensor]:
    """The private images, and of those that anybody may have the one nearest to the answer."""
    if given.pictures is None:
        return {}
    shown = {"target_pictures": given.pictures.trained}
    if len(given.pictures.others):
        near = alike_vectors(scores.evidence["reconstructions"], given.pictures.vectors).argmax(1)
        shown["decoy_pictures"] = given.pictures.others[near]
    return shown
