"""What counts as the same record: on real tables and a generated one, and as it always was for images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import datasets

from exhume.core.contract import Key, Records
from exhume.score.copies import copies_among, practically_held, sameness
from exhume.score.measures import nearest
from exhume.score.places import line_up, places_for

KEY = Key.from_seed(11)


def real_table(name):
    found = getattr(datasets, f"load_{name}")()
    labels = torch.from_numpy(np.asarray(found.target))
    if labels.is_floating_point():
        labels = torch.zeros(len(labels)).long()
    names = tuple(str(value) for value in range(int(labels.max()) + 1))
    return Records(torch.from_numpy(found.data).float(), labels.long(), names)


def people(count=600):
    """Ages, hours and gains in their own units, and four columns of categories, as in a census."""
    drawn = np.random.default_rng(0)
    age = drawn.integers(17, 80, count)
    hours = np.where(drawn.random(count) < 0.5, 40, drawn.integers(10, 80, count))
    gain = np.where(drawn.random(count) < 0.9, 0, drawn.integers(100, 20000, count))
    columns = [np.stack([age, hours, gain], 1).astype(float)]
    for values in (8, 7, 5, 2):
        share = np.arange(values, 0, -1.0) ** 2
        columns.append(np.eye(values)[drawn.choice(values, count, p=share / share.sum())])
    inputs = torch.from_numpy(np.concatenate(columns, 1)).float()
    return Records(inputs, torch.arange(count) % 2, ("low", "high"))


def seated(records, count=56, extra=None):
    order = torch.randperm(len(records), generator=KEY.generator())
    targets, strangers = records[order[:count]], records[order[count:]]
    if extra is not None:
        strangers = Records.joined([strangers, extra])
    return places_for(targets, torch.arange(count), strangers, KEY)


@pytest.mark.parametrize("name", ["breast_cancer", "wine", "diabetes"])
def test_nobody_is_left_out_of_a_table_of_distinct_rows(name):
    places = seated(real_table(name))
    assert (places.left_out, places.copies, places.held) == (0, 0, 0)


@pytest.mark.parametrize("name", ["breast_cancer", "wine", "diabetes"])
def test_planted_copies_are_noticed_in_any_unit(name):
    """The first measured again, to a thousandth of each column; and the same table in other units."""
    records = real_table(name)
    order = torch.randperm(len(records), generator=KEY.generator())
    again = records[order[:20]]
    noise = torch.randn(again.inputs.shape, generator=KEY.generator()) * records.inputs.std(0)
    again = Records(again.inputs + 1e-3 * noise, again.labels, again.classes)
    units = 10.0 ** torch.arange(records.inputs.shape[1]).remainder(7).sub(3)

    def in_units(given):
        return Records(given.inputs * units, given.labels, given.classes)

    plain, other = seated(records, extra=again), seated(in_units(records), extra=in_units(again))
    assert plain.left_out == plain.copies > 3
    assert torch.equal(plain.target, other.target)
    assert len(plain.inputs) <= len(records)
    standing = Records(plain.inputs, torch.zeros(len(plain.inputs)).long(), ("a",))
    assert copies_among(standing) == (0, len(standing))  # each of them stands there once


def test_people_in_a_census_are_told_apart_unless_they_are_alike_in_nearly_everything():
    records = people()
    places = seated(records)
    standing = places.inputs.numpy()
    assert len(np.unique(records.inputs.numpy(), axis=0)) < len(records)
    assert len(np.unique(standing, axis=0)) == len(standing) > 0.9 * len(records)
    assert places.left_out == places.copies < 56 / 5


def test_a_table_in_which_everybody_stands_twice():
    distinct = real_table("wine")
    doubled = Records(distinct.inputs.repeat(2, 1), distinct.labels.repeat(2), distinct.classes)
    assert copies_among(doubled) == (len(distinct), len(doubled))
    noise = torch.randn(doubled.inputs.shape, generator=KEY.generator())
    nudged = doubled.inputs + 1e-3 * doubled.inputs.std(0) * noise
    assert copies_among(Records(nudged, doubled.labels, doubled.classes))[0] == len(distinct)
    assert copies_among(distinct) == (0, len(distinct))


def test_the_bar_pair_by_pair():
    """A hundredth of the usual distance to the third neighbour among distinct records, on scaled columns."""
    inputs = real_table("wine").inputs[:60]
    inputs = torch.cat([inputs, inputs[:5]])
    scaled = inputs.double() / inputs.double().std(0, correction=0)
    squared = (scaled[:, None] - scaled).square().sum(2)
    distinct = squared[:60, :60].sort(1).values[:, 3]
    assert sameness(inputs).bar == pytest.approx(0.01 * float(distinct.median()))
    wide = torch.randn(60, 300, generator=KEY.generator())  # there all neighbours are far
    assert sameness(wide).bar == pytest.approx(0.01 * 300)
    assert 0 < sameness(torch.ones(5, 2)).bar < 1e-6


def test_pictures_are_the_same_within_a_hundredth_of_the_variance():
    pictures = torch.rand(30, 1, 5, 5, generator=KEY.generator())
    pool = Records(pictures, torch.zeros(30).long(), ("a",))
    variance = float(pictures.flatten(1).double().var(0).mean())
    assert sameness(pictures).bar == 0.01 * variance * 25
    errors = torch.tensor([0.0099, 0.0101]).double() * variance
    assert practically_held(pictures[:2], pool, errors).tolist() == [True, False]


def test_what_is_held_is_judged_by_scaled_columns_too():
    records = real_table("breast_cancer")
    held, wanted = records[100:], records[:100]
    _, errors = nearest(wanted.inputs, held)
    assert not practically_held(wanted.inputs, held, errors).any()
    assert practically_held(held.inputs[:3], held, errors[:3]).all()
    own = torch.arange(3)
    assert not practically_held(held.inputs[:3], held, errors[:3], own).any()
    places = places_for(wanted, torch.arange(100), held[:200], KEY, held=wanted[90:])
    assert (places.left_out, places.copies, places.held) == (10, 0, 10)
    row, _ = line_up(places, [x[None] for x in wanted.inputs], KEY)
    assert (row.targets, row.left_out, row.copies, row.held) == (90, 10, 0, 10)


@pytest.mark.parametrize("distinct", [1, 2, 3])
def test_a_table_of_few_distinct_rows_has_fewer_neighbours(distinct):
    """Every row many times: only rows that are equal are the same, however far the next one is."""
    rows = torch.arange(distinct).float()[:, None].repeat(20, 2)
    same = sameness(rows)
    assert same.bar > 0
    scaled = (rows - same.middle) / same.scale
    apart = torch.cdist(scaled, scaled).square()
    assert torch.equal(apart < same.bar, (rows[:, None] == rows[None]).all(2))
