"""Planted texts behind the updates of small language models: every one comes back, and no other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from planted_language import (
    MASK,
    PLACES,
    WORDS,
    Plain,
    as_set,
    attacked,
    hugging_face,
    language_model,
    seeded,
    texts,
    update,
)
from torch import nn

from exhume.attacks.gradient.language import LanguageAttack, TokenBag
from exhume.attacks.gradient.traces import as_trained, span_of
from exhume.core.contract import ExhumeError, Gradient, Key, Knowledge, NotApplicable, Outcome
from exhume.models.mlp import MLP
from exhume.models.own_texts import LanguageModel, TextModel
from exhume.store.shards import NullStore

SHAPES = {
    "plain": Plain,
    "gpt": lambda: hugging_face("gpt"),
    "gpt untied": lambda: hugging_face("gpt", tied=False),
    "llama": lambda: hugging_face("llama", tied=False),
    "llama tied": lambda: hugging_face("llama"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_texts_of_causal_models_come_back_whole(shape):
    net = language_model(seeded(SHAPES[shape]))
    truth = texts(3)
    found = attacked(LanguageAttack(), net, update(net, truth))
    assert as_set(found.found()) == as_set(truth)
    assert found.status.converged
    assert found.observed["explained"] > 0.999


@pytest.mark.parametrize("shape", ["plain", "bert"])
def test_texts_of_encoders_come_back_as_fed(shape):
    make = (
        (lambda: Plain(causal=False, layers=3)) if shape == "plain" else lambda: hugging_face(shape)
    )
    net = language_model(seeded(make), "masked")
    hidden = net.masked(texts(2), Key.from_seed(3))
    release = update(net, hidden)
    found = attacked(LanguageAttack(), net, release)
    assert as_set(found.found()) == as_set(net.fed(hidden))
    assert MASK in found.found()
    at, values = release.at, release.values[0]
    assert as_set(as_trained(net, values, at, net.fed(hidden))) == as_set(hidden)


@pytest.mark.parametrize(("shape", "loss"), [("gpt", "next-token"), ("bert", "masked")])
def test_shorter_texts_end_where_they_end(shape, loss):
    net = language_model(seeded(lambda: hugging_face(shape)), loss, padding=0)
    records = texts(3, seed=1, shortest=4)
    assert 0 in records
    records = net.masked(records, Key.from_seed(1)) if loss == "masked" else records
    found = attacked(LanguageAttack(), net, update(net, records))
    assert as_set(found.found()) == as_set(net.fed(records))


def test_the_first_place_of_a_causal_model_leaves_nothing_in_the_queries():
    net = LanguageModel.of(seeded(Plain), 2)
    release = update(net, torch.tensor([[7, 9]]))
    slopes = net.layout.split(release.values[0])
    assert not slopes["mixes.0.query.weight"].any()
    assert slopes["mixes.0.value.weight"].any()
    assert attacked(LanguageAttack(), net, release).found().tolist() == [[7, 9]]


def test_equal_texts_are_found_once_and_one_token_repeated_is_a_text():
    net = language_model(seeded(Plain))
    truth = torch.cat([texts(2), texts(2)[:1]])
    found = attacked(LanguageAttack(), net, update(net, truth))
    assert as_set(found.found()) <= as_set(truth)
    net = language_model(seeded(lambda: hugging_face("llama")))
    same = torch.cat([texts(2), torch.full((1, PLACES), 7)])
    found = attacked(LanguageAttack(), net, update(net, same))
    assert as_set(found.found()) == as_set(same)


def test_half_precision_and_the_difference_of_two_states():
    net = language_model(seeded(Plain))
    truth = texts(2)
    release = update(net, truth)
    half = replace(release, values=release.values.half().float())
    after = release.at - 0.1 * release.values[0]
    states = replace(release, values=((release.at - after) / 0.1)[None])
    for given in (half, states):
        assert as_set(attacked(LanguageAttack(), net, given).found()) == as_set(truth)


def test_beyond_the_width_only_tokens_are_told():
    net = language_model(seeded(Plain))
    truth = texts(12)
    release = update(net, truth)
    found = attacked(LanguageAttack(), net, release)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert "as many places as its layers are wide (48;" in found.status.reason
    listed = Counter(attacked(TokenBag(), net, release).found().flatten().tolist())
    asked = Counter(truth[:, 1:].flatten().tolist())
    assert sum((listed & asked).values()) > 0.5 * sum(asked.values())


def test_tokens_of_a_masked_loss_are_listed_once():
    net = language_model(seeded(lambda: Plain(causal=False, layers=3)), "masked")
    hidden = net.masked(texts(2), Key.from_seed(0))
    listed = attacked(TokenBag(), net, update(net, hidden)).found().flatten().tolist()
    assert len(set(listed)) == len(listed) > 0
    assert MASK in listed


def test_a_span_has_as_many_directions_as_vectors():
    seen, outer = torch.randn(5, 20), torch.randn(30, 5)
    span = span_of([outer @ seen])
    assert span.rank == 5
    assert float(span.outside(seen).max()) < 1
    assert float(span.outside(torch.randn(50, 20)).min()) > 1
    assert span_of([torch.randn(30, 20)]) is None
    assert span_of([torch.zeros(30, 20)]) is None
    assert span_of([torch.randn(4, 5) @ torch.randn(5, 20)]) is None  # fewer rows than vectors


# What does not fit


class NoAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.out = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, tokens):
        return self.out(self.token(tokens))


def test_other_networks_are_refused_with_a_sentence():
    net = language_model(NoAttention())
    with pytest.raises(
        NotApplicable, match="no trained linear layer sees what attention has mixed"
    ):
        attacked(LanguageAttack(), net, update(net, texts(2)))
    known = Knowledge(architecture=MLP((4,), (3,), 2))
    with pytest.raises(NotApplicable, match="texts are read off a LanguageModel"):
        LanguageAttack().prepare(known, key=Key.from_seed(0), store=NullStore())
    other = language_model(seeded(Plain))
    with pytest.raises(ExhumeError, match="its layout is not that of"):
        attacked(LanguageAttack(), other, update(net, texts(2)))


def test_an_update_of_zeros_holds_no_text():
    net = language_model(seeded(Plain))
    nothing = Gradient(torch.zeros(1, net.layout.size), net.layout, net.initial(Key.from_seed(0)))
    found = attacked(LanguageAttack(), net, nothing)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert found.status.reason == "every value of the update is zero at the layers that see texts"


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (
            lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(32, 2)),
            {},
            "must return",
        ),
        (lambda: nn.Linear(PLACES, 3), {}, "it takes no token sequences|does not take sequences"),
        (lambda: Plain(causal=False), {}, "depend on later tokens; say --loss masked"),
        (Plain, {"loss": "masked"}, "a masked loss needs the number that hides a token"),
        (Plain, {"loss": "hinge"}, "'hinge' is not one of next-token, masked"),
        (Plain, {"padding": WORDS}, f"padding: {WORDS} given, the model's embedding has {WORDS}"),
    ],
)
def test_models_that_do_not_fit_are_named(make, options, sentence):
    with pytest.raises(ExhumeError, match=sentence):
        LanguageModel.of(make(), PLACES, **options)


def test_a_language_model_is_a_text_model_with_a_loss():
    net = language_model(seeded(Plain), padding=0)
    assert isinstance(net, TextModel)
    assert net.causal
    assert net.output == net.embedding == "token.weight"
    assert [site.local for site in net.sites[:2]] == [True, False]
    assert len(net.sites[0].weights) == 3
    records = torch.tensor([[3, 4, 5, 0, 0, 0, 0, 0]])
    assert net.targets(records)[0, :3].tolist() == [4, 5, -100]
    with pytest.raises(ExhumeError, match="no place of these texts has a target"):
        net.batch_loss(net.module(records * 0), records * 0)
