from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cosine_similarity

from exhume.core.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.intervals import clopper_pearson, detectable_rate
from exhume.score.updates import against_decoys, dealt, score_updates


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
    held, decoys = dealt(others, key)
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
        parts = dealt(records_of(torch.arange(float(count))[:, None]), key)
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
