"""What a row's line-ups show: the surest tenth, a second draw, nearness, groups and epsilon."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import log

import pytest
import torch
from scipy.stats import beta, norm

import exhume
from exhume.auditing.attack import line_up_row
from exhume.auditing.case import Seats
from exhume.core.contract import Key, Records
from exhume.core.errors import ExhumeError
from exhume.core.records import Column
from exhume.score.extent import epsilon_shown, groups_in, groups_of, sentence_on_groups
from exhume.score.intervals import clopper_pearson
from exhume.score.lineup import Lineup
from exhume.score.places import places_for

KEY = Key.from_seed(8)


def pictures(count, seed=0, classes=1):
    drawn = torch.rand(count, 1, 5, 5, generator=Key.from_seed(seed).fold("x").generator())
    return Records(drawn, torch.arange(count) % classes, tuple("abcd"[:classes]))


def one_each(right, targets=40, pool=240, seed=0, **more):
    """Every target has a release; of the first so many the answer is the record, else noise."""
    everyone = pictures(pool, seed)
    places = places_for(everyone[:targets], torch.arange(targets), everyone[targets:], KEY)
    noise = torch.rand(targets, 1, 1, 5, 5, generator=KEY.fold("noise", seed).generator())
    exact = everyone.inputs[:targets, None]
    known = torch.arange(targets)[:, None, None, None, None] < right
    answers = torch.where(known, exact, noise)
    sure = [torch.tensor([float(place < 4)]) for place in range(targets)]
    return Seats(places, list(answers), KEY.fold(seed), confidence=sure, **more)


def test_the_surest_tenth_of_the_releases():
    lined = line_up_row(one_each(3), 8, decides=True, whole=True)
    assert lined.row.identified >= 3
    assert (lined.surest.surest, lined.surest.targets) == ("releases", 4)
    assert 3 <= lined.surest.identified <= 4
    assert lined.surest.p < lined.row.p
    assert lined.surest.p <= 1e-3


def test_the_surest_tenth_of_the_answers():
    """One release with many members: the surest answers are right, the others are noise."""
    everyone = pictures(340)
    places = places_for(everyone[:100], torch.zeros(100).long(), everyone[100:], KEY)
    noise = pictures(190, 7).inputs
    answers = torch.cat([noise, everyone.inputs[:10], noise[:0]])
    sure = [torch.cat([torch.zeros(190), torch.ones(10)])]
    lined = line_up_row(Seats(places, [answers], KEY, confidence=sure), 2, decides=True)
    assert (lined.surest.surest, lined.surest.targets) == ("answers", 100)
    assert lined.surest.p == 1e-4


def test_only_what_decides_has_one_and_no_confidences_none():
    seats = one_each(3)
    assert line_up_row(seats, 8).surest is None
    assert line_up_row(replace(seats, confidence=()), 8, decides=True).surest is None
    empty = [found[:0] for found in seats.candidates]
    nothing = replace(seats, candidates=empty, confidence=[torch.zeros(0)] * 40)
    assert line_up_row(nothing, 8, decides=True).surest is None


def test_a_second_draw_has_other_strangers():
    everyone = pictures(200)
    places = places_for(everyone[:5], torch.arange(5), everyone[5:], KEY)
    similarity = torch.rand(5, 200, generator=KEY.generator(), dtype=torch.float64)
    lineup = Lineup((similarity,), places.release, places.stratum)
    first = lineup.score(KEY, strangers=60, draws=99)
    second = lineup.score(KEY.fold("again"), strangers=60, draws=99, before=first.strangers)
    for place, others in second.strangers.items():
        assert len(others) == 60
        assert not torch.isin(others, first.strangers[place]).any()
    third = lineup.score(KEY.fold("again"), strangers=150, draws=9, before=first.strangers)
    assert all(len(others) == 150 for others in third.strangers.values())  # some of them again
    assert line_up_row(one_each(20), 2).row.second == 1e-4
    assert line_up_row(one_each(0), 2).row.second is None


def test_nearer_than_other_records_are():
    assert line_up_row(one_each(30), 2, decides=True, whole=True).nearer
    seats = one_each(30)
    bright = [0.12 * found + 2 for found in seats.candidates]  # seen by correlation alone
    lined = line_up_row(replace(seats, candidates=bright), 2, decides=True, whole=True)
    assert lined.row.p == 1e-4
    assert not lined.nearer
    assert not line_up_row(one_each(0), 2, decides=True, whole=True).nearer


def test_groups_in_numbers():
    ranks = torch.tensor([1] * 12 + [5] * 3 + [1] + [7] * 24 + [0])
    names = ["a"] * 15 + ["b"] * 26
    rows = groups_of(ranks, names)
    assert [(row.name, row.identified, row.targets) for row in rows] == [
        ("a", 12, 15),
        ("b", 1, 25),
    ]
    assert (rows[0].low, rows[0].high) == pytest.approx(clopper_pearson(12, 15, 0.975))
    assert [row.stands_out for row in rows] == [True, False]
    assert "a (12 of 15" in sentence_on_groups(rows)
    even = groups_of(torch.tensor([1, 5] * 10), ["a", "a", "b", "b"] * 5)
    assert "no group stands out" in sentence_on_groups(even)
    assert groups_of(ranks, ["a"] * 41) is None


def test_groups_by_a_column():
    columns = (Column("age", 20.0, 60.0), Column("sex", texts=("f", "m")), Column("steps", 0, 4))
    ages = torch.linspace(0, 1, 40)[:, None]
    sexes = torch.nn.functional.one_hot(torch.arange(40) % 2, 2).float()
    inputs = torch.cat([ages, sexes, (torch.arange(40) % 5)[:, None] / 4], 1)
    assert groups_in(inputs, columns, "sex")[:3] == ["sex f", "sex m", "sex f"]
    assert groups_in(inputs, columns, "steps")[:6] == [f"steps {n % 5}" for n in range(6)]
    names = groups_in(inputs, columns, "age")
    assert Counter(names) == {
        "age 20 to 30": 10,
        "age 30 to 40": 10,
        "age 40 to 50": 10,
        "age 50 to 60": 10,
    }
    assert (names[0], names[-1]) == ("age 20 to 30", "age 50 to 60")


def test_an_audit_by_a_column(tmp_path, make_mixtures):
    records = make_mixtures(240, (6,), 3, KEY)
    path = tmp_path / "people.csv"
    rows = zip(records.inputs.tolist(), records.labels.tolist(), strict=True)
    lines = [
        ",".join([*(f"{x:.4f}" for x in row), "fm"[n % 2], f"c{label}"])
        for n, (row, label) in enumerate(rows)
    ]
    path.write_text("\n".join(["a,b,c,d,e,f,sex,class", *lines]) + "\n")
    brief = {
        "data": {
            **{"source": str(path), "group": "sex", "fixed": 30, "targets": 12, "shadows": 60},
            **{"public": 20, "test": 30},
        },
        "victim": {"steps": 30, "hidden": [8]},
        "machine": {"threads": 1},
    }
    done = exhume.audit(brief, tmp_path / "run")
    (first, *_) = done.result.attacks
    assert [row.name for row in first.extent.groups] == ["sex f", "sex m"]
    assert sum(row.targets for row in first.extent.groups) == first.lineup.targets
    assert any("groups" in note or "comes back of" in note for note in first.notes)
    brief["data"]["group"] = "age"
    with pytest.raises(ExhumeError, match="no column 'age'; there are a, b, c, d, e, f, sex"):
        exhume.audit(brief, tmp_path / "other")


@pytest.mark.parametrize(("identified", "rows"), [(0, 1), (5, 1), (60, 4), (100, 2)])
def test_epsilon_in_numbers(identified, rows):
    shown = epsilon_shown(identified, 100, 0.02, rows=rows)
    tail = 0.05 / rows
    low = beta.ppf(tail, identified, 101 - identified) if identified else 0.0
    assert shown.at_least == pytest.approx(max(0.0, log(low / 0.02)) if low else 0.0)
    assert shown.most == pytest.approx(log(tail ** (1 / 100) / 0.02))
    mu = norm.ppf(low) - norm.ppf(0.02) if low else 0.0
    assert shown.mu == pytest.approx(max(0.0, mu))
    assert shown.at_least <= shown.most
    assert "cannot show more than" in shown.sentence
    assert "estimate" not in shown.sentence


def test_epsilon_needs_targets_that_share_no_stranger():
    dealt = line_up_row(one_each(40, targets=10, game="independent"), 2, decides=True).epsilon
    assert not dealt.estimate
    assert dealt.most == pytest.approx(log(0.025 ** (1 / 10) / (2 / 24)))  # 230 strangers for ten
    crowded = line_up_row(one_each(40, game="independent"), 2, decides=True).epsilon
    assert crowded.estimate  # five strangers each
    shared = line_up_row(one_each(40, targets=10, game="shared"), 2, decides=True).epsilon
    assert shared.estimate
    assert line_up_row(one_each(40), 2, decides=True).epsilon is None


@pytest.mark.slow
def test_under_the_null_neither_test_rejects_too_often():
    """400 line-ups of answers that know nothing, each release with its own, and one release for all."""
    low, few = 0, 0
    for draw in range(400):
        seats = one_each(0, targets=30, pool=100, seed=draw)
        if draw % 2:
            places = replace(seats.places, release=seats.places.release.clamp(max=0))
            every = [torch.cat(list(seats.candidates))]
            sure = [torch.rand(30, generator=KEY.fold("sure", draw).generator())]
            seats = replace(seats, places=places, candidates=every, confidence=sure)
        lined = line_up_row(seats, 2, decides=True)
        low += lined.row.p <= 0.05
        few += lined.surest.p <= 0.05
    assert low <= 32
    assert few <= 32
