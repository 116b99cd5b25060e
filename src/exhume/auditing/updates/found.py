"""What one attack found in all updates: proved by the updates themselves, scored where there are records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from exhume.auditing.updates.found_texts import is_of_texts, scored_texts, told_words, with_words
from exhume.auditing.updates.lines import Answer, Line
from exhume.auditing.updates.reading import Case
from exhume.contract import Key, Outcome, Reconstruction, Records
from exhume.score.updates import UpdateScores, score_updates
from exhume.score.verdict import Verdict, not_audited
from exhume.victims.updates import keep_secret

__all__ = ["Found", "Truth", "found_by"]


@dataclass(frozen=True, eq=False)
class Found:
    """One attack on all updates."""

    section: dict[str, Any]  # the attack's part of result.json: numbers and words, no records
    evidence: dict[str, Tensor]
    verdict: Verdict

    @property
    def ran(self) -> bool:
        return bool(self.section["status"]["outcome"] != Outcome.NOT_APPLICABLE.value)

    def share(self, cases: Sequence[Case]) -> float:
        """Of the private records: brought back by the score, or proved by the updates."""
        metrics = self.section["metrics"]
        proved = float(metrics.get("certified", 0.0))
        records = sum(case.batch_size or 0 for case in cases)
        return max(float(metrics.get("success", 0.0)), proved / max(records, proved, 1.0))


@dataclass(frozen=True, eq=False)
class Truth:
    """The private records, where the owner has given them to score with."""

    private: dict[str, Records]  # by client
    others: Records


def found_by(line: Line, answers: Sequence[Answer], truth: Truth | None, key: Key) -> Found:
    """One attack's answers to all updates, scored where there is something to score with."""
    ran = [a for a in answers if a.found.status.outcome is not Outcome.NOT_APPLICABLE]
    proved = sum(answer.proof.records for answer in ran)
    notes = [answer.proof.sentence for answer in ran if answer.proof.sentence]
    residuals = [r for a in ran if (r := a.proof.residual) is not None]
    metrics: dict[str, float] = {"certified": float(proved)}
    if residuals:
        metrics["update_residual"] = max(residuals)
    for name in sorted({name for answer in ran for name in answer.found.observed}):
        values = [a.found.observed[name] for a in ran if name in a.found.observed]
        metrics[f"own_{name}"] = sum(values) / len(values)
    metrics.pop("own_ordered", None)
    evidence: dict[str, Tensor] = {}
    if not ran:
        verdict = not_audited(answers[0].found.status.reason)
        metrics = {}
    elif truth is None and not line.whole:
        metrics |= {"listed": float(sum(answer.found.candidates.shape[1] for answer in ran))}
        metrics |= {"success": 1.0}  # of every text all words are known
        evidence, verdict = _listed(ran), told_words(ran)
    elif truth is None:
        evidence, verdict = _unscored(ran), _by_proof(proved, ran)
    else:
        scores = _scores(line, ran, truth, key)
        metrics |= scores.metrics
        evidence, verdict = scores.evidence, scores.verdict
        if verdict.word != "leaks" and proved:
            verdict = _by_proof(proved, ran)
    if ran and is_of_texts(ran):
        evidence = with_words(evidence, ran, line)
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return Found(_section(line, answers, metrics, notes), evidence, verdict)


def _scores(line: Line, ran: Sequence[Answer], truth: Truth, key: Key) -> UpdateScores:
    others = truth.others if len(truth.others) else None
    if is_of_texts(ran):
        return scored_texts(line, ran, truth.private, others, key)
    pairs = [
        (keep_secret(records), _pooled(ran, client, records.shape))
        for client, records in truth.private.items()
    ]
    return score_updates(pairs, others, key)


def _listed(ran: Sequence[Answer]) -> dict[str, Tensor]:
    words = [a.found.candidates[0][torch.isfinite(a.found.confidence[0])] for a in ran]
    return {"listed": torch.unique(torch.cat(words))}


def _pooled(ran: Sequence[Answer], client: str, shape: tuple[int, ...]) -> Reconstruction:
    """Everything found in any of a client's updates, as candidates for its records."""
    own = [answer.found for answer in ran if answer.case.client == client]
    real = [torch.isfinite(found.confidence[0]) for found in own]
    candidates = [found.candidates[0][keep].double() for found, keep in zip(own, real, strict=True)]
    labels = [
        torch.full((int(keep.sum()),), -1) if found.labels is None else found.labels[0][keep]
        for found, keep in zip(own, real, strict=True)
    ]
    if not own:
        candidates, labels = [torch.zeros(0, *shape).double()], [torch.zeros(0, dtype=torch.int64)]
    whole = torch.cat(candidates)[None]
    return Reconstruction(
        whole,
        torch.zeros(whole.shape[:2]),
        ran[0].found.status,
        labels=torch.cat(labels)[None],
    )


def _unscored(ran: Sequence[Answer]) -> dict[str, Tensor]:
    """What came back, with nothing to compare it with."""
    records, confidence, labels = [], [], []
    for answer in ran:
        real = torch.isfinite(answer.found.confidence[0])
        found = answer.found.candidates[0][real]
        records.append(found.float() if found.is_floating_point() else found)
        confidence.append(answer.found.confidence[0][real])
        if answer.found.labels is not None:
            labels.append(answer.found.labels[0][real])
    evidence = {"reconstructions": torch.cat(records), "confidence": torch.cat(confidence)}
    whole = len(labels) == len(ran) and all(bool((part >= 0).all()) for part in labels)
    return evidence | ({"inferred": torch.cat(labels)} if whole else {})


def _by_proof(proved: int, ran: Sequence[Answer]) -> Verdict:
    """Without records: leaks where a reconstruction proves itself, else not audited."""
    if not proved:
        return Verdict(
            "not audited",
            "Not audited: there are no private records to compare the reconstructions with "
            "(--data, --records), and no reconstruction proves itself.",
            "The report shows what the attacks brought back; whether it is right is not known.",
        )
    count = "1 record was" if proved == 1 else f"{proved} records were"
    return Verdict(
        "leaks",
        f"The update leaks: {count} reconstructed, and the update itself proves it.",
        " ".join(a.proof.sentence for a in ran if a.proof.sentence),
    )


def _section(
    line: Line, answers: Sequence[Answer], metrics: dict[str, float], notes: list[str]
) -> dict[str, Any]:
    statuses = [answer.found.status for answer in answers]
    applied = [s for s in statuses if s.outcome is not Outcome.NOT_APPLICABLE] or statuses
    status = next((s for s in applied if s.outcome is not Outcome.CONVERGED), applied[0])
    knows = ["architecture"] + ["batch_size"] * any(a.case.batch_size for a in answers)
    seconds = sum(answer.found.cost.seconds for answer in answers)
    refused = [a for a in answers if a.found.status.outcome is Outcome.NOT_APPLICABLE]
    if refused and len(refused) < len(answers):
        notes = [*notes, f"Not applicable to {len(refused)}: {refused[0].found.status.reason}."]
    return {
        "id": line.id,
        "name": line.name,
        "paper": line.paper,
        "sees": line.sees,
        "knows": knows,
        "status": {"outcome": status.outcome.value, "reason": status.reason, "ever": status.ever},
        "metrics": metrics,
        "baselines": [],
        "cost": {"seconds": seconds, "models": 0},
        "notes": [f"Updates attacked: {len(answers)}.", *notes],
    }
