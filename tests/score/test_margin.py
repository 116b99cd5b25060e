from __future__ import annotations

import pytest
import torch

from exhume.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.margin import match, score_margin


def pictures(count, key):
    return torch.rand(count, 3, 12, 12, generator=key.generator())


def test_planted_candidates_are_matched_to_their_images(key):
    images = pictures(6, key.fold("images"))
    centre = images.mean(0)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    noise = 0.05 * pictures(6, key.fold("noise"))
    found = match((images[order] + noise).clamp(0, 1), images, centre)
    assert torch.equal(order[found.index], torch.arange(6))
    assert bool(found.good.all())
    assert float(found.correlation.min()) > 0.9


def test_members_decoys_and_the_rate_at_one_percent(key):
    images, strangers = pictures(10, key.fold("images")), pictures(300, key.fold("decoys"))
    labels = torch.zeros(10, dtype=torch.long)
    secret = Secret(Records(images, labels, ("a",)))
    decoys = Records(strangers, torch.zeros(300, dtype=torch.long), ("a",))
    candidates = torch.cat([images[:7], strangers[:6], pictures(5, key.fold("noise"))])
    pool = Reconstruction(candidates[None], torch.zeros(1, 18), Status(Outcome.CONVERGED))
    scores = score_margin(secret, pool, decoys, images.mean(0))
    assert scores.metrics["good"] == 7
    assert scores.metrics["decoy_rate"] == pytest.approx(6 / 300)
    assert (
        scores.metrics["tpr_at_1pct"] == 0
    )  # 2% of the decoys match exactly: no threshold separates
    fewer = Reconstruction(candidates[None, :9], torch.zeros(1, 9), Status(Outcome.CONVERGED))
    assert score_margin(secret, fewer, decoys, images.mean(0)).metrics["tpr_at_1pct"] >= 0.7
    assert scores.evidence["reconstructions"].shape == images.shape
    assert torch.equal(scores.evidence["reconstructions"][:7], images[:7])


def test_no_candidates(key):
    with pytest.raises(ExhumeError, match="no candidates"):
        match(torch.zeros(0, 3, 12, 12), pictures(2, key), torch.zeros(3, 12, 12))
