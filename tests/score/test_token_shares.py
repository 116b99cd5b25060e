from __future__ import annotations

import pytest
import torch

from exhume.core.contract import FILLED_UP, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.texts import token_shares


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
