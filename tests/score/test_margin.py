from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cosine_similarity

from exhume.core.contract import (
    FILLED_UP,
    ExhumeError,
    Outcome,
    Reconstruction,
    Records,
    Secret,
    Status,
)
from exhume.score.intervals import clopper_pearson, detectable_rate, rate_of
from exhume.score.margin import above_bar, alike_vectors, match, score_margin, score_vectors
from exhume.score.measures import ssim


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


SCALE = torch.tensor([1.0, 100.0, 0.01, 1.0, 5.0, 1.0]).double()


def drawn(count, key):
    return SCALE * torch.randn(count, 6, generator=key.generator()).double() + 3


def records_of(inputs):
    return Records(inputs, torch.arange(len(inputs)) % 2, ("a", "b"))


def answer(candidates, confidence=None):
    confidence = torch.zeros(1, len(candidates)) if confidence is None else confidence
    return Reconstruction(candidates[None], confidence, Status(Outcome.CONVERGED))


def standard(vectors, pool):
    return ((vectors - pool.mean(0)) / pool.std(0)).double()


def test_alike_is_the_cosine_of_standard_columns(key):
    found, pool = drawn(3, key), drawn(20, key.fold("pool"))
    naive = cosine_similarity(standard(found, pool)[:, None], standard(pool, pool), dim=2)
    torch.testing.assert_close(alike_vectors(found, pool), naive)
    longer = pool.mean(0) + 7 * (found - pool.mean(0))  # the length does not count
    torch.testing.assert_close(alike_vectors(longer, pool), naive)


def test_columns_that_do_not_vary_tell_nobody_apart(key):
    found, pool = drawn(3, key), drawn(20, key.fold("pool"))
    idle = torch.full((20, 1), 4.0) + torch.linspace(0, 1e-6, 20)[:, None]
    with_idle = alike_vectors(torch.cat([found, 1 + found[:, :1]], 1), torch.cat([pool, idle], 1))
    torch.testing.assert_close(with_idle, alike_vectors(found, pool))
    alone = alike_vectors(found, pool[:1])  # one record has no spread
    assert alone.tolist() == [[0.0]] * 3


def test_members_and_decoys_have_their_choice(key):
    """Six of ten come back nearly; of two hundred decoys three are as near to a candidate as they are."""
    truth, decoys = drawn(10, key), drawn(200, key.fold("decoys"))
    noise = 0.01 * SCALE * torch.randn(6, 6, generator=key.fold("noise").generator()).double()
    candidates = torch.cat([decoys[:3] + 1e-4 * SCALE, truth[:6] + noise, drawn(4, key.fold("x"))])
    confidence = torch.arange(13.0).flip(0)[None].clone()
    confidence[0, 11:] = FILLED_UP  # no candidates
    scores = score_vectors(
        Secret(records_of(truth)), answer(candidates, confidence), records_of(decoys)
    )
    real, everyone = candidates[:11], torch.cat([truth, decoys])
    table = cosine_similarity(
        standard(everyone, everyone)[:, None], standard(real, everyone), dim=2
    ).tolist()
    best = [max(range(11), key=row.__getitem__) for row in table]
    own, others = [max(row) for row in table[:10]], [max(row) for row in table[10:]]
    bar = sorted(others, reverse=True)[2]  # at most 1% of the decoys are above
    above = sum(value > bar for value in own)
    low, high = clopper_pearson(above, 10)
    pairs = [(a > b) + 0.5 * (a == b) for a in own for b in others]
    assert best[:6] == [3, 4, 5, 6, 7, 8]
    assert scores.metrics == pytest.approx(
        {
            "records": 10,
            "candidates": 11,
            "decoys": 200,
            "cosine_median": sorted(own)[4],
            "cosine_bar": bar,
            "above_cosine_bar": above,
            "above_cosine_bar_share": above / 10,
            "above_cosine_bar_share_low": low,
            "above_cosine_bar_share_high": high,
            "cosine_auc": sum(pairs) / len(pairs),
        },
        abs=1e-9,
    )
    evidence = scores.evidence
    torch.testing.assert_close(evidence["reconstructions"], real[best[:10]])
    torch.testing.assert_close(evidence["confidence"], confidence[0, :11][best[:10]])
    assert evidence["cosine"].tolist() == pytest.approx(own, abs=1e-9)
    strangers = cosine_similarity(
        standard(real, everyone)[:, None], standard(decoys, everyone), dim=2
    )
    nearest = strangers.argmax(1)[best[:10]]
    assert torch.equal(scores.nearest, nearest)
    assert torch.equal(evidence["nearest"], decoys[nearest])
    assert torch.equal(evidence["targets"], truth)


def test_what_came_back_exactly_is_above_every_decoy(key):
    truth, decoys = drawn(5, key), drawn(50, key.fold("decoys"))
    metrics = score_vectors(Secret(records_of(truth)), answer(truth), records_of(decoys)).metrics
    assert (metrics["above_cosine_bar"], metrics["cosine_auc"]) == (5, 1)
    with pytest.raises(ExhumeError, match="no candidates to match"):
        score_vectors(Secret(records_of(truth)), answer(truth[:0]), records_of(decoys))
