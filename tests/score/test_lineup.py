"""The line-up against planted truth, against all permutations by hand, and its level under the null."""

from __future__ import annotations

import itertools

import pytest
import torch

from exhume.core.contract import ExhumeError, Key
from exhume.core.evidence import LineupRow
from exhume.score.intervals import rate_reaching
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
    """Two places of a stratum of twelve, all pairs of records there: the sampled p is near the exact one."""
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


def naive_score(lineup, key, draws):
    """The definition, record by record, with the permutations that `score` draws, among all strangers."""
    everyone = range(len(lineup.release))
    strangers = {
        i: [j for j in everyone if same_stratum(lineup, i, j) and not same_release(lineup, i, j)]
        for i in everyone
        if lineup.release[i] >= 0
    }
    strangers = {i: own for i, own in strangers.items() if len(own) >= 9}

    def ahead(i, at):
        """By measure: at how many strangers' places a record is at least as alike as that at the target's."""
        rows = [m[lineup.release[i]] for m in lineup.similarity]
        return [sum(float(row[at[j]] >= row[at[i]]) for j in strangers[i]) for row in rows]

    ranks = {i: 1 + min(ahead(i, list(everyone))) for i in strangers}
    counts, generator = [0] * draws, key.fold("permutations").generator()
    for label in sorted(set(lineup.stratum.tolist())):
        own = [i for i in strangers if lineup.stratum[i] == label]
        used = sorted({j for i in own for j in (i, *strangers[i])})
        for draw in range(draws) if own else ():
            if draw % 1000 == 0:
                left = min(1000, draws - draw)
                seats = torch.rand(left, len(used), generator=generator).argsort(1)
            at = {used[int(s)]: record for record, s in zip(used, seats[draw % 1000], strict=True)}
            counts[draw] += sum(min(ahead(i, at)) == 0 for i in own)
    tails = [(1 + sum(c >= least for c in counts)) / (1 + draws) for least in range(len(ranks) + 2)]
    enough = [least for least, tail in enumerate(tails) if tail <= 0.01]
    return ranks, counts, tails, enough[0] if enough else len(ranks) + 1


def same_stratum(lineup, i, j):
    return lineup.stratum[i] == lineup.stratum[j]


def same_release(lineup, i, j):
    return lineup.release[i] == lineup.release[j]


@pytest.mark.parametrize(
    ("releases", "places", "strata", "levels", "draws"),
    [
        ([0, 1, 2], 33, 1, 1000, 99),  # p is 0.01 where no permutation does as well
        ([0, 0, 1, 1], 28, 2, 6, 50),  # many ties; so few draws prove nothing
        ([0], 12, 1, 1000, 1015),  # more than are drawn at once
        ([1, 0, 0, 2, 1], 45, 3, 1000, 300),
    ],
)
def test_the_score_is_that_of_the_definition(releases, places, strata, levels, draws):
    stratum = torch.arange(places) % strata
    release = torch.tensor(releases + [-1] * (places - len(releases)))
    measures = []
    for seed in (1, 2):
        rows = (drawn(3, places, seed=seed) * levels).floor()
        rows[release[: len(releases)], torch.arange(len(releases))] += 0.4 * levels
        measures.append(rows)
    lineup = Lineup(tuple(measures), release, stratum)
    ranks, counts, tails, needed = naive_score(lineup, KEY, draws)
    score = lineup.score(KEY, draws=draws)
    assert dict(zip(score.targets.tolist(), score.ranks.tolist(), strict=True)) == ranks
    assert score.count == sum(rank == 1 for rank in ranks.values())
    assert score.identified.tolist() == [ranks[i] == 1 for i in score.targets.tolist()]
    assert score.p == pytest.approx(tails[score.count])
    assert score.chance == pytest.approx(sum(counts) / draws / len(ranks))
    row = score.row(among="")
    assert row.needed == needed
    assert row.detectable == rate_reaching(needed, len(ranks))
    assert row.tail == pytest.approx(tails[: len(row.tail)])
    assert set(tails[len(row.tail) : len(ranks) + 1]) <= {row.tail[-1]}  # the rest is the same
    assert score.left_out == len(releases) - len(ranks)


