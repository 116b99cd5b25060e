"""What one attack found in all updates: proved by the updates themselves, scored where there are records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from exhume.attacks.gradient.matching import GradientMatching
from exhume.auditing.updates.attacks import Answer, UpdateAttack
from exhume.auditing.updates.found_texts import is_of_texts, listed_words, scored_texts, with_words
from exhume.auditing.updates.lineups import Truth, lined_up, pooled
from exhume.core.contract import Cost, Key, Outcome
from exhume.core.results import NOT_JUDGED, Facts, Findings, Section, Verdict
from exhume.score.batches import UpdateScores, score_updates
from exhume.score.intervals import rate_of
from exhume.score.verdict import leak_of, not_audited
from exhume.victims import keep_secret

__all__ = ["found_by"]

_ENOUGH = 100  # steps of a search below which its silence is no evidence
_AS_TRUTH = 1.05  # times what the records themselves leave unexplained


def found_by(
    attack: UpdateAttack,
    answers: Sequence[Answer],
    truth: Truth | None,
    key: Key,
    facts: Facts,
    *,
    tests: int = 1,
) -> Findings:
    """One attack's answers to all updates, scored where there is something to score with.

    tests: attacks on updates in this audit. A proof needs no records: it stands where those that are named
    for a client are not the ones that it trained on.
    """
    ran = [a for a in answers if a.found.status.outcome is not Outcome.NOT_APPLICABLE]
    notes = [answer.proof.sentence for answer in ran if answer.proof.sentence]
    section = _section(attack, answers, notes)
    if not ran:
        return Findings(section, not_audited(answers[0].found.status.reason), facts=facts)
    proved = _proved(answers, truth)
    metrics = _observed(ran, proved)
    evidence: dict[str, Tensor] = {}
    verdict, leak, lineup = NOT_JUDGED, None, None
    doubt = ""
    if truth is None and not attack.whole:
        metrics |= {"listed": float(sum(answer.found.candidates.shape[1] for answer in ran))}
        evidence, verdict = _listed(ran), _UNKNOWN
        if attack.certain:
            verdict = listed_words(ran)
            leak = rate_of(len(ran), len(ran))  # of every update all words are known
    elif truth is None:
        evidence, verdict = _unscored(ran), _unknown(ran)
    else:
        scores = _scores(attack, ran, truth, key)
        metrics |= scores.metrics
        lined = lined_up(attack, ran, truth, key, tests)
        evidence = scores.evidence | {"rank": lined.ranks}
        lineup, leak = lined.row, leak_of(lined.row)
        metrics |= {"averages": float(lined.averages)}
        notes += [lined.sentence] * bool(lined.sentence)
        doubt = lined.doubt or truth.doubt or _unfinished(attack, ran, metrics)
    if proved and truth is not None and truth.wrong:
        lineup, leak = None, None  # of other records
    if proved and proved > (leak.successes if leak else 0) and (not lineup or lineup.identified):
        records = sum(answer.case.batch_size or answer.proof.records for answer in answers)
        leak = rate_of(proved, max(records, proved))  # a proof counts like a match
    if leak is not None and "success" not in metrics:  # nobody to compare with: by proof
        metrics |= {"success": leak.share, "success_low": leak.low, "success_high": leak.high}
    if ran and is_of_texts(ran):
        evidence = with_words(evidence, ran, attack)
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    section = replace(
        section,
        metrics=metrics,
        leak=leak,
        lineup=lineup,
        proved=proved,
        doubt=doubt,
        notes=(section.notes[0], *notes, *section.notes[1 + len(notes) :]),
    )
    return Findings(section, verdict, evidence, facts)


def _proved(answers: Sequence[Answer], truth: Truth | None) -> int:
    """Records that are proved, of each client at most as many as it has.

    Where the records of some clients are wrong, only their proofs count: those of the others could have
    been compared with the truth, and were not.
    """
    total = 0
    for client in {answer.case.client for answer in answers}:
        counts = [a.proof.records for a in answers if a.case.client == client]
        if truth is None or client in truth.strange:
            total += max(counts)
        elif not truth.strange:
            total += min(sum(counts), len(truth.private[client]))
    return total


def _observed(ran: Sequence[Answer], proved: int) -> dict[str, float]:
    """What the proofs and the attack itself say."""
    metrics: dict[str, float] = {"certified": float(proved)}
    residuals = [r for a in ran if (r := a.proof.residual) is not None]
    if residuals:
        metrics["update_residual"] = max(residuals)
    for name in sorted({name for answer in ran for name in answer.found.observed}):
        values = [a.found.observed[name] for a in ran if name in a.found.observed]
        metrics[f"own_{name}"] = sum(values) / len(values)
    metrics.pop("own_ordered", None)
    return metrics


def _scores(attack: UpdateAttack, ran: Sequence[Answer], truth: Truth, key: Key) -> UpdateScores:
    others = truth.others if len(truth.others) else None
    if is_of_texts(ran):
        return scored_texts(attack, ran, truth.private, others, key)
    pairs = [
        (keep_secret(records), pooled(ran, client, records.shape))
        for client, records in truth.private.items()
    ]
    return score_updates(pairs, others, key)


def _listed(ran: Sequence[Answer]) -> dict[str, Tensor]:
    words = [a.found.found() for a in ran]
    return {"listed": torch.unique(torch.cat(words))}


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


_UNKNOWN = Verdict(
    "not audited",
    "Not audited: there are no private records to compare the reconstructions with (--data, --records), and "
    "no reconstruction proves itself.",
    "The report shows what the attacks brought back; whether it is right is not known.",
)


def _unknown(ran: Sequence[Answer]) -> Verdict:
    """With what speaks against what is said about the updates: that may be why nothing proves itself."""
    doubts = dict.fromkeys(doubt for answer in ran for doubt in answer.case.doubts)
    if not doubts:
        return _UNKNOWN
    return replace(_UNKNOWN, detail=f"{_UNKNOWN.detail} What was found: {'; '.join(doubts)}.")


def _unfinished(attack: UpdateAttack, ran: Sequence[Answer], metrics: Mapping[str, float]) -> str:
    """Weak effort is no evidence: silence of a search that did not arrive says nothing.

    Where the update itself holds noise, nobody can explain more of it than the records do.
    """
    search = attack.attack
    if isinstance(search, GradientMatching) and search.steps < _ENOUGH:
        return (
            f"{attack.spec.name} made only {search.steps} steps; more --search-steps may find more"
        )
    late = [a for a in ran if not a.found.status.converged]
    floor = {id(a): a.case.unexplained for a in late}
    if all(a.found.observed.get("mismatch", 1.0) <= _AS_TRUTH * floor[id(a)] for a in late):
        return ""
    why = f"{attack.spec.name} did not converge"
    if "own_mismatch" in metrics:
        explained = metrics["own_explained"]
        why += f": it explains {explained:.0%} of the update; more --search-steps may help"
    return why


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
