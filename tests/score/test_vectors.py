"""Vectors: matched by cosine of standardised columns, decoys as the null, against loops."""

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
from exhume.score.intervals import clopper_pearson
from exhume.score.vectors import alike_vectors, score_vectors

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
