from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.intervals import clopper_pearson, detectable_rate, rate_of
from exhume.score.margin import above_bar, match, score_margin
from exhume.score.structure import ssim


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
    metrics = scores.metrics
    assert (metrics["good"], metrics["good_share"], metrics["records"]) == (7, 0.7, 10)
    assert (metrics["candidates"], metrics["decoys"]) == (18, 300)
    assert (metrics["good_share_low"], metrics["good_share_high"]) == clopper_pearson(7, 10)
    assert metrics["decoy_rate"] == pytest.approx(6 / 300)
    assert (metrics["decoy_rate_low"], metrics["decoy_rate_high"]) == clopper_pearson(6, 300)
    ordered = scores.decoys.ssim.sort(descending=True).values
    assert metrics["ssim_at_1pct"] == float(ordered[3]) == pytest.approx(1)
    pairs = scores.members.ssim[:, None] - scores.decoys.ssim
    naive = ((pairs > 0).double() + 0.5 * (pairs == 0)).mean()
    assert metrics["auc"] == pytest.approx(float(naive))
    assert metrics["ssim_median"] == float(scores.members.ssim.median())
    assert metrics["correlation_median"] == float(scores.members.correlation.median())
    error = (scores.evidence["reconstructions"] - images).double().square().mean((1, 2, 3))
    torch.testing.assert_close(scores.evidence["mse"], error)
    bar, leak = above_bar(scores)  # seven are exact, and so are more decoys than 1%
    assert (bar["bar"], bar["above_bar"]) == (metrics["ssim_at_1pct"], leak.successes)
    assert (
        scores.metrics["tpr_at_1pct"] == 0
    )  # 2% of the decoys match exactly: no threshold separates
    fewer = Reconstruction(candidates[None, :9], torch.zeros(1, 9), Status(Outcome.CONVERGED))
    separate = score_margin(secret, fewer, decoys, images.mean(0))
    assert separate.metrics["tpr_at_1pct"] >= 0.7
    bar, leak = above_bar(separate)
    assert bar["bar"] == max(0.4, separate.metrics["ssim_at_1pct"])
    lucky = int((separate.decoys.ssim > bar["bar"]).sum())
    assert lucky == 2
    above = int((separate.members.ssim > bar["bar"]).sum())
    detectable = detectable_rate(10, clopper_pearson(2, 300)[1])
    assert leak == rate_of(above, 10, chance=2 / 300, detectable=detectable)
    assert bar["above_bar"] == above >= 7
    assert (bar["above_bar_share"], bar["detectable_rate"]) == (above / 10, detectable)
    assert (bar["above_bar_share_low"], bar["above_bar_share_high"]) == (leak.low, leak.high)
    assert scores.evidence["reconstructions"].shape == images.shape
    assert torch.equal(scores.evidence["reconstructions"][:7], images[:7])


def test_more_images_than_are_matched_at_once(key):
    """The best candidate of each by the correlation of what differs from the centre, and their SSIM."""
    images = torch.rand(300, 1, 6, 6, generator=key.generator())
    candidates = torch.rand(9, 1, 6, 6, generator=key.fold("candidates").generator())
    centre = torch.rand(1, 6, 6, generator=key.fold("centre").generator())
    both = torch.cat([images, candidates]) - centre
    table = torch.corrcoef(both.flatten(1).double())[:300, 300:]
    found = match(candidates, images, centre)
    assert torch.equal(found.index, table.argmax(1))
    torch.testing.assert_close(found.correlation, table.amax(1))
    torch.testing.assert_close(found.ssim, ssim(candidates[found.index], images))
    assert torch.equal(found.good, found.ssim > 0.4)


def test_no_candidates(key):
    with pytest.raises(ExhumeError, match="no candidates"):
        match(torch.zeros(0, 3, 12, 12), pictures(2, key), torch.zeros(3, 12, 12))
