"""Texts that came back: against a naive count, against decoys, and lists of words."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch

from exhume.core.contract import (
    FILLED_UP,
    ExhumeError,
    Outcome,
    Reconstruction,
    Records,
    Secret,
    Status,
)
from exhume.score.batches import split_decoys
from exhume.score.intervals import clopper_pearson
from exhume.score.texts import (
    NOTHING,
    alike_lists,
    alike_texts,
    bleu,
    score_sentences,
    score_texts,
    score_words,
    token_shares,
)
from exhume.victims import keep_secret

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


def naive(truth, found, ordered, padding=PADDING):
    """The share of a text's tokens that another has."""
    longer = max(sum(token != padding for token in text) for text in (truth, found))
    if ordered:
        pairs = [(a, b) for a, b in zip(truth, found, strict=True) if a != padding]
        return sum(a == b for a, b in pairs) / longer
    real = Counter(a for a in truth if a != padding)
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


@pytest.mark.parametrize("padding", [PADDING, None])
@pytest.mark.parametrize("ordered", [True, False])
def test_every_number_by_hand(ordered, padding, key):
    """Two texts are held, one of them in another order; one is answered by nobody; decoys come back."""
    private, others = drawn(key.fold("p"), 8), drawn(key.fold("o"), 40)
    held, decoys = split_decoys(others, key)
    held.inputs[3] = private.inputs[1, torch.tensor([5, 1, 2, 3, 4, 0])]
    held.inputs[4] = private.inputs[2]
    order = torch.randperm(40, generator=key.fold("decoys").generator())
    others.inputs[order[20:]] = held.inputs
    found = private.inputs[:7].clone()
    for place in range(7):
        found[place, : min(place, 5)] = torch.randint(1, 20, (min(place, 5),))
    found = torch.cat([found, decoys.inputs[:3].flip(1)])
    pair = (keep_secret(private), answer(found))
    scores = score_texts([pair], others, key, padding=padding, ordered=ordered)

    def share(truth, text):
        return naive(truth.tolist(), text.tolist(), ordered, padding)

    def same(truth, text):
        return all(truth == text) if ordered else sorted(truth.tolist()) == sorted(text.tolist())

    table = [[share(truth, text) for text in held.inputs] for truth in private.inputs]
    bars = [max(row) for row in table]
    likest = [held.inputs[row.index(max(row))] for row in table]
    usual = torch.stack([column.mode().values for column in held.inputs.T])
    known = [same(*two) for two in zip(private.inputs, likest, strict=True)]
    right = scores.evidence["right_share"].tolist()
    matched = scores.evidence["reconstructions"]
    new = [i for i in range(8) if not known[i]]
    won = sum(right[i] > bars[i] for i in new)
    lucky = sum(
        max(share(decoy, text) for text in found) > max(share(decoy, text) for text in held.inputs)
        for decoy in decoys.inputs
    )
    pairs = list(zip(private.inputs, matched, strict=True))
    low, high = clopper_pearson(won, len(new))
    assert known == [False, not ordered, True] + [False] * 5
    assert won < len(new)
    expected = {
        "targets": 8,
        "candidates": 10,
        "token_accuracy": sum(right) / 8,
        "whole_texts": sum(map(bool, (same(*two) for two in pairs))) / 8,
        "word_accuracy": sum(naive(a.tolist(), b.tolist(), False, padding) for a, b in pairs) / 8,
        "oracle_token_accuracy": sum(bars) / 8,
        "usual_token_accuracy": sum(share(truth, usual) for truth in private.inputs) / 8,
        "pool": 20,
        "duplicates": len(known) - len(new),
        "decoys": 20,
        "success": won / len(new),
        "success_low": low,
        "success_high": high,
        "null_success": lucky / 20,
    }
    assert {name: scores.metrics[name] for name in expected} == pytest.approx(expected)
    assert lucky >= (0 if ordered else 3)
    assert torch.equal(scores.evidence["nearest"], torch.stack(likest))
    assert right == pytest.approx([share(a, b) for a, b in pairs])
    assert torch.equal(scores.evidence["labels"], private.labels)


