from __future__ import annotations

import pytest

from exhume.contract import ExhumeError
from exhume.victims.tokens import corpus_of

SENTENCES = ("Go on!", "Go on!", "Is it late?", "It is late, isn't it.", "a b c d e f g h i j")


def test_sentences_become_numbers_and_back():
    corpus = corpus_of(SENTENCES, length=7, vocabulary=9)
    assert len(corpus.records) == 3  # one twice, one too long
    assert corpus.records.labels.tolist() == [2, 1, 0]
    assert corpus.words[:5] == ("<padding>", "<unknown>", "it", "is", "late")
    assert corpus.records.inputs[1].tolist()[:3] == [3, 2, 4]
    assert corpus.text(corpus.records.inputs[1].long().tolist()) == "is it late ?"
    assert "<unknown>" in corpus.text(corpus.records.inputs[0].long().tolist())  # too rare


def test_what_makes_no_corpus():
    with pytest.raises(ExhumeError, match="none of 2 has 1 to 1 words"):
        corpus_of(SENTENCES[:2], length=1, vocabulary=9)
    with pytest.raises(ExhumeError, match="at least 1 and 3 are needed, got 0 and 9"):
        corpus_of(SENTENCES, length=0, vocabulary=9)
