from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cosine_similarity

from exhume.core.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.batches import (
    BatchScores,
    against_decoys,
    score_batches,
    score_updates,
    split_decoys,
)
from exhume.score.intervals import clopper_pearson, detectable_rate


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


def test_every_number_by_hand(pictures, key):
    """Some answers are good, one record is held already, and some decoys are near to a candidate."""
    private, others = pictures[:8], records_of(pictures[8:68])
    held, decoys = split_decoys(others, key)
    known = torch.cat([private[:1] + 1e-3, held.inputs[1:]])
    others.inputs[torch.randperm(60, generator=key.fold("decoys").generator())[30]] = known[0]
    noise = torch.rand(8, 1, 6, 6, generator=key.fold("noise").generator()) - 0.5
    found = private + torch.linspace(0, 3, 8)[:, None, None, None] * noise
    found = torch.cat([found[:7], decoys.inputs[:2] + 0.01])
    scores = score_updates([answer(private, found)], others, key)
    apart = (private[:, None] - known).double().square().flatten(2).mean(2)
    bar = apart.amin(1)
    errors = (scores.evidence["reconstructions"] - private).double().square().flatten(1).mean(1)
    won = int((errors < bar)[1:].sum())
    decoy_bar = (decoys.inputs[:, None] - known).double().square().flatten(2).mean(2).amin(1)
    chosen = (decoys.inputs[:, None] - found).double().square().flatten(2).mean(2).amin(1)
    lucky = int((chosen < decoy_bar).sum())
    assert 2 <= won < 7
    assert 2 <= lucky < 30
    low, high = clopper_pearson(won, 7)
    null_low, null_high = clopper_pearson(lucky, 30)
    metrics = scores.metrics
    expected = {
        "targets": 8,
        "candidates": 9,
        "recovered": float(
            (
                cosine_similarity(private.flatten(1), scores.evidence["reconstructions"].flatten(1))
                >= 0.99
            )
            .double()
            .mean()
        ),
        "mse": float(errors.mean()),
        "oracle_mse": float(bar.mean()),
        "pool": 30,
        "duplicates": 1,
        "decoys": 30,
        "success": won / 7,
        "success_low": low,
        "success_high": high,
        "null_success": lucky / 30,
        "null_success_low": null_low,
        "null_success_high": null_high,
        "detectable_rate": detectable_rate(7, null_high),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(scores.evidence["nearest"], known[apart.argmin(1)])
    torch.testing.assert_close(scores.evidence["oracle_mse"], bar)


def test_what_is_held_and_what_are_decoys(key):
    for count, held, decoys in ((11, 6, 5), (999, 500, 499), (1002, 502, 500), (3000, 2000, 500)):
        parts = split_decoys(records_of(torch.arange(float(count))[:, None]), key)
        assert [len(part) for part in parts] == [held, decoys]
        values = torch.cat([part.inputs for part in parts])
        assert len(values.unique()) == held + decoys
    assert parts[0].inputs.max() > 2500 < parts[1].inputs.max()  # drawn at random


def test_without_records_to_score_there_is_no_success():
    rates = against_decoys(torch.zeros(0, dtype=torch.bool), torch.tensor([True, False]))
    assert (rates["success"], rates["success_low"], rates["success_high"]) == (0.0, 0.0, 1.0)
    assert (rates["null_success"], rates["detectable_rate"], rates["decoys"]) == (0.5, 1.0, 2)


def test_ten_others_are_enough(pictures, key):
    scores = score_updates([answer(pictures[:4], pictures[:4])], records_of(pictures[4:14]), key)
    assert (scores.metrics["pool"], scores.metrics["decoys"]) == (5, 5)


def test_a_label_for_every_candidate_or_no_accuracy(pictures, key):
    labels = torch.tensor([0, 0, 1, 0])
    pair = answer(pictures[:4], pictures[:4], labels)
    assert score_updates([pair], None, key).metrics["label_accuracy"] == 0.75
    unknown = answer(pictures[:4], pictures[:4], torch.tensor([0, 0, -1, 0]))
    assert "label_accuracy" not in score_updates([pair, unknown], None, key).metrics


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
