"""Who stands in a line-up: copies, what is held, classes, lengths, people; placebos."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import rankdata

from exhume.core.contract import ExhumeError, Key, Records, Vocabulary
from exhume.score import copies as copies_module
from exhume.score.lineup import LEVEL, likeness
from exhume.score.placebo import marked, placebo
from exhume.score.places import PEOPLE, Places, line_up, places_for

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


def test_who_counts_as_a_copy(monkeypatch):
    """Pair by pair: as near as the pool says to what is held, or to an earlier record."""
    monkeypatch.setattr(copies_module, "_ROWS", 7)
    generator = KEY.generator()
    vectors = torch.rand(40, 1, 3, generator=generator).repeat(1, 2, 1).reshape(80, 3)
    vectors += 0.02 * torch.randn(80, 3, generator=generator)
    everyone = Records(vectors, torch.zeros(80).long(), ("a",))
    held = Records(vectors[60:75] + 0.002, torch.zeros(15).long(), ("a",))
    order = torch.randperm(80, generator=KEY.fold("copies").generator()).tolist()
    scaled = vectors.double() / vectors.double().std(0, correction=0)
    squared = (scaled[:, None] - scaled).square().sum(2)
    bar = min(0.03, 0.01 * float(squared.sort(1).values[:, 3].median()))
    apart = (vectors[:, None] - held.inputs).double() / vectors.double().std(0, correction=0)
    near = apart.square().sum(2).amin(1) <= bar
    first = [all(squared[i, j] > bar for j in order[: order.index(i)]) for i in range(80)]
    kept = torch.tensor(first) & ~near
    places = places_for(everyone[:20], each(20), everyone[20:], KEY, held=held)
    torch.testing.assert_close(places.inputs, vectors[kept])
    assert 5 < int(near.sum()) < 40 < sum(first) < 75
    assert places.release.tolist() == [i if i < 20 else -1 for i in kept.nonzero()[:, 0].tolist()]
    assert places.left_out == 20 - int(kept[:20].sum())


def test_no_more_strangers_than_a_line_up_can_use():
    vectors = torch.rand(2200, 20, generator=KEY.generator())
    labels = (torch.arange(2200) % 22 == 0).long()  # 100 of the second class
    everyone = Records(vectors, labels, ("a", "b"))
    places = places_for(everyone[:50], each(50), everyone[50:], KEY)
    strangers = places.stratum[places.release < 0]
    assert torch.bincount(strangers).tolist() == [400, 97]
    picked = places.inputs[50:450]
    assert not torch.equal(picked, everyone.inputs[50:][labels[50:] == 0][:400])  # drawn at random
    alone = places_for(everyone[1:2], each(1), everyone[50:], KEY)  # one target needs many
    assert torch.bincount(alone.stratum).tolist() == [2001, 97]
    texts = Records(torch.arange(3000).reshape(500, 6), torch.zeros(500).long(), ("a",))
    assert len(places_for(texts[:50], each(50), texts[50:], KEY).inputs) == 500


def test_copies_of_a_target_do_not_make_it_famous():
    """Every record twice: a class-mean answer identifies nobody, and no duplicate counts."""
    records = pictures(120, 1)
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
    unknown = Records(others.inputs, others.labels, ("c", "a"))
    places = places_for(targets, each(4), unknown, KEY)
    assert torch.equal(places.stratum[places.release < 0], 2 - 2 * others.labels)
    assert places.targets == 4


def test_without_strangers_targets_are_each_others():
    places = places_for(pictures(30), each(30), pictures(30)[:0], KEY)
    row, ranks = line_up(places, [x[None] for x in places.inputs], KEY)
    assert (row.identified, row.strangers, row.left_out) == (30, 14, 0)
    assert ranks.tolist() == [1] * 30


def test_the_number_of_strangers_follows_the_number_of_tests():
    places = places_for(pictures(2, 1), each(2), pictures(300, 1, seed=1), KEY)
    answers = [x[None] for x in places.inputs[:2]]
    assert line_up(places, answers, KEY)[0].strangers == 99
    assert line_up(places, answers, KEY, tests=26)[0].strangers == 199


def test_every_rank_belongs_to_its_target():
    """The second is held, the fourth has no answer, the fifth gets the sixth's."""
    targets, strangers = pictures(6, 1), pictures(40, 1, seed=1)
    answers = [x[None] for x in targets.inputs]
    answers[3], answers[4] = answers[3][:0], answers[5]
    places = places_for(targets, each(6), strangers, KEY, held=targets[1:2])
    row, ranks = line_up(places, answers, KEY)
    assert [ranks[i].item() for i in (0, 1, 2, 5)] == [1, 0, 1, 1]
    assert ranks[3] == 1 + row.strangers == 45
    assert ranks[4] > 1
    assert (row.identified, row.targets, row.left_out) == (3, 5, 1)