def test_without_targets_nothing_is_proved():
    score = Lineup((drawn(1, 20),), torch.full((20,), -1), torch.zeros(20)).score(KEY, draws=99)
    row = score.row(among="")
    assert (score.count, score.p, score.chance, row.needed) == (0, 1.0, 0.0, 1)
    assert (score.fewest, score.left_out, row.detectable) == (0, 0, 1.0)
    few = Lineup((drawn(1, 9),), torch.tensor([0] + [-1] * 8), torch.zeros(9)).score(KEY, draws=99)
    assert (few.count, few.p, few.left_out) == (0, 1.0, 1)


def test_a_target_needs_nine_strangers_and_has_at_most_those_asked_for():
    lineup = one_release_each(3, 197, 1, drawn(3, 200))
    assert lineup.score(KEY, draws=9).fewest == 99
    assert lineup.score(KEY, strangers=30, draws=9).fewest == 30
    assert lineup.score(KEY, strangers=500, draws=9).fewest == 199
    for strangers, kept in ((9, 1), (8, 0)):
        small = one_release_each(1, strangers, 1, drawn(1, 1 + strangers))
        assert len(small.score(KEY, draws=9).targets) == kept


def test_fewer_strangers_are_a_sample_of_their_stratum():
    """A target ahead of a third of its stratum's strangers only: its rank among a few says so, too."""
    row = torch.cat([torch.tensor([0.5]), torch.linspace(0, 0.75, 300), torch.ones(300)])
    release = torch.tensor([0] + [-1] * 600)
    stratum = torch.tensor([0] * 301 + [1] * 300)  # those who would be ahead of it are of another
    score = Lineup((row.double()[None],), release, stratum).score(KEY, strangers=100, draws=9)
    assert 15 <= int(score.ranks[0]) - 1 <= 52  # of 100, a third are ahead


def test_the_row_of_a_score():
    planted = drawn(3, 90, seed=9)
    planted[torch.arange(3), torch.arange(3)] += 2
    release = torch.tensor([0, 1, 2, 0] + [-1] * 86)
    stratum = torch.tensor([0, 0, 0, 7] + [0] * 86)
    score = Lineup((planted,), release, stratum).score(KEY, draws=999)
    row = score.row(left_out=4, among="others")
    about = (row.needed, row.detectable, 5, "others")
    assert row == LineupRow(3, 3, 88, score.chance, 0.001, *about, tail=row.tail)
    assert row.tail[-1] == pytest.approx(0.001)
    assert score.row(among="others").left_out == 1


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
    for seed in range(100):
        rows = drawn(1, 40, seed=seed).expand(10, 40) if shared else drawn(10, 40, seed=seed)
        lineup = one_release_each(10, 30, 2, rows)
        alarms += lineup.score(Key.from_seed(seed), draws=199).p <= 0.05
    assert alarms <= 12  # at most 5 expected; more than 12 have a probability of .15%


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


def test_likeness_of_images_in_numbers():
    pool, found = drawn(4, 2, 3, 3), drawn(2, 2, 3, 3, seed=1)
    error, correlation = likeness([found, found[:1]], pool)
    flat, theirs = found.flatten(1), pool.flatten(1)
    expected = -(flat[:, None] - theirs).square().mean(2)
    torch.testing.assert_close(error, torch.stack([expected.amax(0), expected[0]]))
    both = torch.corrcoef(torch.cat([flat, theirs]))[:2, 2:]
    torch.testing.assert_close(correlation, torch.stack([both.amax(0), both[0]]))


def test_likeness_of_vectors_in_numbers():
    pool, found = drawn(6, 4), drawn(1, 4, seed=1)
    (error,) = likeness([found], pool)
    expected = ((found - pool) / pool.std(0)).square().mean(1)
    torch.testing.assert_close(error[0], -expected)


def test_what_is_not_finite_answers_nothing():
    pool = drawn(5, 4)
    broken = pool[2:4].clone()
    broken[0, 1] = torch.nan
    (error,) = likeness([broken, broken[:1], pool[:0]], pool)
    assert int(error[0].argmax()) == 3
    assert bool((error[1:] == -torch.inf).all())
    (nothing,) = likeness([broken, broken], pool[:0])
    assert nothing.shape == (2, 0)


def test_a_measure_that_is_given_is_the_only_one():
    pool = drawn(5, 1, 4, 4)
    (only,) = likeness([pool[:2]], pool, lambda found, own: found[:, 0, 0, :1] + own[:, 0, 0, 0])
    torch.testing.assert_close(only[0], pool[:2, 0, 0, 0].max() + pool[:, 0, 0, 0])


