from __future__ import annotations

import torch

from exhume.contract import Outcome, Reconstruction, Records, Secret, Status
from exhume.score.tokens import score_tokens


def scored(candidates, truth, decoys, confidence=None):
    candidates, truth = torch.tensor(candidates).float(), torch.tensor(truth).float()
    confidence = torch.zeros(candidates.shape[:2]) if confidence is None else confidence
    found = Reconstruction(candidates, confidence, Status(Outcome.CONVERGED))
    secret = Secret(Records(truth, torch.zeros(truth.shape[:2], dtype=torch.long), ("a",)))
    return score_tokens(secret, found, torch.tensor(decoys))


def test_order_counts_in_one_and_not_in_the_other():
    scores = scored([[[4, 3, 2, 1], [7, 7, 8, 9]]], [[[1, 2, 3, 4], [7, 8, 8, 9]]], [[0, 0, 0, 0]])
    assert scores.ordered.tolist() == [[0, 0.75]]
    assert scores.bags.tolist() == [[1, 0.75]]  # one 8 of two, both others
    metrics = scores.metrics()
    assert (metrics["exact"], metrics["exact_bags"]) == (0, 0.5)
    assert metrics["null_token_accuracy"] == metrics["null_bag_accuracy"] == 0


def test_one_candidate_serves_one_record_and_decoys_choose():
    scores = scored([[[1, 2], [1, 2]]], [[[1, 2], [1, 3]]], [[1, 9], [2, 1]])
    assert scores.ordered.tolist() == [[1, 0.5]]
    assert scores.null_ordered.tolist() == [0.5, 0]
    assert scores.null_bags.tolist() == [0.5, 1]


def test_filled_places_are_no_candidates():
    confidence = torch.tensor([[0.0, -torch.inf]])
    scores = scored([[[1, 2], [0, 0]]], [[[1, 2], [0, 0]]], [[0, 0]], confidence)
    assert scores.ordered.tolist() == [[1, 0]]
    assert scores.null_ordered.tolist() == [0]
    nothing = scored([[[1, 2]]], [[[1, 2]]], [[1, 2]], torch.tensor([[-torch.inf]]))
    assert nothing.metrics()["token_accuracy"] == nothing.metrics()["null_token_accuracy"] == 0
