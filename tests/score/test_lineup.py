"""The line-up against planted truth, against all permutations by hand, and its level under the null."""

from __future__ import annotations

import itertools

import pytest
import torch

from exhume.contract import ExhumeError, Key
from exhume.score.lineup import LEVEL, Lineup, holm, likeness, strangers_for

KEY = Key.from_seed(0)


def drawn(*shape, seed=0):
    return torch.rand(shape, generator=Key.from_seed(seed).generator(), dtype=torch.float64)


def one_release_each(targets, strangers, classes, similarity, seed=0):
    """The first places are targets, each with its own release."""
    release = torch.cat([torch.arange(targets), torch.full((strangers,), -1)])
    return Lineup((similarity,), release, torch.arange(targets + strangers) % classes)


def test_planted_records_are_identified():
    pictures = drawn(150, 1, 6, 6)
    found = [pictures[i : i + 1] + 0.05 * drawn(1, 1, 6, 6, seed=i) for i in range(20)]
    release = torch.cat([torch.arange(20), torch.full((130,), -1)])
    score = Lineup(likeness(found, pictures), release, torch.arange(150) % 3).score(KEY)
    assert score.count == 20
    assert score.p == 1 / 10_000
    assert (score.fewest, score.left_out) == (
        49,
        0,
    )  # other targets of the class are strangers, too
    assert score.chance < 0.06


def test_every_permutation_counted_by_hand():
    """Three places of a stratum, all six permutations: the sampled p is near the exact one."""
    similarity, stratum = drawn(1, 12, seed=3), torch.zeros(12)
    lineup = Lineup((similarity,), torch.tensor([0, 0] + [-1] * 10), stratum)
    score = lineup.score(KEY, draws=4000)
    seats = {i: list(range(2, 12)) for i in (0, 1)}
    row = similarity[0]

    def count(order):
        return sum(
            float(row[order[i]]) > max(float(row[order[j]]) for j in seats[i]) for i in seats
        )

    observed = count(range(12))
    # only who sits at 0 and 1 matters: a pair of ranks
    exact = [
        count([a, b, *(i for i in range(12) if i not in (a, b))])
        for a, b in itertools.permutations(range(12), 2)
    ]
    share = sum(c >= observed for c in exact) / len(exact)
    assert score.count == observed
    assert score.p == pytest.approx(share, abs=0.03)


def test_ties_lose():
    flat = one_release_each(12, 40, 1, torch.zeros(12, 52, dtype=torch.float64))
    score = flat.score(KEY, draws=200)
    assert (score.count, score.p) == (0, 1.0)


@pytest.mark.parametrize("targets", [1, 5])
def test_nothing_answers(targets):
    pool = drawn(60, 1, 4, 4)
    release = torch.cat([torch.arange(targets), torch.full((60 - targets,), -1)])
    empty = [torch.zeros(0, 1, 4, 4)] * targets
    score = Lineup(likeness(empty, pool), release, torch.zeros(60)).score(KEY, draws=100)
    assert (score.count, score.p) == (0, 1.0)


def test_answers_that_carry_only_the_class_identify_nobody():
    """Class means: within a class they say nothing about who it was."""
    labels = torch.arange(300) % 10
    pool = drawn(300, 1, 5, 5) + labels[:, None, None, None]
    means = [pool[labels == label].mean(0, keepdim=True) for label in range(10)]
    found = [means[int(labels[i])] for i in range(60)]
    release = torch.cat([torch.arange(60), torch.full((240,), -1)])
    score = Lineup(likeness(found, pool), release, labels).score(KEY, draws=999)
    assert score.p > LEVEL
    blind = Lineup(likeness(found, pool), release, torch.zeros(300)).score(KEY, draws=999)
    assert blind.count <= 60  # a null that ignores labels is another test, and not ours


@pytest.mark.parametrize("shared", [True, False])
def test_the_level_holds_under_the_null(shared):
    """One answer for all targets, or one each: significant at .05 in about 5% of the draws, not more."""
    alarms = 0
    for seed in range(200):
        rows = drawn(1, 60, seed=seed).expand(20, 60) if shared else drawn(20, 60, seed=seed)
        lineup = one_release_each(20, 40, 2, rows)
        alarms += lineup.score(Key.from_seed(seed), draws=199).p <= 0.05
    assert alarms <= 20  # 10 expected; 20 has a probability of .2%