def test_columns_of_vectors_count_alike():
    pool = drawn(50, 3) * torch.tensor([1.0, 1000.0, 1e-3])
    (alike,) = likeness([pool[7:8] + torch.tensor([0.0, 5.0, 0.0])], pool)
    assert int(alike[0].argmax()) == 7


def test_tokens_in_place():
    pool = torch.tensor([[1, 2, 3, 4], [1, 2, 4, 3], [9, 9, 9, 9]])
    (alike,) = likeness([torch.tensor([[1, 2, 3, 0], [9, 0, 0, 0]])], pool)
    assert alike[0].tolist() == [0.75, 0.5, 0.25]


@pytest.mark.parametrize(
    ("targets", "tests", "measures", "strangers"),
    [
        (50, 4, 2, 99),
        (1, 1, 1, 99),  # 1 in 100 is just enough
        (1, 1, 2, 199),
        (1, 2, 2, 399),
        (1, 7, 1, 799),  # 1 in 800 is below .01 / 7, 1 in 400 is not
        (2, 4, 2, 99),
        (2, 26, 2, 199),  # 1 in 2500 is above .01 / 26
        (1, 20, 2, 1999),  # then only a proof can decide
        (0, 0, 2, 199),  # as one target and one test
    ],
)
def test_how_many_strangers(targets, tests, measures, strangers):
    assert strangers_for(targets, tests, measures) == strangers


def test_what_would_be_noticed():
    planted = drawn(30, 90, seed=9)
    planted[torch.arange(30), torch.arange(30)] += 2
    score = one_release_each(30, 60, 1, planted).score(KEY, draws=999)
    row = score.row(among="")
    assert 1 <= row.needed <= 5
    assert row.needed / 30 < row.detectable < 0.4
    alone = one_release_each(1, 12, 1, drawn(1, 13)).score(KEY, draws=999).row(among="")
    assert (alone.needed, alone.detectable) == (2, 1.0)  # a chance of 1 in 13 proves nothing


@pytest.mark.parametrize(("targets", "tests"), [(40, 1), (100, 9), (60, 5)])
def test_the_stated_power_is_what_planting_so_many_gives(targets, tests):
    """Targets are identified with the stated probability, and noticed at the level that is left, in 95%."""
    score = one_release_each(targets, 200, 1, drawn(targets, targets + 200)).score(KEY)
    row = score.row(among="", tests=tests)
    draws = torch.rand(4000, targets, generator=KEY.fold("identified").generator())
    counts = (draws < row.detectable).sum(1)
    noticed = torch.tensor([score.tail[count] <= LEVEL / tests for count in counts.tolist()])
    assert 0.94 < noticed.double().mean() < 0.97
    fewer = (draws < 0.9 * row.detectable).sum(1)
    assert (score.tail[fewer] <= LEVEL / tests).double().mean() < 0.94


def test_more_permutations_where_the_usual_number_could_show_nothing():
    similarity = torch.rand(3, 40, generator=KEY.generator(), dtype=torch.float64)
    release = torch.tensor([0, 1, 2] + [-1] * 37)
    lineup = Lineup((similarity,), release, torch.zeros(40).long())
    smallest = {tests: float(lineup.score(KEY, tests=tests).tail[-1]) for tests in (1, 100, 300)}
    assert smallest[1] == 1e-4
    assert all(p * tests <= LEVEL for tests, p in smallest.items())


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5]) == [0.5]
    assert holm([]) == []
    assert max(holm([0.6, 0.9])) == 1.0


def test_shapes_that_do_not_fit():
    with pytest.raises(ExhumeError, match="3 places"):
        Lineup((torch.zeros(1, 4),), torch.tensor([0, -1, -1]), torch.zeros(3))
    with pytest.raises(ExhumeError, match="3 places"):
        Lineup((torch.zeros(1, 3), torch.zeros(2, 3)), torch.tensor([0, -1, -1]), torch.zeros(3))
    with pytest.raises(ExhumeError, match="3 places"):
        Lineup((torch.zeros(1, 3),), torch.tensor([0, -1, -1]), torch.zeros(4))
    with pytest.raises(ExhumeError, match="a release that nothing answers"):
        Lineup((torch.zeros(1, 3),), torch.tensor([1, -1, -1]), torch.zeros(3))
    empty = Lineup((torch.zeros(1, 0),), torch.zeros(0).long(), torch.zeros(0))
    assert empty.score(KEY, draws=9).p == 1.0
