from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError
from exhume.models.split.seq2seq import Translator, read_out
from exhume.readers import TextPairs
from exhume.readers.sentences import pair_corpus, synthetic_pairs
from exhume.victims.split import release_sentences, translation_knowledge

PAIRS = TextPairs(
    ("A dog runs.", "A dog runs.", "The cat, a cat!", "One two three four five"),
    ("Ein Hund rennt.", "Ein Hund läuft.", "Die Katze!", "Eins zwei drei vier fünf"),
    ("en", "de"),
)


def test_sentences_become_numbers_and_back(key):
    corpus = pair_corpus(PAIRS, length=6, vocabulary=40, key=key)
    assert len(corpus) == 3  # one sentence is there twice
    assert (corpus.languages, corpus.source.shape) == (("en", "de"), (6,))
    assert corpus.target.shape == (3, 8)
    source = read_out(corpus.source.inputs, corpus.source_words)
    target = read_out(corpus.target, corpus.target_words)
    assert tuple(target) == corpus.references
    told = dict(zip(source, target, strict=True))
    assert told == {
        "a dog runs .": "ein hund läuft .",
        "the cat , a cat !": "die katze !",
        "one two three four five": "eins zwei drei vier fünf",
    }
    shorter = pair_corpus(PAIRS, length=4, vocabulary=40, key=key)
    assert read_out(shorter.source.inputs, shorter.source_words) == ["a dog runs ."]


def test_rare_words_are_unknown(key):
    corpus = pair_corpus(PAIRS, length=6, vocabulary=6, key=key)
    assert corpus.source_words[4:] == ("a", "cat")
    assert "a <unknown> <unknown> <unknown>" in read_out(corpus.source.inputs, corpus.source_words)
    assert "ein hund läuft ." in corpus.references


def test_parts_are_dealt_without_overlap(key):
    corpus = pair_corpus(
        synthetic_pairs(60, words=9, length=6, key=key), length=6, vocabulary=20, key=key
    )
    first, second = corpus.deal(20, 10)
    assert (len(first), len(second)) == (20, 10)
    assert torch.equal(torch.cat([first.target, second.target]), corpus.target[:30])
    assert (*first.references, *second.references) == corpus.references[:30]
    with pytest.raises(ExhumeError, match=r"1010 needed \(1000 \+ 10\), \d+ available"):
        corpus.deal(1000, 10)


def test_made_up_sentences_translate_word_by_word(key):
    pairs = synthetic_pairs(50, words=9, length=6, key=key)
    assert pairs == synthetic_pairs(50, words=9, length=6, key=key)
    for a, b in zip(pairs.source, pairs.target, strict=True):
        assert a.replace("a", "b") == b
        assert 3 <= len(a.split()) <= 6
    with pytest.raises(ExhumeError, match="at least 1, 2, 3"):
        synthetic_pairs(5, words=1, length=6, key=key)


def test_what_the_server_knows(key):
    corpus = pair_corpus(
        synthetic_pairs(60, words=9, length=6, key=key), length=6, vocabulary=13, key=key
    )
    net = Translator(13, 13, width=8, heads=2, layers=1, hidden=8)
    words, body = net.words(key), net.body(key)
    held, earlier, private = corpus.deal(20, 10, 5)
    release, secret = release_sentences(words, private.source)
    assert release.values.shape == (5, 6, 8)
    assert torch.equal(secret.open().inputs, private.source.inputs)
    known = translation_knowledge(words, body, held.source, held.target, earlier=earlier.source)
    assert known.known() == ("shadow", "answers", "features", "seen", "parts")
    assert set(known.parts) == {"body0"}
    noise = torch.ones(6, 8)
    loud = translation_knowledge(
        words, body, held.source, held.target, earlier=earlier.source, noise=noise, with_table=True
    )
    assert loud.parts["head"] is words
    assert not torch.equal(loud.seen, known.seen)
    with pytest.raises(ExhumeError, match="no sentence to send"):
        release_sentences(words, private.source[:0])


def test_illegal_corpora(key):
    with pytest.raises(ExhumeError, match="at least 1 and 5 are needed, got 6 and 4"):
        pair_corpus(PAIRS, length=6, vocabulary=4, key=key)
    with pytest.raises(ExhumeError, match="none of 4 has 1 to 1 words on both sides"):
        pair_corpus(PAIRS, length=1, vocabulary=9, key=key)
