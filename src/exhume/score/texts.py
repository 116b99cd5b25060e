"""Score texts that were dug out of clients' updates: token by token, matched one to one, decoys as the null.

A text counts as brought back if more of its tokens are right than the likest text an adversary may hold has
in common with it; in place where the order can be known, else wherever they stand. Padding does not count,
tokens too many count as wrong. Each decoy, a text that no client had, is given its choice among the same
candidates.

Sentences that were sent through a split network are scored by words in place, whole sentences and BLEU: that
of sacrebleu, of a whole corpus, up to four words, on the words as they are (tokenize="none"), from 0 to 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Reconstruction, Records, Secret
from exhume.core.errors import optional
from exhume.models.split.seq2seq import PADDING, UNKNOWN, read_out
from exhume.score.batches import FEWEST_OTHERS, UpdateScores, against_decoys, split_decoys
from exhume.score.lineup import Alike

NOTHING = -1  # stands where no candidate has a token
_CHUNK = 256  # texts that are counted at once


@dataclass(frozen=True, eq=False)
class _Measure:
    """Shares of equal tokens, in place or as bags."""

    padding: int | None
    ordered: bool

    def shares(self, truth: Tensor, texts: Tensor) -> Tensor:
        """(n, l) and (k, l) to (n, k): tokens in common, over those of the longer of the two."""
        if not len(texts):
            return torch.zeros(len(truth), 0, dtype=torch.float64)
        return torch.stack([self._row(row[None], texts) for row in truth])

    def _row(self, row: Tensor, texts: Tensor) -> Tensor:
        real = self.real(row)
        longer = torch.maximum(real.sum(), self.real(texts).sum(1)).clamp_min(1)
        if self.ordered:
            return ((row == texts) & real).sum(1).double() / longer
        parts = torch.split(texts, _CHUNK)
        return torch.cat([self._common(row[real], part) for part in parts]) / longer

    def real(self, tokens: Tensor) -> Tensor:
        return (
            torch.ones_like(tokens, dtype=torch.bool)
            if self.padding is None
            else tokens != self.padding
        )

    def same(self, truth: Tensor, texts: Tensor) -> Tensor:
        """(n, l) twice to (n,) bool: the same text, padding included, in any order where none is known."""
        if not self.ordered:
            truth, texts = truth.sort(1).values, texts.sort(1).values
        return (truth == texts).all(1)

    def _common(self, words: Tensor, texts: Tensor) -> Tensor:
        kinds, counts = torch.unique(words, return_counts=True)
        theirs = (texts[:, :, None] == kinds).sum(1)
        return torch.minimum(theirs, counts).sum(1).double()


def score_texts(
    answers: Sequence[tuple[Secret, Reconstruction]],
    others: Records | None,
    key: Key,
    *,
    padding: int | None,
    ordered: bool,
) -> UpdateScores:
    """One secret of one batch (1, b, l) a client, and the candidates (1, k, l) found for it.

    others: texts that no client had, as in `score_updates`. ordered: whether the order can be known at all.
    """
    measure = _Measure(padding, ordered)
    truth, found, right = _matched(answers, measure)
    pool = torch.cat([candidates.found().long() for _, candidates in answers])
    whole = measure.same(truth, found)
    bag, pairs = _Measure(padding, ordered=False), zip(truth, found, strict=True)
    in_common = [bag.shares(one[None], other[None])[0] for one, other in pairs]
    metrics = {
        "targets": float(len(truth)),
        "candidates": float(len(pool)),
        "token_accuracy": float(right.mean()),
        "whole_texts": float(whole.double().mean()),
        "word_accuracy": float(torch.cat(in_common).mean()),
    }
    evidence = {
        "targets": truth,
        "reconstructions": found,
        "right_share": right,
        "labels": torch.cat([secret.open().labels[0] for secret, _ in answers]),
    }
    if others is None or len(others) < FEWEST_OTHERS:
        return UpdateScores(metrics, evidence)
    held, decoys = split_decoys(others, key)
    bar, nearest = measure.shares(truth, held.inputs).max(1)
    usual = held.inputs.mode(dim=0).values[None]  # the most frequent token of every place
    metrics |= {
        "oracle_token_accuracy": float(bar.mean()),
        "usual_token_accuracy": float(measure.shares(truth, usual)[:, 0].mean()),
        "pool": float(len(held)),
    }
    known = measure.same(truth, held.inputs[nearest])
    won = ((right > bar) & (found != NOTHING).any(1))[~known]
    lucky = torch.zeros(
        len(decoys), dtype=torch.bool
    )  # more of it is in a candidate than in any held text
    if len(pool):
        reached = measure.shares(decoys.inputs, pool).amax(1)
        lucky = reached > measure.shares(decoys.inputs, held.inputs).amax(1)
    metrics |= {"duplicates": float(known.sum()), **against_decoys(won, lucky)}
    likest = {"nearest": held.inputs[nearest]}
    return UpdateScores(metrics, evidence | likest)


def score_words(
    answers: Sequence[tuple[Secret, Reconstruction]],
    others: Records | None,
    key: Key,
    *,
    padding: int | None,
) -> UpdateScores:
    """Score lists of words: candidates (1, k, 1) of each client; nothing says which belong together.

    A text counts as told if every word of it is on its client's list; a decoy, if there is such a list.
    """
    measure = _Measure(padding, ordered=False)
    lists = [found.found().long().flatten() for _, found in answers]
    truths = [secret.open().inputs[0] for secret, _ in answers]
    on = [
        torch.isin(truth, words) | ~measure.real(truth)
        for truth, words in zip(truths, lists, strict=True)
    ]
    truth, covered = torch.cat(truths), torch.cat(on)
    real = measure.real(truth)
    share = (covered & real).sum(1).double() / real.sum(1).clamp_min(1)
    used = torch.cat([torch.unique(truth[measure.real(truth)]) for truth in truths])
    words = torch.cat(lists)
    metrics = {
        "targets": float(len(truth)),
        "listed": float(len(words)),
        "word_accuracy": float(share.mean()),
        "false_words": float((~torch.isin(words, used)).sum()),
    }
    evidence = {
        "targets": truth,
        "covered": covered,
        "listed": torch.unique(words),
        "right_share": share,
        "labels": torch.cat([secret.open().labels[0] for secret, _ in answers]),
    }
    if others is None or len(others) < FEWEST_OTHERS:
        return UpdateScores(metrics, evidence)
    _, decoys = split_decoys(others, key)
    real = measure.real(decoys.inputs)
    lucky = torch.stack([(torch.isin(decoys.inputs, some) | ~real).all(1) for some in lists]).any(0)
    return UpdateScores(metrics | against_decoys(covered.all(1), lucky), evidence)


def token_shares(
    secret: Secret, found: Reconstruction, decoys: Tensor, *, padding: int | None
) -> dict[str, float]:
    """The share of tokens that came back of r batches (r, b, l), in place and as bags, without a verdict.

    decoys: (n, l) texts that were in no batch, each with its choice among all candidates: what similar
    texts give for nothing.
    """
    metrics: dict[str, float] = {}
    pool = found.candidates[found.real].long()
    for name, exact, ordered in (("token", "exact", True), ("bag", "exact_bags", False)):
        measure = _Measure(padding, ordered)
        truth, texts, right = _matched([(secret, found)], measure)
        null = measure.shares(decoys.long(), pool).amax(1) if len(pool) else torch.zeros(1)
        metrics |= {
            f"{name}_accuracy": float(right.mean()),
            exact: float(measure.same(truth, texts).double().mean()),
            f"null_{name}_accuracy": float(null.mean()),
        }
    return metrics


def alike_texts(padding: int | None, *, ordered: bool) -> Alike:
    """For a line-up: shares of equal tokens, in place where the order can be known."""
    measure = _Measure(padding, ordered)
    return lambda found, pool: measure.shares(pool.long(), found.long()).T


def alike_lists(padding: int | None) -> Alike:
    """For a line-up of lists of words (k, 1): the share of a text's words that are on the list."""
    measure = _Measure(padding, ordered=False)

    def alike(found: Tensor, pool: Tensor) -> Tensor:
        real = measure.real(pool)
        on = torch.isin(pool.long(), found.long().flatten()) & real
        return (on.sum(1).double() / real.sum(1).clamp_min(1))[None]

    return alike


