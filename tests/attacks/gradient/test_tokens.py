from __future__ import annotations

from itertools import product

import pytest
import torch

from exhume.attacks.gradient.span.attack import SpanAttack
from exhume.attacks.gradient.text.sentences import Assembly
from exhume.attacks.gradient.text.tokens import TokenAttack, occurring
from exhume.contract import (
    ExhumeError,
    Gradient,
    Knowledge,
    NotApplicable,
    Outcome,
    Records,
    Weights,
)
from exhume.models.mlp import MLP
from exhume.models.tokens import TokenNet
from exhume.score.tokens import score_tokens
from exhume.store import NullStore
from exhume.victims.gradient import release_batches

WORDS, PLACES = 60, 4


def game(key, pool, *, frozen, batch, releases=2, dtype=torch.float32):
    net = TokenNet(WORDS, PLACES, 32, 200, 3, pool, frozen)
    shape = (releases, batch, PLACES)
    tokens = torch.randint(WORDS, shape, generator=key.fold("tokens").generator()).float()
    labels = torch.randint(3, shape[:2], generator=key.fold("labels").generator())
    records = Records(tokens, labels, ("a", "b", "c"))
    release, secret = release_batches(net, net.initial(key).to(dtype), records)
    return net, release, secret


def attacked(net, release, key, **options):
    knowledge = Knowledge(architecture=net)
    return TokenAttack(**options).prepare(knowledge, key=key, store=NullStore()).run(release)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("pool", ["flatten", "mean", "attention"])
def test_every_token_of_every_record(pool, frozen, batch, key):
    net, release, secret = game(key, pool, frozen=frozen, batch=batch)
    found = attacked(net, release, key)
    decoys = torch.randint(WORDS, (200, PLACES), generator=key.fold("decoys").generator())
    metrics = score_tokens(secret, found, decoys).metrics()
    assert metrics["exact_bags"] == 1
    assert metrics["null_bag_accuracy"] < 0.4
    if pool != "mean":  # the order is there
        assert metrics["exact"] == 1
        assert metrics["null_token_accuracy"] < 0.2


def test_rows_tell_which_tokens_occur(key):
    net, release, secret = game(key, "mean", frozen=False, batch=3)
    for values, tokens in zip(release.values, secret.open().inputs, strict=True):
        there = occurring(net, values).nonzero()[:, 0].tolist()
        assert there == sorted({int(t) for t in tokens.flatten()})
    assert bool(occurring(net, torch.ones(net.layout.size)).all())  # tied: every row is touched
    public, same, _ = game(key, "mean", frozen=True, batch=3)
    assert bool(occurring(public, same.values[0]).all())


def test_a_tied_embedding_is_read_through_the_layers_above(key):
    net, release, secret = game(key, "flatten", frozen=False, batch=1)
    rows = slice(0, WORDS * 32)
    values = release.values.clone()
    values[:, rows] += 0.01  # what an output layer of the same weights would add to every row
    tied = Gradient(values, release.layout, release.at)
    scores = score_tokens(secret, attacked(net, tied, key), torch.zeros(1, PLACES))
    assert scores.metrics()["exact"] == 1


def test_another_route(key):
    """Behind a queried head the span attack finds records that share all their neurons."""
    net = TokenNet(WORDS, PLACES, 8, 800, 1, "flatten", frozen=True, activation="tanh")
    tokens = torch.randint(WORDS, (1, 3, PLACES), generator=key.generator()).float()
    records = Records(tokens, torch.tensor([[0, 1, 1]]), ("a", "b"))
    at = SpanAttack(spread=0.15).query(net.head, key).double()
    release, secret = release_batches(net, at, records)
    blind = attacked(net, release, key)
    assert blind.status.outcome is Outcome.NOT_APPLICABLE
    assert "no two neurons agree" in blind.status.reason
    found = attacked(net, release, key, route=SpanAttack(nonnegative=False))
    assert score_tokens(secret, found, torch.zeros(1, PLACES)).metrics()["exact"] == 1
    assert sorted(found.labels[0].tolist()) == [0, 1, 1]


def test_what_comes_back_from_a_full_span_is_right_or_nothing(key):
    """More tokens than an embedding has numbers: every token fits every place, the features decide."""
    net, release, secret = game(key, "attention", frozen=True, batch=9, releases=1)
    found = attacked(net, release, key, starts=16)
    truth = secret.open().inputs[0].tolist()
    real = found.candidates[0][torch.isfinite(found.confidence[0])].tolist()
    assert all(sentence in truth for sentence in real)


def test_a_mixture_is_no_sentence(key):
    net, release, _ = game(key, "flatten", frozen=True, batch=1)
    for other in (release.values + release.values.abs().mean(), release.values.roll(1, 1)):
        spoilt = attacked(net, Gradient(other, release.layout, release.at), key)
        assert spoilt.status.outcome is Outcome.NOT_APPLICABLE


@pytest.mark.parametrize("largest", [1000, 10])  # all of them, and by search
def test_sentences_are_put_together_by_their_features(largest, key):
    places = [[1, 2, 3], [4, 5], [6, 7, 8], [9]]
    weights = torch.randn(10, 4, 12, generator=key.generator(), dtype=torch.float64)

    def features(tokens):
        return torch.tanh(torch.stack([weights[tokens[:, i], i] for i in range(4)]).sum(0))

    truth = torch.tensor([[2, 5, 8, 9], [3, 4, 6, 9]])
    found, misfit = Assembly(places, features, largest, 32, key).fit(features(truth), 2)
    assert torch.equal(found, truth)
    assert float(misfit.max()) < 1e-12
    every = features(torch.tensor(list(product(*places))))
    other = features(truth[:1]) + 0.1
    _, off = Assembly(places, features, largest, 32, key).fit(other, 1)
    naive = (every - other).norm(dim=1).min() / other.norm()
    assert float(off) == pytest.approx(float(naive))


def test_what_does_not_apply(key):
    with pytest.raises(NotApplicable, match="tokens are read off a TokenNet, not MLP"):
        TokenAttack().prepare(
            Knowledge(architecture=MLP((4,), (3,), 2)), key=key, store=NullStore()
        )
    net, release, _ = game(key, "mean", frozen=True, batch=1)
    prepared = TokenAttack().prepare(Knowledge(architecture=net), key=key, store=NullStore())
    assert "not weights" in prepared.run(Weights(release.values, release.layout)).status.reason
    other = game(key, "mean", frozen=False, batch=1)[1]
    with pytest.raises(ExhumeError, match="release: its layout is not that of"):
        prepared.run(other)
