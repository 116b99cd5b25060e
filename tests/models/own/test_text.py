"""Somebody else's text classifiers: recognised by what they take, read by running them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.own_texts import TextModel, takes_tokens

WORDS, PLACES, WIDTH = 30, 6, 8


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(20, 3)  # defined first, used last
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=2)
        self.hidden = nn.Linear(PLACES * WIDTH, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(self.embed(tokens).flatten(1))))


class Attention(nn.Module):
    def __init__(self, first: bool = True) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=first, dropout=0.5)
        self.mix, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        turned = vectors if self.attend.batch_first else vectors.transpose(0, 1)
        mixed = self.attend(turned, turned, turned)[0]
        mixed = mixed if self.attend.batch_first else mixed.transpose(0, 1)
        return self.out(self.mix(mixed).mean(1))


class Writer(Flat):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens)


def test_what_a_flat_model_is(key):
    net = TextModel.of(Flat(), PLACES)
    assert (net.vocabulary, net.padding, net.embedding) == (WORDS, 2, "embed.weight")
    assert (net.head, net.local, net.input_shape) == ("hidden", (), (PLACES,))
    assert str(net) == "Flat with 1,283 parameters, for 6 tokens of 30"
    tokens = torch.randint(WORDS, (4, PLACES), generator=key.generator())
    want = net.module.embed(tokens).flatten(1)
    assert torch.equal(net.features(net.initial(key), tokens), want)
    assert torch.equal(net.table(net.initial(key)), net.module.embed.weight)
    assert torch.equal(
        net.build()(tokens.float()), net.module(tokens)
    )  # numbers may come as floats
    assert TextModel.of(Flat(), PLACES, padding=0).padding == 0


@pytest.mark.parametrize("first", [True, False])
def test_attention_sees_places_one_by_one(first, key):
    net = TextModel.of(Attention(first), PLACES)
    assert net.local == ("attend.in_proj_weight",)  # what is mixed is not local
    assert net.head == "out"
    vectors = net.vectors(net.initial(key), [4, 9])
    module = net.module
    want = module.embed(torch.tensor([4, 9]))[None] + module.place.weight[:, None]
    torch.testing.assert_close(vectors, want.detach())


def test_what_is_frozen_is_known_and_not_in_the_layout(key):
    module = Flat()
    module.embed.weight.requires_grad_(False)
    module.hidden.weight.requires_grad_(False)
    net = TextModel.of(module, PLACES)
    assert net.layout.names == ("out.weight", "out.bias", "hidden.bias")
    assert net.head == "out"
    assert torch.equal(net.table(net.initial(key)), module.embed.weight)
    everything = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert torch.equal(net.trained(everything), net.initial(Key.from_seed(1)))


def test_who_takes_tokens():
    assert takes_tokens(Flat(), PLACES)
    assert not takes_tokens(Flat(), PLACES + 1)
    assert not takes_tokens(nn.Sequential(nn.Linear(PLACES, 3)), PLACES)
    assert takes_tokens(nn.Sequential(nn.EmbeddingBag(WORDS, 4), nn.Linear(4, 2)), PLACES)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (nn.Sequential(nn.Linear(PLACES, 3)), {}, "model: it does not take sequences of 6 tokens"),
        (Flat(), {"length": 5}, "model: it does not take sequences of 5 tokens"),
        (Flat(), {"padding": 30}, "padding: 30 given, the model's embedding has 30 rows"),
        (Writer(), {}, r"must return \(3, classes\) numbers, it returns \(3, 6, 8\); a model that"),
        (nn.Flatten(), {}, "no nn.Embedding of it is given its inputs"),
    ],
)
def test_what_is_no_text_classifier(module, options, message):
    with pytest.raises(ExhumeError, match=message):
        TextModel.of(module, **{"length": PLACES, **options})
