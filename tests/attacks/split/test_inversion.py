from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from exhume import readers
from exhume.attacks.split.inversion import (
    Committee,
    Likelihood,
    ShadowInversion,
    SubsetSearch,
    TrueHeadInversion,
)
from exhume.attacks.split.shadow import moment_distance, moments
from exhume.core.contract import Activations, ExhumeError, Key, NotApplicable, Outcome, Weights
from exhume.defences.split.single import Noise
from exhume.models.drawing import he_normal
from exhume.models.mlp import MLP
from exhume.models.split.inverter import Decoder, ShadowHead, halvings
from exhume.models.split.pipeline import Pipeline
from exhume.readers import Sizes
from exhume.store.shards import NullStore
from exhume.train.single import Schedule, SplitJob
from exhume.victims.split import release_features, server_knowledge

QUICK = Schedule(2, 100, 3e-3, "adam", 0.0)
LONG = Schedule(25, 100, 1e-2, "adam", 0.0)
PLAIN = ShadowInversion((0,), ShadowHead(16, 2), Decoder(16), QUICK, QUICK)


@dataclass(frozen=True)
class Chain:
    input_shape: tuple[int, ...] = (1, 8, 8)

    def module(self, key):
        return he_normal(
            lambda: nn.Sequential(
                nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU()),
                nn.Sequential(nn.Conv2d(6, 12, 3, 2), nn.ReLU(), nn.Flatten()),
                nn.Linear(108, 10),
            ),
            key,
        )


@pytest.fixture(scope="module")
def game():
    key = Key.from_seed(0)
    parts = readers.split(readers.load("digits"), Sizes(300, 40, 400, 400, 0), key)
    job = SplitJob(Chain(), "0", "1", parts.fixed, Schedule(4, 32, 0.05), augment=False)
    one, two = (Noise(0.05).train(job, key=key.fold(i), store=NullStore()) for i in range(2))
    pipeline = Pipeline(one.client, (*one.bodies, *two.bodies), one.cut)
    release, secret = release_features(pipeline, parts.target)
    knowledge = server_knowledge(pipeline, parts.shadow, earlier=parts.public, with_head=True)
    return knowledge, release, secret.open().inputs


def run(attack, game, key, store=None):
    return attack.prepare(game[0], key=key, store=store or NullStore()).run(game[1])


def error(found, game):
    """Squared error over that of the mean record."""
    knowledge, _, truth = game
    null = (knowledge.shadow.inputs.mean(0) - truth).square().mean()
    return float((found.candidates[:, 0] - truth).square().mean() / null)


def test_with_the_true_head_the_inputs_come_back(game, key):
    found = run(TrueHeadInversion(Decoder(16), replace(LONG, epochs=15)), game, key)
    assert error(found, game) < 0.3
    assert found.observed["mse_on_own_features"] < 0.02


def test_matching_gives_the_shadow_the_moments_of_what_the_client_has_sent(game, key):
    """The paper's shadow classifies, but its features are of another size and shape altogether."""
    knowledge, release, _ = game
    matched = replace(PLAIN, shadow_schedule=LONG, decoder_schedule=LONG, match=10.0)
    apart, explained = [], []
    for attack in (matched, replace(matched, match=0.0)):
        prepared = attack.prepare(knowledge, key=key, store=NullStore())
        with torch.no_grad():
            own = moments(prepared.head(knowledge.shadow.inputs))
        apart.append(float(moment_distance(own, moments(knowledge.seen))))
        explained.append(float(prepared.run(release).confidence.mean()))
    assert apart[0] < 0.5 < 10 < apart[1]
    assert explained[0] > explained[1]


def test_a_learned_selector_says_which_bodies_count(game, key):
    found = run(replace(PLAIN, reads="learned"), game, key)
    weights = [found.observed[f"weight_{i}"] for i in range(2)]
    assert sum(weights) == pytest.approx(1)
    assert found.candidates.shape == (40, 1, 1, 8, 8)


def test_subsets_are_tried_in_order_and_judged_by_accuracy(game, key):
    assert list(SubsetSearch().subsets(3)) == [
        (0,),
        (1,),
        (2,),
        (0, 1),
        (0, 2),
        (1, 2),
        (0, 1, 2),
    ]
    assert list(SubsetSearch(2).subsets(3)) == [(0, 1), (0, 2), (1, 2)]
    assert list(SubsetSearch(budget=2).subsets(3)) == [(0,), (1,)]
    found = run(SubsetSearch(inversion=PLAIN), game, key)
    tried = {n: v for n, v in found.observed.items() if n.startswith("shadow_accuracy.")}
    assert set(tried) == {f"shadow_accuracy.{s}" for s in ("0", "1", "0+1")}
    best = max(tried, key=tried.get).removeprefix("shadow_accuracy.")
    chosen = [str(i) for i in range(2) if found.observed[f"chosen_{i}"]]
    assert "+".join(chosen) == best
    assert found.observed["shadow_accuracy"] == max(tried.values())
    assert (found.observed["subsets"], found.cost.models) == (3, 4)


