"""Whole sentences behind attention, flattening and averaging, with trained, tied and public embeddings."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from exhume.attacks.gradient.text import Assembly, TextAttack, words_in
from exhume.core.contract import Gradient, Knowledge, Outcome, Records
from exhume.core.own_code import seeded_globals
from exhume.models.own_texts import TextModel
from exhume.score.texts import token_shares
from exhume.store.shards import NullStore
from exhume.victims.gradient import release_batches

WORDS, PLACES, WIDTH = 60, 4, 32


class Net(nn.Module):
    """One head of attention with layers of its own for queries, keys and values; or none."""

    def __init__(self, pool: str) -> None:
        super().__init__()
        self.pool, self.embed = pool, nn.Embedding(WORDS, WIDTH)
        self.register_buffer("places", torch.randn(PLACES, WIDTH))
        if pool == "attention":
            self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.hidden = nn.Linear(WIDTH * (PLACES if pool == "flatten" else 1), 200)
        self.out = nn.Linear(200, 3)

    def forward(self, tokens):
        vectors = self.embed(tokens)
        if self.pool == "attention":
            placed = F.layer_norm(vectors + self.places, (WIDTH,))
            vectors = placed + F.scaled_dot_product_attention(*(mix(placed) for mix in self.mix))
        pooled = vectors.flatten(1) if self.pool == "flatten" else vectors.mean(1)
        return self.out(F.relu(self.hidden(pooled)))


def game(key, pool, *, frozen, batch, releases=2):
    with seeded_globals(key):
        module = Net(pool)
    module.embed.requires_grad_(not frozen)
    net = TextModel.of(module, PLACES)
    shape = (releases, batch, PLACES)
    tokens = torch.randint(WORDS, shape, generator=key.fold("tokens").generator())
    labels = torch.randint(3, shape[:2], generator=key.fold("labels").generator())
    records = Records(tokens, labels, ("a", "b", "c"))
    release, secret = release_batches(net, net.initial(key), records)
    return net, release, secret


def attacked(net, release, key, **options):
    knowledge = Knowledge(architecture=net)
    return TextAttack(**options).prepare(knowledge, key=key, store=NullStore()).run(release)


def exact(secret, found):
    return token_shares(secret, found, torch.zeros(1, PLACES), padding=None)["exact"]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("pool", ["flatten", "mean", "attention"])
def test_every_token_of_every_record(pool, frozen, batch, key):
    net, release, secret = game(key, pool, frozen=frozen, batch=batch)
    assert len(net.local) == (3 if pool == "attention" else 0)
    found = attacked(net, release, key)
    decoys = torch.randint(WORDS, (200, PLACES), generator=key.fold("decoys").generator())
    metrics = token_shares(secret, found, decoys, padding=None)
    assert metrics["exact_bags"] == 1
    assert metrics["null_bag_accuracy"] < 0.4
    if pool != "mean":  # the order is there
        assert metrics["exact"] == 1
        assert metrics["null_token_accuracy"] < 0.2


def test_rows_tell_which_tokens_occur(key):
    net, release, secret = game(key, "mean", frozen=False, batch=3)
    for values, tokens in zip(release.values, secret.open().inputs, strict=True):
        assert words_in(net, values).tolist() == sorted(set(tokens.flatten().tolist()))
    assert words_in(net, torch.ones(net.layout.size)) is None  # tied: every row is touched
    public, same, _ = game(key, "mean", frozen=True, batch=3)
    assert words_in(public, same.values[0]) is None


def test_a_tied_embedding_is_read_through_the_layers_above(key):
    net, release, secret = game(key, "flatten", frozen=False, batch=1)
    assert net.layout.names[0] == "embed.weight"
    values = release.values.clone()
    values[:, : WORDS * WIDTH] += 0.01  # what outputs of the same weights would add to every row
    tied = Gradient(values, release.layout, release.at)
    assert exact(secret, attacked(net, tied, key)) == 1


def test_what_comes_back_from_a_full_span_is_right_or_nothing(key):
    """More tokens than an embedding has numbers: every token fits every place, the features decide."""
    net, release, secret = game(key, "attention", frozen=True, batch=9, releases=1)
    found = attacked(net, release, key, starts=4, pairs=0)
    truth = secret.open().inputs[0].tolist()
    assert all(sentence in truth for sentence in found.found().tolist())


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
