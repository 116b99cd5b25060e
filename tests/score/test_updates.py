from __future__ import annotations

import pytest
import torch

from exhume.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.updates import score_updates


def records_of(inputs):
    return Records(inputs, torch.zeros(len(inputs), dtype=torch.long), ("a",))


def answer(truth, found, labels=None):
    secret = Secret(Records(truth[None], torch.zeros(1, len(truth), dtype=torch.long), ("a",)))
    status = Status(Outcome.CONVERGED)
    labels = None if labels is None else labels[None]
    return secret, Reconstruction(found[None], torch.zeros(1, len(found)), status, labels=labels)


@pytest.fixture
def pictures(key):
    return torch.rand(300, 1, 6, 6, generator=key.generator())


def test_what_is_missing_has_not_come_back(pictures, key):
    private, others = pictures[:4].clone(), records_of(pictures[4:])
    private[3] *= 1e-3  # dark: an empty answer would be closer to it than any other record
    scores = score_updates([answer(private, private[:3])], others, key)
    assert scores.metrics["success"] == scores.metrics["recovered"] == 0.75
    assert scores.metrics["candidates"] == 3
    assert scores.metrics["decoys"] == scores.metrics["pool"] == 148
    assert "label_accuracy" not in scores.metrics


def test_decoys_have_their_choice(pictures, key):
    """Candidates that are other people's records: no target comes back, the decoys do."""
    private, others = pictures[:4], pictures[4:]
    found = others + 0.001
    scores = score_updates([answer(private, found)], records_of(others), key)
    assert scores.metrics["null_success"] == 1
    assert (
        scores.metrics["detectable_rate"] == 1
    )  # even certain success would not differ from chance


def test_clients_are_matched_with_their_own_candidates(pictures, key):
    first, second = pictures[:3], pictures[3:6]
    others = records_of(pictures[6:])
    labels = torch.zeros(3, dtype=torch.long)
    swapped = [answer(first, second, labels), answer(second, first, labels)]
    right = [answer(first, first.flip(0), labels), answer(second, second, labels)]
    assert score_updates(swapped, others, key).metrics["recovered"] == 0
    scores = score_updates(right, others, key)
    assert scores.metrics["recovered"] == scores.metrics["label_accuracy"] == 1
    torch.testing.assert_close(scores.evidence["targets"], pictures[:6])
    torch.testing.assert_close(scores.evidence["reconstructions"], pictures[:6])


def test_without_others_there_is_no_rate(pictures, key):
    for others in (None, records_of(pictures[4:13])):
        scores = score_updates([answer(pictures[:4], pictures[:4])], others, key)
        assert "success" not in scores.metrics
        assert scores.metrics["recovered"] == 1
        assert "oracle_mse" not in scores.evidence


def test_nothing_found_and_nothing_given(pictures, key):
    scores = score_updates([answer(pictures[:4], pictures[:0])], records_of(pictures[4:]), key)
    assert scores.metrics["success"] == scores.metrics["null_success"] == 0
    with pytest.raises(ExhumeError, match="there is nothing to score"):
        score_updates([], None, key)
