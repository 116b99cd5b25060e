"""What one attack found in all updates: proved by the updates themselves, scored where there are records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.auditing.updates.attacks import Answer, UpdateAttack
from exhume.auditing.updates.found_texts import is_of_texts, listed_words, scored_texts, with_words
from exhume.contract import Cost, Key, Outcome, Reconstruction, Records
from exhume.results import Facts, Findings, Rate, Section, Verdict
from exhume.score.intervals import rate_of
from exhume.score.updates import UpdateScores, score_updates
from exhume.score.verdict import not_audited
from exhume.victims.updates import keep_secret

__all__ = ["Truth", "found_by"]


@dataclass(frozen=True, eq=False)
class Truth:
    """The private records, where the owner has given them to score with."""

    private: dict[str, Records]  # by client
    others: Records


def found_by(
    attack: UpdateAttack, answers: Sequence[Answer], truth: Truth | None, key: Key, facts: Facts
) -> Findings:
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
    leak: Rate | None = None
    if not ran:
        verdict = not_audited(answers[0].found.status.reason)
        metrics = {}
    elif truth is None and not attack.whole:
        metrics |= {"listed": float(sum(answer.found.candidates.shape[1] for answer in ran))}
        evidence, verdict = _listed(ran), listed_words(ran)
        leak = rate_of(len(ran), len(ran))  # of every update all words are known
    elif truth is None:
        evidence, verdict = _unscored(ran), _by_proof(proved, ran)
    else:
        scores = _scores(attack, ran, truth, key)
        metrics |= scores.metrics
        evidence, verdict, leak = scores.evidence, scores.verdict, scores.leak
    if proved and proved > (leak.successes if leak else 0):  # a proof counts like a match
        verdict = _by_proof(proved, ran)
        records = sum(answer.case.batch_size or answer.proof.records for answer in answers)
        leak = rate_of(proved, max(records, proved))
    if verdict.word == "no leak found" and not all(a.found.status.converged for a in ran):
        verdict = _unfinished(attack, metrics)
    if leak is not None:
        metrics |= {"success": leak.share, "success_low": leak.low, "success_high": leak.high}
    if ran and is_of_texts(ran):
        evidence = with_words(evidence, ran, attack)
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    section = replace(_section(attack, answers, notes), metrics=metrics, leak=leak)
    return Findings(section, verdict, evidence, facts)


def _scores(attack: UpdateAttack, ran: Sequence[Answer], truth: Truth, key: Key) -> UpdateScores:
    others = truth.others if len(truth.others) else None
    if is_of_texts(ran):
        return scored_texts(attack, ran, truth.private, others, key)
    pairs = [
        (keep_secret(records), _pooled(ran, client, records.shape))
        for client, records in truth.private.items()
    ]
    return score_updates(pairs, others, key)


def _listed(ran: Sequence[Answer]) -> dict[str, Tensor]:
    words = [a.found.found() for a in ran]
    return {"listed": torch.unique(torch.cat(words))}


def _pooled(ran: Sequence[Answer], client: str, shape: tuple[int, ...]) -> Reconstruction:
    """Everything found in any of a client's updates, as candidates for its records."""
    own = [answer.found for answer in ran if answer.case.client == client]
    real = [found.real[0] for found in own]
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
        real = answer.found.real[0]
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


def _unfinished(attack: UpdateAttack, metrics: Mapping[str, float]) -> Verdict:
    """Weak effort is no evidence: silence of a search that did not arrive says nothing."""
    why = f"{attack.spec.name} did not converge"
    if "own_mismatch" in metrics:
        explained = max(0.0, 1 - metrics["own_mismatch"]) ** 2
        why += f": it explains {explained:.0%} of the update; more --search-steps may help"
    return not_audited(why)


def _section(attack: UpdateAttack, answers: Sequence[Answer], notes: list[str]) -> Section:
    statuses = [answer.found.status for answer in answers]
    applied = [s for s in statuses if s.outcome is not Outcome.NOT_APPLICABLE] or statuses
    status = next((s for s in applied if s.outcome is not Outcome.CONVERGED), applied[0])
    knows = ["architecture"] + ["batch_size"] * any(a.case.batch_size for a in answers)
    seconds = sum(answer.found.cost.seconds for answer in answers)
    refused = [a for a in answers if a.found.status.outcome is Outcome.NOT_APPLICABLE]
    if refused and len(refused) < len(answers):
        notes = [*notes, f"Not applicable to {len(refused)}: {refused[0].found.status.reason}."]
    return Section(
        attack.spec,
        status,
        tuple(knows),
        cost=Cost(seconds),
        notes=(f"Updates attacked: {len(answers)}.", *notes),
    )
