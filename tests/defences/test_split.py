"""What every way of training a split network must satisfy. A new one is a new row in DEFENCES."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from exhume.core.contract import ExhumeError, Key, Records
from exhume.defences.split.channel import Channel
from exhume.defences.split.dropout_ensemble import DropoutEnsemble
from exhume.defences.split.ensembler import Ensembler, likeness
from exhume.defences.split.single import Dropout, ForeignHead, Noise, RandomHead, Shredder
from exhume.models.drawing import he_normal
from exhume.models.split.pipeline import SplitClient
from exhume.store.shards import FolderStore, NullStore
from exhume.train.single import (
    Schedule,
    SplitDefence,
    SplitJob,
    apply_dropout,
    augmented_images,
    fixed_noise,
    train_split,
)

# no defence, and a real one
DEFENCES = {
    "noise": (Noise(), Noise(0.5)),
    "dropout": (Dropout(), Dropout(0.5)),
    "dropout of answers": (Dropout(dropped="answers"), Dropout(0.5, "answers")),
    "random head": (RandomHead(frozen=False), RandomHead()),
    "shredder": (Shredder(), Shredder(0.5)),
    "dropout ensemble": (DropoutEnsemble(1, 0.0), DropoutEnsemble(3, 0.3)),
    "dropout ensemble of answers": (
        DropoutEnsemble(1, 0.0, "answers"),
        DropoutEnsemble(3, 0.3, "answers"),
    ),
    "ensembler": (None, Ensembler(3, 2)),
    "channel": (Channel(), Channel(0.2, 6)),
}


@dataclasses.dataclass(frozen=True)
class Small:
    """A chain that trains in a moment."""

    input_shape: tuple[int, ...] = (1, 8, 8)

    def module(self, key):
        return he_normal(
            lambda: nn.Sequential(
                nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()),
                nn.Sequential(nn.Conv2d(4, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU()),
                nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()),
                nn.Linear(32, 3),
            ),
            key,
        )


def pictures(count, key):
    """Bars: across, down, or a cross."""
    labels = torch.arange(count) % 3
    at = torch.randint(1, 7, (2, count), generator=key.generator())
    images = 0.1 * torch.rand(count, 1, 8, 8, generator=key.fold("n").generator())
    for i in range(count):
        if labels[i] != 1:
            images[i, 0, at[0, i]] = 1
        if labels[i] != 0:
            images[i, 0, :, at[1, i]] = 1
    return Records(images, labels, ("across", "down", "cross"))


@pytest.fixture(scope="module")
def job():
    records = pictures(120, Key.from_seed(0))
    return SplitJob(Small(), "0", "2", records, Schedule(10, 20, 0.1), augment=False)


@pytest.fixture(params=DEFENCES)
def row(request):
    return DEFENCES[request.param]


def train(defence, job, key):
    return defence.train(job, key=key, store=NullStore())


def test_it_trains_a_pipeline_that_works(row, job, key):
    pipeline = train(row[1], job, key)
    fresh = pictures(60, key.fold("test"))
    assert pipeline.accuracy(fresh.inputs, fresh.labels, key) > 0.6
    sent = (6,) if isinstance(row[1], Channel) else (4, 8, 8)
    assert pipeline.released(fresh.inputs).shape == (60, *sent)
    parts = (pipeline.client.head, pipeline.client.tail, *pipeline.bodies)
    assert not any(part.training for part in parts)
    assert not any(p.requires_grad for part in parts for p in part.parameters())


@pytest.fixture(scope="module")
def quick(job):
    return replace(job, schedule=Schedule(1, 40, 0.05))


@pytest.fixture(scope="module")
def plain(quick):
    """A network trained without any defence."""
    return train_split(quick, key=Key.from_seed(0), store=NullStore())


def test_the_same_key_the_same_bits_and_the_global_generator_alone(row, job, quick, key):
    torch.manual_seed(1)
    untouched = torch.rand(1)
    torch.manual_seed(1)
    x = job.records.inputs[:5]
    one, two = (train(row[1], quick, key) for _ in range(2))
    assert torch.equal(torch.rand(1), untouched)
    first, second = (made(x, key.generator()) for made in (one, two))
    assert torch.equal(first, second)
    third = train(row[1], quick, key.fold("other"))
    assert not torch.equal(first, third(x, key.generator()))


def test_strength_zero_is_plain_training(row, job, quick, plain, key):
    none, real = row
    x = job.records.inputs[:5]
    assert real.strength > 0
    if none is None:
        pytest.skip("one body of one is still trained twice")
    assert none.strength == 0
    torch.testing.assert_close(train(none, quick, key)(x), plain(x))


def test_it_is_a_frozen_value_with_the_four_headings(row):
    assert isinstance(row[1], SplitDefence)
    assert row[1].__dataclass_params__.frozen
    for heading in ("Sees:", "Assumes:", "Guarantees:", "Reference:"):
        assert heading in type(row[1]).__doc__


def test_noise_is_one_map_for_all_inputs_in_training_and_in_use(job, key):
    pipeline = train(Noise(0.5), replace(job, schedule=Schedule(1, 40)), key)
    x = job.records.inputs[:3]
    added = pipeline.released(x) - pipeline.client.head(x)
    expected = fixed_noise((4, 8, 8), 0.5, key).expand(3, 4, 8, 8)
    torch.testing.assert_close(added, expected, atol=1e-5, rtol=0)
    assert float(expected.std()) == pytest.approx(0.5, rel=0.15)


def test_a_random_head_is_not_trained(job, key):
    pipeline = train(RandomHead(), replace(job, schedule=Schedule(1, 40)), key)
    fresh = job.fresh(key).head.state_dict()
    assert all(torch.equal(t, fresh[n]) for n, t in pipeline.client.head.state_dict().items())


def test_a_foreign_head_is_put_in_front_of_a_network_trained_for_another(job, key):
    quick = replace(job, schedule=Schedule(4, 20, 0.05))
    plain, foreign = train(Noise(), quick, key), train(ForeignHead(), quick, key)
    for ours, theirs in (
        (plain.bodies[0], foreign.bodies[0]),
        (plain.client.tail, foreign.client.tail),
    ):
        pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert (ForeignHead(replaced=False).strength, ForeignHead().strength) == (0, 1)
    kept = train(ForeignHead(replaced=False), quick, key).client.head
    assert all(
        torch.equal(t, kept.state_dict()[n]) for n, t in plain.client.head.state_dict().items()
    )
    heads = [p.client.head.state_dict() for p in (plain, foreign)]
    assert not any(torch.equal(heads[0][n], heads[1][n]) for n in heads[0] if "weight" in n)
    inputs, labels = job.records.inputs, job.records.labels
    assert foreign.accuracy(inputs, labels) < plain.accuracy(inputs, labels)


def test_an_aid_is_for_the_head_and_is_not_kept(job, key):
    aided = replace(job, aid=1.0)
    plain, parts = (train_split(one, key=key, store=NullStore()) for one in (job, aided))
    assert set(parts.whole) == {"head", "body", "tail"}
    assert aided.digests[:-1] == job.digests
    assert aided.digests[-1] == "aid 1.0"
    heads = [part.head.state_dict() for part in (plain, parts)]
    assert not torch.equal(heads[0]["0.0.weight"], heads[1]["0.0.weight"])
    x, y = job.records.inputs, job.records.labels
    assert float((parts(x).argmax(1) == y).double().mean()) > 0.9


def test_shredder_leaves_the_network_and_grows_its_noise(job, key):
    quick = replace(job, schedule=Schedule(4, 20, 0.05))
    plain = train(Noise(), quick, key)
    shredded = train(Shredder(0.1, reward=5.0), quick, key)
    for a, b in zip(plain.bodies[0].parameters(), shredded.bodies[0].parameters(), strict=True):
        assert torch.equal(a, b)
    start = fixed_noise((4, 8, 8), 0.1, key).abs().mean()
    assert float(shredded.client.noise.abs().mean()) > 1.2 * float(start)


def test_the_ensembler_reads_the_selected_bodies_only(job, key):
    pipeline = train(Ensembler(3, 2), replace(job, schedule=Schedule(1, 40)), key)
    x = job.records.inputs[:4]
    features = pipeline.client.send(x)
    answers = [body(features) for body in pipeline.bodies]
    (left_out,) = set(range(3)) - set(pipeline.client.selected)
    changed = [torch.rand_like(a) if i == left_out else a for i, a in enumerate(answers)]
    assert torch.equal(pipeline.client.finish(changed), pipeline.client.finish(answers))
    inside = pipeline.client.selected[0]
    changed = [torch.rand_like(a) if i == inside else a for i, a in enumerate(answers)]
    assert not torch.equal(pipeline.client.finish(changed), pipeline.client.finish(answers))


def test_bodies_do_not_depend_on_the_selection(job, key):
    quick = replace(job, schedule=Schedule(1, 40))
    ensembler = Ensembler(3, 1)
    parts = ensembler.stage_one(quick, key=key, store=NullStore())
    before = [t.clone() for part in parts for t in part.body.state_dict().values()]
    made = [ensembler.stage_two(quick, parts, (i,), key=key, store=NullStore()) for i in range(2)]
    after = [t for body in made[1].bodies for t in body.state_dict().values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert [m.client.selected for m in made] == [(0,), (1,)]


def test_the_likeness_term_drives_the_head_away_from_those_of_stage_one(job, key):
    short = replace(job, schedule=Schedule(6, 20, 0.1))
    parts = Ensembler(2, 2).stage_one(short, key=key, store=NullStore())
    x = job.records.inputs

    def alike(weight):
        made = Ensembler(2, 2, likeness=weight).stage_two(
            short, parts, (0, 1), key=key, store=NullStore()
        )
        own = made.client.head(x).flatten(1)
        likest = [
            max(
                float(F.cosine_similarity(own[i], p.head(x[i : i + 1]).flatten(), 0)) for p in parts
            )
            for i in range(len(x))
        ]
        assert likeness(made, parts, x) == pytest.approx(sum(likest) / len(x), abs=1e-5)
        return likeness(made, parts, x)

    assert alike(5.0) < alike(0.0) - 0.1


def test_a_killed_ensembler_ends_with_the_same_bits(job, key, dying_store):
    quick = replace(job, records=job.records[:60], schedule=Schedule(1, 30))
    x = job.records.inputs[:4]
    whole = train(Ensembler(3, 2), quick, key)
    for at in (1, 2, 4, 7):
        store = dying_store(at)
        with pytest.raises(KeyboardInterrupt):
            Ensembler(3, 2).train(quick, key=key, store=store)
        resumed = Ensembler(3, 2).train(quick, key=key, store=store)
        assert torch.equal(resumed(x), whole(x))


def test_the_selection_is_one_of_all(key):
    ensembler = Ensembler(4, 2)
    drawn = {ensembler.choose(key.fold(i)) for i in range(100)}
    assert len(drawn) == 6
    assert all(len(set(s)) == 2 and list(s) == sorted(s) for s in drawn)


def test_augmented_images_are_moved_and_mirrored(key):
    image = torch.zeros(200, 1, 8, 8)
    image[:, 0, 4, 2] = 1
    moved = augmented_images(image, key.generator())
    assert moved.shape == image.shape
    places = {tuple(p) for p in moved[:, 0].nonzero()[:, 1:].tolist()}
    assert len(places) > 30
    assert 100 < float(moved.sum()) < 200  # some are moved out
    assert {0.0, 1.0} == set(moved.unique().tolist())


def test_dropout_keeps_the_mean_and_drops_its_share(key):
    values = torch.full((200, 50), 2.0)
    left = apply_dropout(values, 0.3, key.generator())
    assert torch.allclose(left.unique(), torch.tensor([0.0, 2 / 0.7]))
    assert float((left == 0).double().mean()) == pytest.approx(0.3, abs=0.02)
    assert float(left.mean()) == pytest.approx(2, abs=0.05)
    assert apply_dropout(values, 0.0, key.generator()) is values


def test_what_is_dropped_changes_the_training(job, quick, key):
    sent, answered = (train(Dropout(0.5, where), quick, key) for where in ("features", "answers"))
    x = job.records.inputs[:5]
    assert not torch.equal(sent.client.send(x), answered.client.send(x))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Ensembler(3, 4), "4 of 3 bodies; legal is 1 <= P <= N"),
        (lambda: Ensembler(3, 0), "0 of 3 bodies"),
        (lambda: Ensembler(sigma=-1.0), "sigma and likeness must be at least 0"),
        (lambda: Noise(-1.0), "sigma: must be at least 0, got -1.0"),
        (lambda: Dropout(1.0), r"rate: must lie in \[0, 1\), got 1.0"),
        (lambda: Shredder(reward=-1.0), "reward: must be at least 0"),
        (lambda: Dropout(0.5, "pixels"), "dropped: 'pixels' is not one of features, answers"),
        (lambda: DropoutEnsemble(0), "bodies must be at least 1"),
        (lambda: DropoutEnsemble(2, 1.0), r"rate: must lie in \[0, 1\), got 1.0"),
        (lambda: Channel(-1.0), "sigma: must be finite and at least 0, got -1.0"),
        (lambda: Channel(1.0, 0), "numbers: must be at least 1, got 0"),
    ],
)
def test_illegal_settings(make, said):
    with pytest.raises(ExhumeError, match=said):
        make()


def test_what_cannot_be_put_side_by_side_is_said(job, key):
    early = replace(job, second="1", schedule=Schedule(1, 40))
    with pytest.raises(ExhumeError, match="does not begin with a dense layer"):
        train(Ensembler(2, 1), early, key)
    client = SplitClient(nn.Identity(), torch.zeros(()), (0, 2), nn.Identity())
    with pytest.raises(ExhumeError, match=r"bodies \[0, 2\] chosen, 2 answered"):
        client.finish([torch.zeros(1, 2)] * 2)


def test_finished_bodies_of_another_cut_are_not_taken(tmp_path):
    """The same key and store, cut elsewhere: other bodies."""
    store, key = FolderStore(tmp_path), Key.from_seed(0)
    records = pictures(24, key)
    short = Schedule(1, 12, 0.05)
    cuts = [("0", "2"), ("1", "2")]
    trained = [
        Ensembler(2, 1).train(
            SplitJob(Small(), first, second, records, short, augment=False), key=key, store=store
        )
        for first, second in cuts
    ]
    sizes = [sum(p.numel() for p in pipeline.bodies[0].parameters()) for pipeline in trained]
    assert len(set(sizes)) == 2