# Matching


def _matched(
    answers: Sequence[tuple[Secret, Reconstruction]], measure: _Measure
) -> tuple[Tensor, Tensor, Tensor]:
    """All private texts (t, l), the candidate matched to each, and the share of tokens that is right."""
    if not answers:
        raise ExhumeError("answers: there is nothing to score")
    truths, matches, rights = [], [], []
    for secret, candidates in answers:
        for release, truth in enumerate(secret.open().inputs.long()):
            texts = candidates.found(release).long()
            found = torch.full_like(truth, NOTHING)
            right = torch.zeros(len(truth), dtype=torch.float64)
            if len(texts):
                shares = measure.shares(truth, texts)
                rows, columns = map(torch.as_tensor, linear_sum_assignment(-shares.numpy()))
                found[rows], right[rows] = texts[columns], shares[rows, columns]
            truths.append(truth)
            matches.append(found)
            rights.append(right)
    return torch.cat(truths), torch.cat(matches), torch.cat(rights)


# Sentences that were sent through a split network


@dataclass(frozen=True, eq=False)
class SentenceScores:
    right: Tensor  # (n,) share of a sentence's places with the right word
    known: float  # the same over all places whose word is not the unknown one
    bleu: float

    def metrics(self, prefix: str) -> dict[str, float]:
        return {
            f"{prefix}.token_accuracy": float(self.right.mean()),
            f"{prefix}.known_words": self.known,
            f"{prefix}.exact": float((self.right == 1).double().mean()),
            f"{prefix}.bleu": self.bleu,
        }


def score_sentences(
    secret: Secret, found: Reconstruction | Tensor, words: Sequence[str]
) -> SentenceScores:
    """Score the first candidate of each release, or tokens (n, l), against the sentence that was sent."""
    truth = secret.open().inputs
    tokens = found if isinstance(found, Tensor) else found.candidates[:, 0]
    if tokens.shape != truth.shape:
        raise ExhumeError(
            f"sentences: {tuple(tokens.shape)} tokens found, {tuple(truth.shape)} were sent"
        )
    real = truth != PADDING
    right = ((tokens == truth) & real).double().sum(1) / real.sum(1)
    named = real & (truth != UNKNOWN)
    known = float((tokens == truth)[named].double().mean()) if bool(named.any()) else 0.0
    seen = torch.where(real, tokens, torch.full_like(tokens, PADDING))
    return SentenceScores(right, known, bleu(read_out(seen, words), read_out(truth, words)))


def bleu(found: Sequence[str], wanted: Sequence[str]) -> float:
    """BLEU of sentences whose words are set apart by blanks."""
    corpus_bleu = optional("sacrebleu", "text", "BLEU").corpus_bleu
    return float(corpus_bleu(list(found), [list(wanted)], tokenize="none", force=True).score)
