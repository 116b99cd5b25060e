from __future__ import annotations

import pytest
import torch

from exhume.contract import Outcome, Reconstruction, Records, Secret, Status
from exhume.score.batches import score_batches


def scored(candidates, truth, labels=None, **options):
    confidence = torch.zeros(candidates.shape[:2])
    confidence[candidates.flatten(2).abs().sum(2) == 0] = -torch.inf
    found = Reconstruction(candidates, confidence, Status(Outcome.CONVERGED), labels=labels)
    secret = Secret(Records(truth, torch.zeros(truth.shape[:2], dtype=torch.long), ("a",)))
    return score_batches(secret, found, **options)


def test_a_permuted_batch_is_matched_one_to_one():
    truth = torch.rand(2, 4, 1, 3, 3)
    scores = scored(truth[:, [2, 0, 3, 1]], truth, labels=torch.zeros(2, 4, dtype=torch.long))
    assert scores.metrics()["min_cosine"] == pytest.approx(1)
    assert scores.metrics()["label_accuracy"] == 1
    torch.testing.assert_close(scores.matched, truth)


def test_one_candidate_serves_one_record():
    truth = torch.eye(3)[None]
    same = torch.tensor([[[1.0, 0, 0]] * 3])
    assert scored(same, truth).cosines.tolist() == [[1, 0, 0]]


def test_missing_and_surplus_candidates():
    truth = torch.eye(3)[None]
    few = torch.cat([truth[:, :2], torch.zeros(1, 1, 3)], 1)
    scores = scored(few, truth)
    assert scores.cosines.tolist() == [[1, 1, 0]]
    assert scores.sizes.tolist() == [2]
    assert float(scores.errors[0, 2]) == pytest.approx(2**0.5)
    many = torch.cat([torch.ones(1, 2, 3), truth], 1)
    assert scored(many, truth).cosines.tolist() == [[1, 1, 1]]


def test_the_sign_counts_unless_told_otherwise():
    truth = torch.eye(2)[None]
    assert float(scored(-truth, truth).cosines.max()) <= 0
    free = scored(-truth, truth, up_to_sign=True)
    assert free.cosines.tolist() == [[1, 1]]
    torch.testing.assert_close(free.matched, truth)