def test_many_texts_are_counted_part_by_part(key):
    texts = torch.randint(1, 9, (600, 5), generator=key.generator())
    table = alike_texts(None, ordered=False)(texts, texts[:2])
    want = [[naive(truth, text, False) for truth in texts[:2].tolist()] for text in texts.tolist()]
    torch.testing.assert_close(table, torch.tensor(want, dtype=torch.float64))


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
    assert short.metrics["targets"] == 8
    decoys = split_decoys(others, key)[1].inputs.tolist()
    told = sum(all(token in listed for token in row if token != PADDING) for row in decoys)
    assert short.metrics["null_success"] == told / 150
    assert torch.equal(short.evidence["listed"], words[:5, 0])
    foreign = score_words([(secret, answer([[1000], [1000], [int(words[1])]]))], others, key,
                          padding=PADDING)  # fmt: skip
    assert foreign.metrics["false_words"] == 2
    ten = Records(others.inputs[:10], others.labels[:10], others.classes)
    assert score_words([(secret, answer(words))], ten, key, padding=PADDING).metrics["decoys"] == 5
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
    lists = [set(row.tolist()) - {PADDING} for row in private.inputs]
    decoys = [set(row.tolist()) - {PADDING} for row in split_decoys(others, key)[1].inputs]
    told = sum(any(decoy <= words for words in lists) for decoy in decoys)
    assert scores.metrics["null_success"] == told / 150
    swapped = [(pairs[i][0], pairs[i - 1][1]) for i in range(12)]  # each gets another's list
    assert score_words(swapped, others, key, padding=PADDING).metrics["success"] == 0


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
    words = set(texts.inputs[0].tolist()) - {PADDING}
    rows = [[token for token in row if token != PADDING] for row in texts.inputs.tolist()]
    want = [sum(token in words for token in row) / len(row) for row in rows]
    assert listed.tolist() == [pytest.approx(want)]
    assert want[0] == 1
    empty = torch.full((1, PLACES), PADDING)
    assert alike_lists(PADDING)(texts.inputs[0][:, None], empty).tolist() == [[0.0]]
    assert alike_texts(PADDING, ordered=True)(empty, empty).tolist() == [[0.0]]
    assert alike_texts(PADDING, ordered=False)(empty[:0], texts.inputs).shape == (0, 100)


def scored(candidates, truth, decoys, confidence=None, padding=None):
    candidates, truth = torch.tensor(candidates), torch.tensor(truth).float()
    confidence = torch.zeros(candidates.shape[:2]) if confidence is None else confidence
    found = Reconstruction(candidates, confidence, Status(Outcome.CONVERGED))
    secret = Secret(Records(truth, torch.zeros(truth.shape[:2], dtype=torch.long), ("a",)))
    return token_shares(secret, found, torch.tensor(decoys), padding=padding)


def test_order_counts_in_one_and_not_in_the_other():
    scores = scored([[[4, 3, 2, 1], [7, 7, 8, 9]]], [[[1, 2, 3, 4], [7, 8, 8, 9]]], [[0, 0, 0, 0]])
    assert scores["token_accuracy"] == (0 + 0.75) / 2
    assert scores["bag_accuracy"] == (1 + 0.75) / 2  # one 8 of two, both others
    assert (scores["exact"], scores["exact_bags"]) == (0, 0.5)
    assert scores["null_token_accuracy"] == scores["null_bag_accuracy"] == 0


def test_one_candidate_serves_one_record_and_decoys_choose():
    scores = scored([[[1, 2], [1, 2]]], [[[1, 2], [1, 3]]], [[1, 9], [2, 1]])
    assert scores["token_accuracy"] == (1 + 0.5) / 2
    assert scores["null_token_accuracy"] == (0.5 + 0) / 2
    assert scores["null_bag_accuracy"] == (0.5 + 1) / 2


def test_releases_are_matched_each_for_itself():
    scores = scored([[[1, 2]], [[3, 4]]], [[[3, 4]], [[3, 4]]], [[3, 9]])
    assert (scores["token_accuracy"], scores["exact"]) == (0.5, 0.5)
    assert scores["null_token_accuracy"] == 0.5


