"""What came back of clients' updates, as candidates, evidence and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from exhume.auditing.attack import confidences, pooled
from exhume.auditing.augmented import compare_with_named
from exhume.auditing.case import Answer, Row
from exhume.auditing.kinds.update_files import Truth
from exhume.core.contract import Outcome, Reconstruction, Records, Status
from exhume.core.results import Verdict

_POOLED = Status(Outcome.CONVERGED)  # of what came back from several updates


def by_client(answers: Sequence[Answer], truth: Truth) -> list[tuple[list[Answer], Records]]:
    """What was answered to each client's updates, and its records."""
    return [
        ([answer for answer in answers if answer.question.name == client], records)
        for client, records in truth.private.items()
    ]


def wrong_records(answers: Sequence[Answer], truth: Truth) -> tuple[frozenset[str], str]:
    """Clients whose named records are not those of their updates, and a sentence; empty: there are none.

    What is proved is compared with the named records, unless these give the update themselves. A client
    without a proof stands as its update was recomputed.
    """
    compared: dict[str, str] = {}
    for mine, records in by_client(answers, truth) if truth.chosen else ():
        proved = [a.found.found() for a in mine if a.proof.chosen is not None]
        client = mine[0].question.name if mine else ""
        if proved and client not in truth.exact and records.inputs.is_floating_point():
            compared[client] = compare_with_named(torch.cat(proved), records.inputs).sentence
    told = "; ".join(f"client {client}: {words}" for client, words in compared.items() if words)
    strange = frozenset(client for client, words in compared.items() if words)
    strange |= truth.strange - set(compared)
    return strange, (told or truth.wrong) if strange else ""


def candidates_of(answers: Sequence[Answer], records: Records) -> Reconstruction:
    """Everything found in any of a client's updates, as candidates for its records."""
    whole = pooled(answers, records.shape)[None]
    every = [torch.zeros(0, dtype=torch.int64)]
    for found in (answer.found for answer in answers):
        labels = torch.full(found.real.shape, -1) if found.labels is None else found.labels
        every.append(labels[0][found.real[0]])
    labels = torch.cat(every)[None]
    return Reconstruction(whole, confidences(answers)[None], _POOLED, labels=labels)


def tokens_of(answers: Sequence[Answer], records: Records, row: Row) -> Reconstruction:
    """Every different text found in any of a client's updates; of parts, every different token."""
    shape = records.shape if row.whole else (1,)
    tokens = [answer.found.found().long() for answer in answers]
    whole = torch.unique(torch.cat([torch.zeros(0, *shape).long(), *tokens]), dim=0)[None]
    return Reconstruction(whole, torch.zeros(whole.shape[:2]), _POOLED)


def keeps_order(answers: Sequence[Answer]) -> bool:
    """Whether what was found says at which place of a text each token stands."""
    return all(answer.found.observed.get("ordered", 1.0) > 0 for answer in answers)


def observed_metrics(answers: Sequence[Answer], proved: int) -> dict[str, float]:
    """What the proofs and the attack itself say."""
    metrics: dict[str, float] = {"certified": float(proved)}
    residuals = [r for answer in answers if (r := answer.proof.residual) is not None]
    if residuals:
        metrics["update_residual"] = max(residuals)
    for name in sorted({name for answer in answers for name in answer.found.observed}):
        values = [a.found.observed[name] for a in answers if name in a.found.observed]
        metrics[f"own_{name}"] = sum(values) / len(values)
    metrics.pop("own_ordered", None)
    return metrics


def unscored_evidence(answers: Sequence[Answer]) -> dict[str, Tensor]:
    """What came back, with nothing to compare it with."""
    records, confidence, labels = [], [], []
    for answer in answers:
        real = answer.found.real[0]
        candidates = answer.found.candidates[0][real]
        records.append(candidates.float() if candidates.is_floating_point() else candidates)
        confidence.append(answer.found.confidence[0][real])
        if answer.found.labels is not None:
            labels.append(answer.found.labels[0][real])
    evidence = {"reconstructions": torch.cat(records), "confidence": torch.cat(confidence)}
    whole = len(labels) == len(answers) and all(bool((part >= 0).all()) for part in labels)
    return evidence | ({"inferred": torch.cat(labels)} if whole else {})


NOTHING_KNOWN = Verdict(
    "not audited",
    "Not audited: there are no private records to compare the reconstructions with (--data, --records), and "
    "no reconstruction proves itself.",
    "The report shows what the attacks brought back; whether it is right is not known.",
)


def unproved_verdict(answers: Sequence[Answer]) -> Verdict:
    """With what speaks against what is said about the updates: that may be why nothing proves itself."""
    doubts = dict.fromkeys(doubt for answer in answers for doubt in answer.question.source.doubts)
    if not doubts:
        return NOTHING_KNOWN
    return replace(
        NOTHING_KNOWN, detail=f"{NOTHING_KNOWN.detail} What was found: {'; '.join(doubts)}."
    )


def listed_words_verdict(answers: Sequence[Answer]) -> Verdict:
    """Without texts to compare with. A row that is not zero was used: that needs no further proof."""
    counts = [len(answer.found.found()) for answer in answers]
    some = (
        f"{counts[0]} words" if len(counts) == 1 else f"{min(counts)} to {max(counts)} words each"
    )
    return Verdict(
        "leaks",
        f"The update leaks words: it lists which {some} the client's texts are made of.",
        "Only the rows of these words have changed. In which text each stands is not told by this.",
    )
