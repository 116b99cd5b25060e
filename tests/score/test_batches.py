from __future__ import annotations

import pytest
import torch

from exhume.core.contract import Outcome, Reconstruction, Records, Secret, Status
from exhume.score.batches import BatchScores, score_batches


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


def test_the_metrics_are_those_of_a_loop(key):
    generator = key.generator()
    truth = torch.rand(2, 3, 1, 2, 2, generator=generator)
    found = truth + 0.2 * torch.randn(truth.shape, generator=generator)
    found[0, 1] = truth[0, 1]
    found[1, 2] = 0
    scores = scored(found, truth, labels=torch.tensor([[0, 0, 1], [1, 0, 0]]))
    metrics = scores.metrics()
    cosines = torch.nn.functional.cosine_similarity(found.flatten(2), truth.flatten(2), dim=2)
    torch.testing.assert_close(scores.cosines, cosines.double())
    assert metrics["min_cosine"] == 0
    assert metrics["mean_cosine"] == pytest.approx(float(cosines.mean()))
    assert metrics["recovered"] == pytest.approx(float((cosines >= 0.99).double().mean()))
    decibels = -10 * torch.log10((found - truth).square().flatten(2).mean(2).double())
    torch.testing.assert_close(scores.psnr, decibels.clamp(max=100))
    assert metrics["psnr"] == pytest.approx(float(scores.psnr.mean()))
    assert (metrics["batch_size_right"], scores.sizes.tolist()) == (0.5, [3, 2])
    assert scores.labels_right.tolist() == [[True, True, False], [False, True, False]]
    assert metrics["label_accuracy"] == 0.5
    units = (torch.nn.functional.normalize(one.flatten(2), dim=2) for one in (found, truth))
    apart = torch.sub(*units).norm(dim=2).double()
    apart[1, 2] = 2**0.5
    torch.testing.assert_close(scores.errors, apart, atol=1e-3, rtol=0)


def test_what_counts_as_recovered():
    exact = BatchScores(torch.tensor([[0.99, 0.98]], dtype=torch.float64), *[torch.zeros(1, 2)] * 4)
    assert exact.metrics()["recovered"] == 0.5
    truth = torch.tensor([[[1.0, 0], [0, 1]]])
    found = torch.tensor([[[1.0, 0.1424], [0.1426, 1.0]]])  # tan arccos 0.99 = 0.14249
    scores = scored(found, truth)
    assert scores.metrics()["recovered"] == 0.5
    assert scores.metrics()["label_accuracy"] == 0


def test_labels_go_with_the_candidates_that_were_found(key):
    """An empty place before them does not move them."""
    truth = torch.eye(3)[None, :2]
    found = torch.stack([torch.zeros(3), truth[0, 1], truth[0, 0]])[None]
    assert scored(found, truth, labels=torch.tensor([[0, 1, 0]])).labels_right.tolist() == [
        [True, False]
    ]


def test_features_in_place_of_the_records(key):
    truth = torch.rand(2, 3, 4, generator=key.generator()) - 0.5
    found = truth[:, [1, 2, 0]].square()
    scores = scored(found, truth, through=torch.square)
    assert scores.metrics()["min_cosine"] == pytest.approx(1)
    torch.testing.assert_close(scores.matched, truth.square())
    assert scored(truth, truth, through=torch.square).metrics()["mean_cosine"] < 0.9


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
    mixed = scored(truth * torch.tensor([[[1.0], [-1.0]]]), truth, up_to_sign=True)
    assert mixed.cosines.tolist() == [[1, 1]]
    assert scored(-truth[:, :1], truth[:, :1]).cosines.tolist() == [[-1]]
    assert float(scored(-truth[:, :1], truth[:, :1]).errors) == pytest.approx(2)
