"""Texts that came back: against a naive count, against decoys, and lists of words."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from exhume.contract import ExhumeError, Outcome, Reconstruction, Records, Status
from exhume.score.texts import NOTHING, alike_lists, alike_texts, score_texts, score_words
from exhume.victims.updates import keep_secret

WORDS, PLACES, PADDING = 90, 6, 0


def drawn(key, count):
    tokens = torch.randint(1, WORDS, (count, PLACES), generator=key.generator())
    tokens[::3, 4:] = PADDING
    return Records(tokens, torch.arange(count) % 2, ("a", "b"))


def answer(tokens):
    tokens = torch.as_tensor(tokens)
    return Reconstruction(
        tokens[None], torch.zeros(1, len(tokens)), Status(Outcome.CONVERGED), observed={}
    )


def naive(truth, found, ordered):
    """The share of a text's tokens that another has."""
    longer = max(sum(token != PADDING for token in text) for text in (truth, found))
    if ordered:
        pairs = [(a, b) for a, b in zip(truth, found, strict=True) if a != PADDING]
        return sum(a == b for a, b in pairs) / longer
    real = Counter(a for a in truth if a != PADDING)
    return sum((real & Counter(found)).values()) / longer


@pytest.mark.parametrize("ordered", [True, False])
def test_everything_came_back(ordered, key):
    private, others = drawn(key.fold("p"), 12), drawn(key.fold("o"), 300)
    found = private.inputs.flip(0) if ordered else private.inputs.flip(0).flip(1)
    pair = (keep_secret(private), answer(found))
    scores = score_texts([pair], others, key, padding=PADDING, ordered=ordered)
    m = scores.metrics
    assert (m["token_accuracy"], m["whole_texts"], m["word_accuracy"], m["success"]) == (1, 1, 1, 1)
    assert m["null_success"] < 0.1
    assert m["usual_token_accuracy"] < m["oracle_token_accuracy"] < 0.7
    assert torch.equal(scores.evidence["targets"], private.inputs)


@pytest.mark.parametrize("ordered", [True, False])
def test_shares_are_those_of_a_naive_count(ordered, key):
    private = drawn(key.fold("p"), 4)
    found = private.inputs.clone()
    found[:, 1] = torch.randint(1, WORDS, (4,), generator=key.generator())
    found[:, [0, 2]] = found[:, [2, 0]]
    found[0, 5] = 7  # one token too many
    scores = score_texts(
        [(keep_secret(private), answer(found))], None, key, padding=PADDING, ordered=ordered
    )
    matched = scores.evidence["reconstructions"]
    pairs = zip(private.inputs.tolist(), matched.tolist(), strict=True)
    want = [naive(a, b, ordered) for a, b in pairs]
    assert scores.evidence["right_share"].tolist() == pytest.approx(want)
    assert scores.metrics["token_accuracy"] == pytest.approx(sum(want) / 4)
    assert "success" not in scores.metrics


def test_what_is_held_already_does_not_count(key):
    private, others = drawn(key.fold("p"), 6), drawn(key.fold("o"), 200)
    others = Records(
        torch.cat([others.inputs, *[private.inputs[:2]] * 40]), torch.zeros(280).long(), ()
    )
    pair = (keep_secret(private), answer(private.inputs))
    scores = score_texts([pair], others, key, padding=PADDING, ordered=True)
    assert scores.metrics["duplicates"] == 2
    assert scores.metrics["success"] == 1


def test_nothing_and_chance(key):
    private, others = drawn(key.fold("p"), 12), drawn(key.fold("o"), 300)
    empty = (keep_secret(private), answer(torch.zeros(0, PLACES, dtype=torch.int64)))
    scores = score_texts([empty], others, key, padding=PADDING, ordered=True)
    assert bool((scores.evidence["reconstructions"] == NOTHING).all())
    assert scores.metrics["success"] == 0
    guessed = (keep_secret(private), answer(drawn(key.fold("g"), 12).inputs))
    scores = score_texts([guessed], others, key, padding=PADDING, ordered=True)
    assert scores.metrics["success_low"] <= scores.metrics["null_success_high"]
    with pytest.raises(ExhumeError, match="there is nothing to score"):
        score_texts([], others, key, padding=PADDING, ordered=True)


def test_lists_of_words(key):
    private, others = drawn(key.fold("p"), 8), drawn(key.fold("o"), 300)
    secret = keep_secret(private)
    words = private.inputs.unique()[:, None]
    few = score_words([(keep_secret(private[:2]), answer(private.inputs[:2].unique()[:, None]))],
                      others, key, padding=PADDING)  # fmt: skip
    assert (few.metrics["success"], few.metrics["false_words"]) == (1, 1)  # padding is on the list
    assert few.metrics["null_success"] < 0.1
    short = score_words([(secret, answer(words[:5]))], others, key, padding=PADDING)
    listed = set(words[1:5, 0].tolist())  # the first is padding
    real = [[token for token in row if token != PADDING] for row in private.inputs.tolist()]
    want = [sum(token in listed for token in row) / len(row) for row in real]
    assert short.evidence["right_share"].tolist() == pytest.approx(want)
    assert short.metrics["word_accuracy"] == pytest.approx(sum(want) / 8)
    assert short.metrics["listed"] == 5
    everything = torch.arange(WORDS)[:, None]
    all_of = score_words([(secret, answer(everything))], others, key, padding=PADDING)
    assert all_of.metrics["null_success"] == 1
    assert all_of.metrics["detectable_rate"] == 1  # a list of everything tells nothing
    alone = score_words([(secret, answer(words))], None, key, padding=PADDING)
    assert "success" not in alone.metrics


def test_a_list_that_leaks(key):
    private, others = drawn(key.fold("p"), 12), drawn(key.fold("o"), 300)
    pairs = [
        (keep_secret(private[i : i + 1]), answer(private.inputs[i].unique()[:, None]))
        for i in range(12)
    ]
    scores = score_words(pairs, others, key, padding=PADDING)
    assert scores.metrics["success_low"] > scores.metrics["null_success_high"]
    assert bool(scores.evidence["covered"].all())


def test_texts_in_a_line_up(key):
    texts = drawn(key.fold("p"), 100)
    found = texts.inputs[:3].clone()
    found[:, 0] = 1
    ordered, bags = (
        alike_texts(PADDING, ordered=way)(found, texts.inputs) for way in (True, False)
    )
    assert ordered.shape == bags.shape == (3, 100)
    assert torch.equal(ordered.argmax(1), torch.arange(3))
    assert (bags >= ordered).all()
    listed = alike_lists(PADDING)(texts.inputs[0].unique()[:, None], texts.inputs)
    assert listed.shape == (1, 100)
    assert float(listed[0, 0]) == 1
