"""Who stands in a line-up: copies, what is held, classes, lengths, people; averages and placebos."""

from __future__ import annotations

import pytest
import torch

from exhume.contract import ExhumeError, Key, Records, Vocabulary
from exhume.score.averages import averages_among
from exhume.score.placebo import placebo
from exhume.score.places import PEOPLE, line_up, places_for

KEY = Key.from_seed(4)


def pictures(count, classes=2, seed=0):
    drawn = torch.rand(count, 1, 6, 6, generator=Key.from_seed(seed).generator())
    return Records(drawn, torch.arange(count) % classes, tuple("abcdefghij"[:classes]))


def each(count):
    return torch.arange(count)


def test_copies_stand_there_once_and_what_is_held_not_at_all():
    records = pictures(60)
    doubled = Records(
        torch.cat([records.inputs, records.inputs[:20] + 1e-4]),
        torch.cat([records.labels, records.labels[:20]]),
        records.classes,
    )
    places = places_for(doubled[:10], each(10), doubled[10:], KEY)
    assert len(places.inputs) == 60
    flat = places.inputs.flatten(1)
    apart = torch.cdist(flat, flat) + torch.eye(60)
    assert apart.min() > 0.1
    held = places_for(records[:10], each(10), records[10:40], KEY, held=records[5:20])
    assert len(held.inputs) == 25
    assert (held.targets, held.left_out) == (5, 5)


def test_copies_of_a_target_do_not_make_it_famous():
    """Every record twice: a class-mean answer identifies nobody, and no duplicate counts."""
    records = pictures(200, 1)
    twice = Records(records.inputs.repeat(2, 1, 1, 1), records.labels.repeat(2), records.classes)
    mean = records.inputs.mean(0, keepdim=True)
    row, ranks = line_up(places_for(twice[:30], each(30), twice[30:], KEY), [mean] * 30, KEY)
    assert row.p > 0.01
    assert row.left_out == 30 - row.targets
    assert int((ranks == 0).sum()) == row.left_out


def test_strangers_are_of_the_same_class_by_name():
    targets = pictures(4, 2)
    others = pictures(60, 2, seed=1)
    named = Records(others.inputs, others.labels, ("b", "a"))  # numbered the other way round
    places = places_for(targets, each(4), named, KEY)
    strangers = places.stratum[places.release < 0]
    assert torch.equal(strangers, 1 - others.labels)


def test_texts_stand_beside_texts_of_their_length():
    tokens = torch.randint(1, 50, (90, 6), generator=KEY.generator())
    tokens[::3, 2:] = 0
    tokens[1::3, 4:] = 0
    texts = Records(tokens, torch.zeros(90, dtype=torch.long), ("a",), Vocabulary())
    places = places_for(texts[:6], each(6), texts[6:], KEY, padding=0)
    lengths = (places.inputs != 0).sum(1)
    for stratum in torch.unique(places.stratum):
        assert len(torch.unique(lengths[places.stratum == stratum])) == 1


def test_people():
    """Each class has two records and the adversary holds none of some: a person among people."""
    inputs = torch.rand(80, 1, 6, 6, generator=KEY.generator())
    names = tuple(f"p{i}" for i in range(40))
    faces = Records(inputs, torch.arange(80) % 40, names)
    targets, strangers, held = faces[:15], faces[15:30], faces[30:40]
    places = places_for(targets, each(15), strangers, KEY, held=held)
    assert places.among == PEOPLE
    assert places.targets == 15
    row, _ = line_up(places, [x[None] for x in targets.inputs], KEY)
    assert (row.identified, row.p) == (15, 1e-4)
    known = faces[70:]  # the adversary holds the targets' other photographs
    assert places_for(targets, each(15), strangers, KEY, held=known).targets <= 15


def test_shapes_must_agree():
    with pytest.raises(ExhumeError, match="line-up: targets of shape"):
        places_for(
            pictures(3), each(3), Records(torch.rand(5, 4), torch.zeros(5).long(), ("a",)), KEY
        )


def test_averages():
    batch = pictures(4, 2)
    mean, mixed = batch.inputs.mean(0), batch.inputs[[0, 2]].mean(0)  # of all, of one class
    near = batch.inputs[1] + 0.01
    found = torch.stack([mean, mixed, near])
    assert averages_among(found, batch).tolist() == [True, True, False]
    assert averages_among(mean[None], batch[:1]).tolist() == [False]


def test_a_placebo_notices_a_choice_and_spares_a_draw():
    records = pictures(300, 2)
    chosen = (
        (records.inputs - records.inputs.mean(0)).flatten(1).norm(dim=1).argsort()
    )  # typical ones
    picked, rest = records[chosen[:30]], records[chosen[30:]]
    none = torch.zeros(30, dtype=torch.long)
    assert placebo(places_for(picked, none, rest, KEY), KEY) < 0.01
    rejected = 0
    for draw in range(60):
        order = torch.randperm(300, generator=KEY.fold(draw).generator())
        places = places_for(records[order[:30]], none, records[order[30:]], KEY)
        rejected += placebo(places, KEY.fold("p", draw)) <= 0.01
    assert rejected <= 3