def test_padding_does_not_count():
    plain = scored([[[1, 9, 0, 0]]], [[[1, 2, 0, 0]]], [[5, 6, 0, 0]])
    without = scored([[[1, 9, 0, 0]]], [[[1, 2, 0, 0]]], [[5, 6, 0, 0]], padding=0)
    assert (plain["token_accuracy"], plain["null_token_accuracy"]) == (0.75, 0.5)
    assert (without["token_accuracy"], without["null_token_accuracy"]) == (0.5, 0)


def test_filled_places_are_no_candidates():
    confidence = torch.tensor([[0.0, FILLED_UP]])
    scores = scored([[[1, 2], [0, 0]]], [[[1, 2], [0, 0]]], [[0, 0]], confidence)
    assert (scores["token_accuracy"], scores["null_token_accuracy"]) == (0.5, 0)
    nothing = scored([[[1, 2]]], [[[1, 2]]], [[1, 2]], torch.tensor([[FILLED_UP]]))
    assert nothing["token_accuracy"] == nothing["null_token_accuracy"] == pytest.approx(0)


VOCABULARY = ("<padding>", "<unknown>", "<start>", "<end>", "a", "dog", "runs", "here", "today")


def secret_of(rows):
    inputs = torch.tensor(rows, dtype=torch.float32)
    return Secret(Records(inputs, torch.zeros(len(rows), dtype=torch.long), ("sentence",)))


def test_only_words_count():
    truth = secret_of([[4, 5, 6, 7, 8], [5, 6, 0, 0, 0]])
    found = torch.tensor([[4, 5, 6, 7, 5], [5, 4, 0, 0, 0]]).float()
    scores = score_sentences(truth, found, VOCABULARY)
    assert scores.right.tolist() == pytest.approx([0.8, 0.5])
    padded = found.clone()
    padded[1, 2:] = 5  # where nothing was sent
    assert score_sentences(truth, padded, VOCABULARY).right.tolist() == pytest.approx([0.8, 0.5])
    assert score_sentences(truth, padded, VOCABULARY).bleu == scores.bleu
    metrics = scores.metrics("row")
    assert metrics["row.token_accuracy"] == pytest.approx(0.65)
    assert metrics["row.exact"] == 0
    whole = Reconstruction(
        truth.open().inputs[:, None], torch.zeros(2, 1), Status(Outcome.CONVERGED)
    )
    assert score_sentences(truth, whole, VOCABULARY).metrics("row") == {
        "row.token_accuracy": 1,
        "row.known_words": 1,
        "row.exact": 1,
        "row.bleu": pytest.approx(100),
    }


def test_the_unknown_word_is_counted_apart():
    truth = secret_of([[4, 1, 1, 5], [1, 6, 0, 0]])
    found = torch.tensor([[4, 1, 1, 6], [1, 7, 0, 0]]).float()
    scores = score_sentences(truth, found, VOCABULARY)
    assert scores.right.tolist() == pytest.approx([0.75, 0.5])
    assert scores.known == pytest.approx(1 / 3)
    assert score_sentences(secret_of([[1, 1, 0]]), torch.ones(1, 3), VOCABULARY).known == 0


def test_bleu_equals_its_definition():
    """One sentence of six words, one of them wrong: 5/6, 3/5, 1/4 and 0/3, the last smoothed to 1/6."""
    assert bleu(["a dog runs here today dog"], ["a dog runs here today dog"]) == pytest.approx(100)
    shares = 5 / 6 * 3 / 5 * 1 / 4 * (1 / 2) / 3
    found, wanted = "a dog runs cat here today", "a dog runs dog here today"
    assert bleu([found], [wanted]) == pytest.approx(100 * shares**0.25)


def test_what_does_not_fit_is_said(monkeypatch):
    with pytest.raises(ExhumeError, match=r"\(1, 2\) tokens found, \(1, 3\) were sent"):
        score_sentences(secret_of([[4, 5, 6]]), torch.zeros(1, 2), VOCABULARY)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ExhumeError, match=r"pip install 'exhume\[text\]'"):
        bleu(["a"], ["a"])
