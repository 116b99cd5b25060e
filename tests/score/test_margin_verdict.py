from __future__ import annotations

import pytest
import torch

from exhume.score.intervals import clopper_pearson
from exhume.score.margin import MarginScores, Matches
from exhume.score.margin_verdict import judge_margin, unscored


def scores(members, decoys):
    def matches(ssim):
        values = torch.tensor(ssim, dtype=torch.float64)
        return Matches(torch.zeros(len(values), dtype=torch.long), values, values)

    ranked = sorted(decoys, reverse=True)
    metrics = {"ssim_at_1pct": ranked[int(0.01 * len(decoys))]}
    return MarginScores(matches(members), matches(decoys), metrics, {})


def test_a_leak_is_members_above_the_bar_and_few_decoys():
    found = judge_margin(scores([0.9] * 6 + [0.1] * 4, [0.2] * 999 + [0.5]))
    assert found.verdict.word == "leaks"
    assert "6 of 10 training images (60%)" in found.verdict.sentence
    assert "above 0.4." in found.verdict.sentence
    assert "Of 1000 images that were not trained on, 1 matched" in found.verdict.detail
    assert found.metrics["bar"] == 0.4
    assert found.metrics["above_bar_share_low"] == clopper_pearson(6, 10)[0]


def test_where_strangers_exceed_the_threshold_they_set_the_bar():
    """Every image and every decoy is above 0.4: that proves nothing. Above all decoys it does."""
    alike = judge_margin(scores([0.6] * 20, [0.6] * 500))
    assert alike.verdict.word == "no leak found"
    assert alike.metrics["bar"] == 0.6
    assert "of 500 images that were not trained on, 0 matched" in alike.verdict.detail.lower()
    assert judge_margin(scores([0.7] * 20, [0.6] * 500)).verdict.word == "leaks"


def test_the_bar_is_exceeded_by_at_most_a_hundredth_of_the_decoys():
    decoys = [0.5 + 0.001 * i for i in range(400)]
    found = judge_margin(scores([0.95] * 8, decoys))
    assert sum(d > found.metrics["bar"] for d in decoys) == 4


def test_too_few_to_tell():
    found = judge_margin(scores([0.9, 0.9], [0.1] * 3))
    assert found.verdict.word == "not audited"
    assert "the test has no power: 0 of 3 decoys matched" in found.verdict.sentence
    few = judge_margin(scores([0.1] * 30, [0.2] * 1000))
    assert few.verdict.word == "no leak found"
    assert f"A leak of {few.metrics['detectable_rate']:.1%}" in few.verdict.detail


def test_shares_are_not_invented_by_chance(key):
    """Members that are decoys leak in at most one of twenty audits."""
    generator, leaks = key.generator(), 0
    for _ in range(200):
        drawn = torch.rand(150, generator=generator).tolist()
        leaks += judge_margin(scores(drawn[:30], drawn[30:])).verdict.word == "leaks"
    assert leaks <= 10


def test_unscored_says_how_much_was_found():
    verdict = unscored(40, 7)
    assert verdict.word == "not audited"
    assert "40 images were reconstructed, 7 of them more than once" in verdict.sentence
    assert "surest first" in verdict.detail


@pytest.mark.parametrize("word", ["safe", "secure"])
def test_nothing_is_called_safe(word):
    for found in (scores([0.1] * 30, [0.2] * 1000), scores([0.9] * 9, [0.2] * 1000)):
        verdict = judge_margin(found).verdict
        assert word not in f"{verdict.sentence} {verdict.detail}"
