"""Texts on the page: what is marked right, what wrong, and what a damaged file says."""

from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Shard
from exhume.report.texts import texts_of

WORDS = {"1": "the", "2": "cat", "3": "sat", "4": "<b>"}


def read(tensors, classes=(), *, ordered=True):
    """What the page shows of this evidence."""
    lexicon = {"padding": 0, "ordered": ordered, "words": WORDS}
    return texts_of(Shard(tensors, {"lexicon": lexicon}), list(classes))


def told(words):
    return [(word.text, word.right) for word in words]


def test_words_at_their_place():
    evidence = {
        "targets": torch.tensor([[2, 1, 3, 0], [1, 2, 3, 3]]),
        "reconstructions": torch.tensor([[-1, -1, -1, -1], [1, 3, 3, 0]]),
        "right_share": torch.tensor([0.0, 0.5]),
        "labels": torch.tensor([1, 0]),
    }
    texts = read(evidence, ["good", "bad"])
    first, second = texts.rows  # the one that came back best is first
    assert told(first.original) == [("the", True), ("cat", False), ("sat", True), ("sat", False)]
    assert told(first.found) == [("the", True), ("sat", False), ("sat", True)]
    assert (first.label, first.share, second.found) == ("good", 0.5, None)
    assert told(second.original) == [("cat", False), ("the", False), ("sat", False)]


def test_words_anywhere():
    evidence = {
        "targets": torch.tensor([[2, 1, 1, 0]]),
        "reconstructions": torch.tensor([[0, 1, 2, 9]]),
    }
    row = read(evidence, ordered=False).rows[0]
    assert told(row.original) == [("cat", True), ("the", True), ("the", False)]
    assert told(row.found) == [("the", True), ("cat", True), ("#9", False)]


def test_lists_and_nothing_to_compare_with():
    lists = read({"listed": torch.tensor([2, 3])})
    assert (lists.listed, lists.rows, lists.truth) == (("cat", "sat"), (), False)
    covered = {
        "targets": torch.tensor([[2, 3, 0]]),
        "covered": torch.tensor([[True, False, True]]),
        "listed": torch.tensor([2]),
    }
    row = read(covered, ordered=False).rows[0]
    assert told(row.original) == [("cat", True), ("sat", False)]
    alone = read({"reconstructions": torch.tensor([[2, 3]])})
    assert told(alone.rows[0].found) == [("cat", None), ("sat", None)]
    assert texts_of(Shard({"targets": torch.zeros(1, 2)}), []) is None


def test_a_damaged_lexicon():
    broken = Shard({}, {"lexicon": {"padding": 0}})
    with pytest.raises(ExhumeError, match="its words are damaged"):
        texts_of(broken, [])
