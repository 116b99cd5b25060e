from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score import sentences
from exhume.score.sentences import bleu, score_sentences

WORDS = ("<padding>", "<unknown>", "<start>", "<end>", "a", "dog", "runs", "here", "today")


def secret_of(rows):
    inputs = torch.tensor(rows, dtype=torch.float32)
    return Secret(Records(inputs, torch.zeros(len(rows), dtype=torch.long), ("sentence",)))


def test_only_words_count():
    truth = secret_of([[4, 5, 6, 7, 8], [5, 6, 0, 0, 0]])
    found = torch.tensor([[4, 5, 6, 7, 5], [5, 4, 0, 0, 0]]).float()
    scores = score_sentences(truth, found, WORDS)
    assert scores.right.tolist() == pytest.approx([0.8, 0.5])
    padded = found.clone()
    padded[1, 2:] = 5  # where nothing was sent
    assert score_sentences(truth, padded, WORDS).right.tolist() == pytest.approx([0.8, 0.5])
    assert score_sentences(truth, padded, WORDS).bleu == scores.bleu
    metrics = scores.metrics("row")
    assert metrics["row.token_accuracy"] == pytest.approx(0.65)
    assert metrics["row.exact"] == 0
    whole = Reconstruction(
        truth.open().inputs[:, None], torch.zeros(2, 1), Status(Outcome.CONVERGED)
    )
    assert score_sentences(truth, whole, WORDS).metrics("row") == {
        "row.token_accuracy": 1,
        "row.known_words": 1,
        "row.exact": 1,
        "row.bleu": pytest.approx(100),
    }


def test_the_unknown_word_is_counted_apart():
    truth = secret_of([[4, 1, 1, 5], [1, 6, 0, 0]])
    found = torch.tensor([[4, 1, 1, 6], [1, 7, 0, 0]]).float()
    scores = score_sentences(truth, found, WORDS)
    assert scores.right.tolist() == pytest.approx([0.75, 0.5])
    assert scores.known == pytest.approx(1 / 3)
    assert score_sentences(secret_of([[1, 1, 0]]), torch.ones(1, 3), WORDS).known == 0


def test_bleu_equals_its_definition():
    """One sentence of six words, one of them wrong: 5/6, 3/5, 1/4 and 0/3, the last smoothed to 1/6."""
    assert bleu(["a dog runs here today dog"], ["a dog runs here today dog"]) == pytest.approx(100)
    shares = 5 / 6 * 3 / 5 * 1 / 4 * (1 / 2) / 3
    found, wanted = "a dog runs cat here today", "a dog runs dog here today"
    assert bleu([found], [wanted]) == pytest.approx(100 * shares**0.25)


def test_what_does_not_fit_is_said(monkeypatch):
    with pytest.raises(ExhumeError, match=r"\(1, 2\) tokens found, \(1, 3\) were sent"):
        score_sentences(secret_of([[4, 5, 6]]), torch.zeros(1, 2), WORDS)
    monkeypatch.setattr(sentences, "find_spec", lambda name: None)
    with pytest.raises(ExhumeError, match=r"pip install 'exhume\[text\]'"):
        bleu(["a"], ["a"])