def test_a_committee_is_the_mean_of_its_members(game, key):
    prepared = Committee((PLAIN, PLAIN)).prepare(game[0], key=key, store=NullStore())
    members = [
        PLAIN.prepare(game[0], key=each, store=NullStore()).run(game[1]).candidates
        for each in (key, key.fold("member", 1))
    ]
    assert not torch.equal(*members)
    found = prepared.run(game[1])
    torch.testing.assert_close(found.candidates, (members[0] + members[1]) / 2)
    assert float(found.confidence.max()) < 0


def test_the_search_explains_the_features_better_than_the_decoder(game, key):
    bound = TrueHeadInversion(Decoder(16), QUICK)
    start = run(bound, game, key)
    found = run(Likelihood(bound, steps=100, smooth=0.001), game, key)
    assert float(found.confidence.mean()) > float(start.confidence.mean())
    assert error(found, game) < error(start, game)


def test_killed_and_resumed_it_ends_with_the_same_bits(game, key, dying_store):
    whole = run(PLAIN, game, key)
    for at in (1, 3):
        store = dying_store(at)
        with pytest.raises(KeyboardInterrupt):
            run(PLAIN, game, key, store)
        assert torch.equal(run(PLAIN, game, key, store).candidates, whole.candidates)


def test_moments_equal_their_definition(key):
    f = torch.randn(5, 2, 3, 4, generator=key.generator())
    mean, same, right, *_ = moments(f)
    torch.testing.assert_close(mean, sum(f) / 5)
    c = f - mean
    naive = torch.zeros(2, 2)
    shifted = torch.zeros(2, 2)
    for n in range(5):
        for y in range(3):
            for x in range(4):
                naive += torch.outer(c[n, :, y, x], c[n, :, y, x]) / (5 * 3 * 4)
                if x < 3:
                    shifted += torch.outer(c[n, :, y, x], c[n, :, y, x + 1]) / (5 * 3 * 3)
    torch.testing.assert_close(same, naive)
    torch.testing.assert_close(right, shifted)
    assert len(moments(torch.rand(3, 2, 1, 1))) == 2  # lags that do not fit are left out
    assert float(moment_distance(moments(f), moments(f))) == 0
    assert float(moment_distance(moments(2 * f), moments(f))) > 1


def test_what_does_not_fit_is_said(game, key):
    knowledge = game[0]
    other = Activations(torch.zeros(2, 3, 8, 8), "cut")
    prepared = PLAIN.prepare(knowledge, key=key, store=NullStore())
    with pytest.raises(
        ExhumeError, match=r"features of shape \(3, 8, 8\), the bodies take \(6, 8, 8\)"
    ):
        prepared.run(other)
    weights = Weights(torch.zeros(1, 3), MLP((1,), (), 2).layout)
    assert prepared.run(weights).status.outcome is Outcome.NOT_APPLICABLE
    foreign = replace(knowledge, parts={"body0": nn.Conv2d(3, 4, 3)})
    with pytest.raises(ExhumeError, match="a body cannot take features of shape"):
        PLAIN.prepare(foreign, key=key, store=NullStore())
    with pytest.raises(NotApplicable, match="needs to know: seen"):
        replace(PLAIN, match=1.0).prepare(replace(knowledge, seen=None), key=key, store=NullStore())
    with pytest.raises(NotApplicable, match="needs to know: shadow, features, parts"):
        PLAIN.prepare(
            replace(knowledge, shadow=None, features=None, parts={}), key=key, store=NullStore()
        )
    bodies = {n: m for n, m in knowledge.parts.items() if n != "head"}
    with pytest.raises(NotApplicable, match="needs the part named head"):
        TrueHeadInversion().prepare(replace(knowledge, parts=bodies), key=key, store=NullStore())
    with pytest.raises(ExhumeError, match="size: 3 of 2 bodies cannot be chosen"):
        SubsetSearch(3).prepare(knowledge, key=key, store=NullStore())
    for reads in ((5,), (), "all"):
        with pytest.raises(ExhumeError, match="neither 'learned' nor a choice of 2 bodies"):
            replace(PLAIN, reads=reads).prepare(knowledge, key=key, store=NullStore())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ShadowInversion(match=-1.0), "match: must be at least 0"),
        (lambda: SubsetSearch(-1), "size at least 0"),
        (lambda: Committee((PLAIN,)), "at least 2 make a committee"),
        (lambda: Likelihood(steps=0), "steps and rate must be positive"),
        (lambda: ShadowHead(0), "channels at least 1"),
        (lambda: Decoder(0), "channels: at least 1 needed"),
        (lambda: halvings((3, 8, 8), (6, 3, 3)), "do not halve images"),
        (lambda: halvings((64,), (6, 3, 3)), "images are needed on both sides"),
    ],
)
def test_illegal_settings(make, said):
    with pytest.raises(ExhumeError, match=said):
        make()
