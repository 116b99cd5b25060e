"""Averages of a batch count for nobody, and chance is given the same rule."""

from __future__ import annotations

import pytest
import torch

from exhume.core.contract import Key, Records
from exhume.score.lineup import Lineup, likeness, likeness_anew
from exhume.score.places import Places, batch_answers, line_up, places_for

KEY = Key.from_seed(6)


def pictures(count, classes=2, seed=0, side=6):
    drawn = torch.rand(count, 1, side, side, generator=Key.from_seed(seed).generator())
    return Records(drawn, torch.arange(count) % classes, tuple("abcdefghij"[:classes]))


def placed(batches, strangers, seed=0):
    """Places of these batches in turn, one release each."""
    private = Records(
        torch.cat([batch.inputs for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
        batches[0].classes,
    )
    release = torch.repeat_interleave(
        torch.arange(len(batches)), torch.tensor([len(batch) for batch in batches])
    )
    return places_for(private, release, strangers, Key.from_seed(seed))


def averages(candidates, batch):
    """(k,) bool"""
    places = Places(
        batch.inputs, torch.zeros(len(batch)).long(), batch.labels, torch.arange(len(batch))
    )
    answers = batch_answers(places, [candidates], [batch]).answers[0]
    return (~answers.no_averages(torch.arange(len(answers.gram))[None])[0]).tolist()


def test_what_an_average_is():
    batch = pictures(4, 2)
    mean, mixed = batch.inputs.mean(0), batch.inputs[[0, 2]].mean(0)  # of all, of one class
    near = batch.inputs[1] + 0.01
    assert averages(torch.stack([mean, mixed, near]), batch) == [True, True, False]
    assert averages(mean[None], batch[:1]) == [False]
    line = Records(torch.tensor([[-2.0], [2.0]]), torch.zeros(2).long(), ("a",))
    there = torch.tensor([[-1.1], [-1.0], [-0.9]])  # halfway between a record and the mean
    assert averages(there, line) == [False, False, True]


def test_copies_without_a_place_belong_to_the_batch():
    """The mean of a batch in which one record stands three times."""
    batch = pictures(2, 1)[torch.tensor([0, 0, 0, 1])]
    mean = batch.inputs.mean(0, keepdim=True)
    places = placed([batch], pictures(20, 1, seed=1))
    assert places.targets == 2
    answers = batch_answers(places, [mean], [batch])
    assert answers.dropped == 1


def naive_counts(places, candidates, batches, lineup, drawn, draws):
    """T of every permutation, batch by batch and candidate by candidate."""
    generator = KEY.fold("permutations").generator()
    moved = lineup._moved(drawn)
    seated = torch.arange(len(places.inputs)).repeat(draws, 1)
    for where in moved:
        order = torch.rand(draws, len(where), generator=generator).argsort(1)
        seated[:, where] = where[order]
    counts = []
    for row in seated:
        count = 0
        for release, found in enumerate(candidates):
            own = (places.release == release).nonzero()[:, 0]
            batch = places.inputs[row[own]].flatten(1).double()
            labels = places.stratum[own]
            means = [batch.mean(0)]
            means += [batch[labels == one].mean(0) for one in labels.unique()]
            left = []
            for one in found.flatten(1).double():
                to_mean = min((one - mean).norm() for mean in means)
                if to_mean >= (batch - one).norm(dim=1).min():
                    left.append(one)
            if not left:
                continue
            shaped = torch.stack(left).reshape(-1, *places.inputs.shape[1:])
            measures = likeness([shaped], places.inputs)
            for i in [i for i in own.tolist() if i in drawn]:
                count += any(bool(m[0, row[i]] > m[0, row[drawn[i]]].max()) for m in measures)
        counts.append(count)
    return counts


def test_the_count_is_that_of_the_definition():
    """Two batches of three in two classes; candidates near records, means, and nothing."""
    everyone = pictures(66, 2, side=2)
    batches, strangers = [everyone[:4], everyone[4:6]], everyone[6:]
    places = placed(batches, strangers)
    noise = torch.rand(2, 5, 1, 2, 2, generator=KEY.generator())
    candidates = [
        torch.cat([0.5 * batch.inputs[:2] + 0.5 * some[:2], batch.inputs.mean(0)[None], some])
        for batch, some in zip(batches, noise, strict=True)
    ]
    answers = batch_answers(places, candidates, batches)
    lineup = Lineup(likeness_anew(answers), places.release, places.stratum, answers)
    drawn = lineup._strangers(12, KEY)
    counts = lineup._permuted_anew(answers, drawn, 60, KEY.fold("permutations"))
    expected = naive_counts(places, candidates, batches, lineup, drawn, 60)
    assert counts.tolist() == expected
    assert len(set(expected)) > 2
    large = answers.answers[0]
    members = torch.rand(7, 60, generator=KEY.generator()).argsort(1)[:, :9]
    plain = large.gram[members[:, :, None], members[:, None]].mean((1, 2))
    torch.testing.assert_close(large._squared_mean(members), plain)
    few = members[:, :2]
    plain = large.gram[few[:, :, None], few[:, None]].mean((1, 2))
    torch.testing.assert_close(large._squared_mean(few), plain)


def null_p(draw, classes=1, batches=4, size=16, answers=24):
    """Candidates that know nothing, near means of random records; the batches are drawn at random."""
    key = Key.from_seed(draw)
    everyone = pictures(batches * size + 120, classes, seed=draw, side=3)
    private = [everyone[b * size : (b + 1) * size] for b in range(batches)]
    places = placed(private, everyone[batches * size :], draw)
    some = torch.rand(batches, answers, 1, 3, 3, generator=key.fold("answers").generator())
    candidates = [
        0.5 + shrink * (one - 0.5) for one, shrink in zip(some, (0.2, 0.5, 0.8, 1.0), strict=True)
    ]
    found = batch_answers(places, candidates, private)
    lineup = Lineup(likeness_anew(found), places.release, places.stratum, found)
    return lineup.score(key, draws=999, strangers=30).p


@pytest.mark.slow
def test_the_level_holds_for_candidates_near_means():
    """Four batches of 16: with the true batches alone cleared of averages a fifth of the draws rejects."""
    p_values = torch.tensor([null_p(draw) for draw in range(300)])
    assert (p_values <= 0.01).double().mean() <= 0.02
    assert (p_values <= 0.05).double().mean() <= 0.08


def test_an_average_identifies_nobody_and_a_record_is_identified():
    everyone = pictures(150, 2)
    batches, strangers = [everyone[:8], everyone[8:16]], everyone[16:]
    places = placed(batches, strangers)
    means = [batch.inputs.mean(0, keepdim=True) for batch in batches]
    row, ranks = line_up(places, means, KEY, redealt=batch_answers(places, means, batches))
    assert (row.identified, row.p) == (0, 1.0)
    assert bool((ranks > 1).all())
    exact = [
        torch.cat([batch.inputs[:4], mean]) for batch, mean in zip(batches, means, strict=True)
    ]
    found = batch_answers(places, exact, batches)
    row, ranks = line_up(places, exact, KEY, redealt=found)
    assert (found.dropped, row.p) == (2, 1e-4)
    assert ranks.tolist()[:4] == ranks.tolist()[8:12] == [1] * 4
    nobody = [exact[0][:0], exact[1]]
    found = batch_answers(places, nobody, batches)
    _, ranks = line_up(places, nobody, KEY, redealt=found)
    assert bool((ranks[:8] > 1).all())
    assert ranks.tolist()[8:12] == [1] * 4


def test_places_without_batches_are_as_they_were():
    """The same similarity, where nothing is an average."""
    everyone = pictures(60, 1)
    places = placed([everyone[:1], everyone[1:2]], everyone[2:])
    assert isinstance(places, Places)
    candidates = [everyone.inputs[:1], everyone.inputs[1:2]]
    batches = [everyone[:1], everyone[1:2]]
    found = batch_answers(places, candidates, batches)
    for left, right in zip(likeness_anew(found), likeness(candidates, places.inputs), strict=True):
        torch.testing.assert_close(left, right)