def test_texts_stand_beside_texts_of_their_length():
    tokens = torch.randint(1, 50, (90, 6), generator=KEY.generator())
    tokens[::3, 2:] = 0
    tokens[1::3, 4:] = 0
    texts = Records(tokens, torch.zeros(90, dtype=torch.long), ("a",), Vocabulary())
    places = places_for(texts[:6], each(6), texts[6:], KEY, padding=0)
    lengths = (places.inputs != 0).sum(1)
    for stratum in torch.unique(places.stratum):
        assert len(torch.unique(lengths[places.stratum == stratum])) == 1
    two = Records(tokens, torch.arange(90) // 45, ("a", "b"), Vocabulary())
    places = places_for(two[:6], each(6), two[6:], KEY, padding=0)
    lengths = (tokens != 0).sum(1) // 2 - 1  # 2, 4 and 6 words
    assert torch.equal(places.stratum, 3 * two.labels + lengths)
    unpadded = places_for(two[:6], each(6), two[6:], KEY)
    assert torch.equal(unpadded.stratum, 3 * two.labels)


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
    known = faces[40:45]  # the adversary holds other photographs of five targets
    places = places_for(targets, each(15), strangers, KEY, held=known)
    assert (places.targets, places.left_out) == (10, 5)
    assert len(places.inputs) == 25
    assert set(places.stratum.tolist()) == {0}


def crowd(alone, strange):
    """Ten targets, so many each of a class of its own; 60 strangers, so many of other classes."""
    labels = [1 + i if i < alone else 0 for i in range(10)]
    labels += [20 + i if i < strange else 0 for i in range(60)]
    inputs = torch.rand(70, 1, 6, 6, generator=KEY.generator())
    everyone = Records(inputs, torch.tensor(labels), tuple(f"p{i}" for i in range(80)))
    return everyone[:10], everyone[10:]


@pytest.mark.parametrize(
    ("alone", "strange", "known", "targets"),
    [
        (5, 40, True, None),  # half of them have strangers of their class
        (6, 40, True, 7),  # six people, and one of the class of the other four
        (6, 40, False, None),  # nothing is held that could be the same person
        (6, 2, True, None),  # 9 people are too few for each other
        (6, 3, True, 7),
        (9, 0, True, 10),  # nobody has strangers, in classes or among people
    ],
)
def test_when_people_stand_among_people(alone, strange, known, targets):
    private, strangers = crowd(alone, strange)
    held = Records(torch.rand(3, 1, 6, 6), torch.tensor([77] * 3), private.classes)
    places = places_for(private, each(10), strangers, KEY, held=held if known else None)
    assert places.among == (PEOPLE if targets else "strangers of the same class")
    assert places.targets == (targets or 10)
    assert places.left_out == 10 - places.targets


def test_shapes_must_agree():
    with pytest.raises(ExhumeError, match="line-up: targets of shape"):
        places_for(
            pictures(3), each(3), Records(torch.rand(5, 4), torch.zeros(5).long(), ("a",)), KEY
        )


def naive_placebo(places):
    """The definition, with the draws that `placebo` makes: every p-value, not yet times their number."""
    generator, strata = KEY.generator(), sorted(set(places.stratum.tolist()))
    of_class = [(places.stratum == label).nonzero()[:, 0] for label in strata]
    held, p_values = torch.zeros(len(places.release), dtype=torch.bool), []
    for rows in of_class:
        strangers = rows[places.release[rows] < 0]
        order = torch.randperm(len(strangers), generator=generator)
        held[strangers[order[: min(50, len(strangers) // 5)]]] = True
    for among_held in (False, True):
        totals = 0
        for everyone in of_class:
            rows = everyone[~held[everyone]] if among_held else everyone
            own = places.inputs[everyone]
            answers = own[held[everyone]] if among_held else own.mean(0, keepdim=True)
            drawn = torch.rand(1999, len(rows), generator=generator).argsort(1)
            targets = int((places.release[rows] >= 0).sum())
            alike = torch.stack([m[0] for m in likeness([answers], places.inputs[rows])])
            ranks = torch.stack([torch.as_tensor(rankdata(m)) for m in alike])
            members = torch.cat([torch.arange(targets)[None], drawn[:, :targets]])
            sums = ranks[:, members].sum(2) - targets * (len(rows) + 1) / 2
            totals = totals + sums / len(rows)
        far = totals.abs()
        p_values += ((far[:, 1:] >= far[:, :1] - 1e-9).sum(1) + 1).div(2000).tolist()
    return p_values


def test_a_placebo_is_that_of_the_definition():
    inputs = torch.rand(420, 1, 2, 2, generator=KEY.generator())
    labels = torch.tensor([0] * 12 + [1] * 8 + [0] * 300 + [1] * 100)  # targets first in each
    release = torch.tensor([0] * 20 + [-1] * 400)
    places = Places(inputs, release, labels, release)
    p_values = naive_placebo(places)
    assert len(p_values) == 4
    assert placebo(places, KEY) == pytest.approx(min(1.0, 4 * min(p_values)))
    places.inputs[:20] = 0.5 + 0.3 * (inputs[:20] - 0.5)
    found = placebo(places, KEY)
    assert found == pytest.approx(4 * min(naive_placebo(places)))
    assert found < 0.1


def test_a_placebo_notices_a_choice_and_spares_a_draw():
    records = pictures(150, 2)
    far = (records.inputs - records.inputs.mean(0)).flatten(1).norm(dim=1).argsort()
    none = torch.zeros(15, dtype=torch.long)
    for order in (far, far.flip(0)):  # the most typical ones, and the least
        places = places_for(records[order[:15]], none, records[order[15:]], KEY)
        assert placebo(places, KEY) == 4 / 2000  # two answers, two measures; no draw was as extreme
    rejected = 0
    for draw in range(30):
        order = torch.randperm(150, generator=KEY.fold(draw).generator())
        places = places_for(records[order[:15]], none, records[order[15:]], KEY)
        rejected += placebo(places, KEY.fold("p", draw)) <= 0.01
    assert rejected <= 2  # more have a probability of .3%


def digits(count, seed):
    """Records like scanned digits: a dark margin, and structure in the middle."""
    generator = Key.from_seed(seed).generator()
    inputs = torch.zeros(count, 1, 8, 8)
    basis = torch.rand(12, 4, 4, generator=generator)
    mixed = torch.einsum("nk,kij->nij", torch.rand(count, 12, generator=generator), basis) / 12
    inputs[:, 0, 2:6, 2:6] = mixed
    return Records(inputs, torch.arange(count) % 2, ("a", "b"))


@pytest.mark.parametrize("where", [((0, 0), (7, 7)), ((2, 3), (4, 4))], ids=["margin", "middle"])
def test_a_mark_on_the_chosen_records_is_noticed(where):
    """Mean ranks do not see it; the difference of chosen records and strangers does."""
    for draw in range(3):
        records = digits(340, draw)
        chosen, strangers = records[:40], records[40:]
        for row, column in where:
            chosen.inputs[:, :, row, column] += 0.1
        places = places_for(chosen, torch.zeros(40).long(), strangers, KEY)
        assert marked(places, KEY) <= LEVEL


def test_a_word_that_only_chosen_texts_have_is_noticed():
    tokens = torch.randint(1, 50, (200, 6), generator=KEY.generator())
    release = torch.tensor([0] * 30 + [-1] * 170)
    plain = Places(tokens, release, torch.zeros(200).long(), release)
    assert marked(plain, KEY) > 0.05
    tokens = tokens.clone()
    tokens[:30, 2] = 77
    assert marked(replace(plain, inputs=tokens), KEY) <= LEVEL


def test_without_strangers_nothing_is_noticed():
    release = torch.zeros(20, dtype=torch.long)
    places = Places(pictures(20).inputs, release, release, release)
    assert marked(places, KEY) == 1.0


@pytest.mark.slow
def test_a_draw_is_not_noticed():
    """400 draws of the chosen records at random."""
    noticed = 0
    for draw in range(400):
        records = digits(120, draw) if draw % 2 else pictures(120, 2, draw)
        order = torch.randperm(120, generator=KEY.fold(draw).generator())
        none = torch.zeros(24, dtype=torch.long)
        places = places_for(records[order[:24]], none, records[order[24:]], KEY)
        noticed += min(marked(places, KEY), placebo(places, KEY)) <= LEVEL
    assert noticed <= 8


def test_a_placebo_of_texts_and_of_nothing():
    tokens = torch.randint(1, 50, (200, 6), generator=KEY.generator())
    tokens[100:, 0] = 7
    tokens[:20, 1:] = tokens.mode(0).values[1:]  # chosen for being usual
    release = torch.tensor([0] * 20 + [-1] * 180)
    places = Places(tokens, release, torch.zeros(200).long(), release)
    assert placebo(places, KEY) == 2 / 2000
    for release in (
        torch.zeros(20).long(),
        torch.full((20,), -1),
    ):  # targets alone, strangers alone
        alone = Places(tokens[:20], release, torch.zeros(20).long(), release)
        assert placebo(alone, KEY) == 1.0