def test_one_checkpoint_with_many_members():
    """A single row: members that came back beside members that did not."""
    row = drawn(1, 140, seed=5)
    row[0, :15] += 2  # 15 of 40 members
    lineup = Lineup(
        (row,), torch.cat([torch.zeros(40), torch.full((100,), -1)]).long(), torch.zeros(140)
    )
    score = lineup.score(KEY, draws=999)
    assert score.count >= 15
    assert score.p <= LEVEL


def test_batch_mates_are_never_each_others_strangers():
    """All records of a release are like its answers; strangers are elsewhere."""
    similarity = torch.zeros(2, 30, dtype=torch.float64)
    similarity[0, :4] = similarity[1, 4:8] = 1
    release = torch.cat([torch.zeros(4), torch.ones(4), torch.full((22,), -1)]).long()
    score = Lineup((similarity,), release, torch.zeros(30)).score(KEY, draws=999)
    assert (score.count, score.p <= LEVEL) == (8, True)


def test_targets_with_few_strangers_are_left_out_and_counted():
    stratum = torch.cat([torch.zeros(5), torch.ones(25)])
    release = torch.full((30,), -1)
    release[[0, 6]] = torch.tensor([0, 1])
    score = Lineup((drawn(2, 30),), release, stratum).score(KEY, draws=99)
    assert (score.targets.tolist(), score.left_out) == ([6], 1)


def test_speckle_is_seen_through_by_correlation():
    pool = drawn(100, 1, 8, 8)
    speckled = pool[:1] * 3 + 5  # another contrast and brightness
    by_error, by_correlation = likeness([speckled], pool)
    assert int(by_correlation[0].argmax()) == 0
    assert int((by_error[0] >= by_error[0, 0]).sum()) > 1
    negative = likeness([1 - pool[:1]], pool)[1]
    assert int(negative[0].argmin()) == 0  # signed: the negative is no likeness


def test_columns_of_vectors_count_alike():
    pool = drawn(50, 3) * torch.tensor([1.0, 1000.0, 1e-3])
    (alike,) = likeness([pool[7:8] + torch.tensor([0.0, 5.0, 0.0])], pool)
    assert int(alike[0].argmax()) == 7


def test_tokens_in_place():
    pool = torch.tensor([[1, 2, 3, 4], [1, 2, 4, 3], [9, 9, 9, 9]])
    (alike,) = likeness([torch.tensor([[1, 2, 3, 0], [9, 0, 0, 0]])], pool)
    assert alike[0].tolist() == [0.75, 0.5, 0.25]


def test_how_many_strangers():
    assert strangers_for(50, 4, 2) == 99
    assert strangers_for(1, 1, 1) == 199 or strangers_for(1, 1, 1) >= 99
    assert 1 / (strangers_for(1, 1, 1) + 1) <= LEVEL
    assert strangers_for(1, 20, 2) == 1999  # then only a proof can decide
    assert (2 / (strangers_for(2, 4, 2) + 1)) ** 2 <= LEVEL / 4


def test_what_would_be_noticed():
    planted = drawn(30, 90, seed=9)
    planted[torch.arange(30), torch.arange(30)] += 2
    score = one_release_each(30, 60, 1, planted).score(KEY, draws=999)
    assert 1 <= score.needed <= 5
    assert score.needed / 30 < score.detectable < 0.4
    alone = one_release_each(1, 12, 1, drawn(1, 13)).score(KEY, draws=999)
    assert (alone.needed, alone.detectable) == (2, 1.0)  # a chance of 1 in 13 proves nothing


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5]) == [0.5]
    assert holm([]) == []
    assert max(holm([0.6, 0.9])) == 1.0


def test_shapes_that_do_not_fit():
    with pytest.raises(ExhumeError, match="3 places"):
        Lineup((torch.zeros(1, 4),), torch.tensor([0, -1, -1]), torch.zeros(3))
    with pytest.raises(ExhumeError, match="a release that nothing answers"):
        Lineup((torch.zeros(1, 3),), torch.tensor([1, -1, -1]), torch.zeros(3))
