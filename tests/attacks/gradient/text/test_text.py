"""Planted texts behind gradients of modules that exhume has never seen."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.attacks.gradient.text import TextAttack, WordRows, pooling_of, words_in
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Knowledge,
    Layout,
    NotApplicable,
    Outcome,
    Weights,
)
from exhume.models.mlp import MLP
from exhume.models.own_texts import TextModel
from exhume.store.shards import NullStore

WORDS, PLACES, WIDTH = 80, 5, 32


class Net(nn.Module):
    """Of one of several kinds."""

    def __init__(self, kind: str, hidden: int = 120) -> None:
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.place = nn.Embedding(PLACES, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.hidden = nn.Linear(WIDTH * (PLACES if kind == "flat" else 1), hidden)
        self.out = nn.Linear(hidden, 3)

    def pooled(self, tokens: Tensor) -> Tensor:
        vectors, there = self.embed(tokens), (tokens != 0)[..., None].float()
        match self.kind:
            case "flat":
                return (vectors + self.place.weight).flatten(1)
            case "mean":
                return torch.tanh(vectors).mean(1) + 0.1
            case "masked":
                return (vectors * there).sum(1) / there.sum(1).clamp_min(1)
            case "first":
                mixed = self.encoder(vectors + self.place.weight, src_key_padding_mask=tokens == 0)
                return mixed[:, 0]
            case _:
                mixed = self.encoder(vectors + self.place.weight, src_key_padding_mask=tokens == 0)
                return (mixed * there).sum(1) / there.sum(1).clamp_min(1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(F.relu(self.hidden(self.pooled(tokens))))


def game(kind, key, *, batch=2, padding=None, frozen=False, **sizes):
    with torch.random.fork_rng():
        torch.manual_seed(key.seed() % 1000)
        module = Net(kind, **sizes).eval()
    module.embed.weight.requires_grad_(not frozen)
    generator = key.fold("tokens").generator()
    tokens = torch.randint(1, WORDS, (batch, PLACES), generator=generator)
    if padding is not None:
        tokens[0, 3:] = padding
    labels = torch.arange(batch) % 3
    F.cross_entropy(module(tokens), labels).backward()
    net = TextModel.of(module, PLACES, padding)
    own = dict(module.named_parameters())
    slopes = [own[n].grad if own[n].grad is not None else 0 * own[n] for n in net.layout.names]
    values = torch.cat([slope.detach().flatten() for slope in slopes])[None]
    return net, Gradient(values, net.layout, net.initial(key)), tokens


def attacked(net, gradient, key, batch=2, **options):
    knowledge = Knowledge(architecture=net, batch_size=batch)
    return TextAttack(**options).prepare(knowledge, key=key, store=NullStore()).run(gradient)


def rows(tokens):
    return {tuple(row) for row in tokens.tolist()}


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("flat", "flatten"), ("mean", "mean"), ("masked", "masked"), ("attention", "other")],
)
def test_how_a_network_pools_is_found_out(kind, pooling, key):
    net, gradient, _ = game(kind, key, padding=0)
    found = pooling_of(net, gradient.at)
    assert (found.kind, found.ordered) == (pooling, kind in ("flat", "attention"))


@pytest.mark.parametrize("frozen", [False, True])
def test_texts_in_their_order(frozen, key):
    net, gradient, tokens = game("flat", key, frozen=frozen, batch=3)
    found = attacked(net, gradient, key, batch=3)
    assert rows(found.candidates[0]) == rows(tokens)
    assert found.candidates.dtype == torch.int64
    assert found.status.outcome is Outcome.CONVERGED
    assert found.observed["ordered"] == 1
    assert found.observed.get("occurring") == (None if frozen else len(tokens.unique()))


@pytest.mark.parametrize("kind", ["mean", "masked"])
def test_bags_where_there_is_no_order(kind, key):
    padding = 0 if kind == "masked" else None
    net, gradient, tokens = game(kind, key, padding=padding)
    found = attacked(net, gradient, key)
    assert rows(found.candidates[0].sort(1).values) == rows(tokens.sort(1).values)
    assert found.observed["ordered"] == 0
    if padding is not None:
        assert (found.candidates[0] == 0).sum(1).max() == 2
        assert not (found.candidates[0, :, 0] == 0).any()  # padding comes last


@pytest.mark.parametrize("kind", ["attention", "first"])
def test_sentences_behind_attention(kind, key):
    """With the first place's output alone, the others leave no trace in the span: the search finds them."""
    net, gradient, tokens = game(kind, key, padding=0)
    assert net.local == ("encoder.layers.0.self_attn.in_proj_weight",)
    assert rows(attacked(net, gradient, key).candidates[0]) == rows(tokens)


def test_a_mean_is_that_of_the_shortest_text(key):
    """Twice the words have the same mean."""
    net, gradient, _ = game("masked", key, padding=0)
    wanted = net.features(gradient.at, torch.tensor([[7, 9, 0, 0, 0]])).double()
    prepared = TextAttack().prepare(Knowledge(architecture=net), key=key, store=NullStore())
    tokens, misfit = prepared.invert.__self__._summed(
        True, wanted, gradient.at, torch.tensor([0, 7, 9, 11])
    )
    assert tokens.tolist() == [[7, 9, 0, 0, 0]]
    assert float(misfit) < 1e-5


def test_one_sentence_by_the_span_alone(key):
    """Without any layer that has a bias behind the pooling."""
    module = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Flatten())
    module.append(nn.Linear(PLACES * WIDTH, 3, bias=False))
    tokens = torch.tensor([[7, 7, 7, 7, 7]])
    F.cross_entropy(module(tokens), torch.tensor([1])).backward()
    net = TextModel.of(module, PLACES)
    assert (net.head, net.local) == ("", ("1.weight",))
    values = torch.cat([p.grad.flatten() for p in module.parameters()])[None]
    gradient = Gradient(values, net.layout, net.initial(key))
    assert attacked(net, gradient, key, batch=1).candidates[0].tolist() == tokens.tolist()


def test_the_list_of_words(key):
    net, gradient, tokens = game("attention", key, padding=0, batch=3)
    prepared = WordRows().prepare(Knowledge(architecture=net), key=key, store=NullStore())
    found = prepared.run(gradient)
    words = sorted(set(tokens.flatten().tolist()) - {0})
    assert sorted(set(found.candidates[0, :, 0].tolist()) - {0}) == words
    net, gradient, _ = game("flat", key, frozen=True)
    prepared = WordRows().prepare(Knowledge(architecture=net), key=key, store=NullStore())
    assert "the embedding does not tell which words" in prepared.run(gradient).status.reason
    noisy = Gradient(gradient.values + 1, gradient.layout, gradient.at)
    assert words_in(net, noisy.values[0]) is None
    with pytest.raises(NotApplicable, match="texts are read off a TextModel"):
        WordRows().prepare(Knowledge(), key=key, store=NullStore())


def test_noise_on_every_row_leaves_nothing(key):
    net, gradient, _ = game("flat", key)
    noise = torch.randn(gradient.values.shape, generator=key.generator())
    noisy = Gradient(gradient.values + 0.1 * noise, gradient.layout, gradient.at)
    assert words_in(net, noisy.values[0]) is None
    found = attacked(net, noisy, key)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert not found.candidates.shape[1]


@pytest.mark.parametrize(
    ("kind", "options", "sizes", "reason"),
    [
        ("flat", {}, {"hidden": 1}, "is no text's vector"),
        ("attention", {"agreeing": 119}, {}, "no neurons of the first fully connected layer agree"),
        ("attention", {"options": 0}, {}, "more than 0 tokens a place come into question"),
    ],
)
def test_why_it_finds_nothing(kind, options, sizes, reason, key):
    net, gradient, _ = game(kind, key, batch=3, **sizes)
    found = attacked(net, gradient, key, batch=3, **options)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert reason in found.status.reason


def test_what_it_is_not_for(key):
    net, gradient, _ = game("flat", key)
    with pytest.raises(NotApplicable, match="texts are read off a TextModel, not"):
        attacked(MLP((4,), (3,), 2), gradient, key)
    none = attacked(net, Weights(gradient.values, net.layout), key).status
    assert none.outcome is Outcome.NOT_APPLICABLE
    assert "reads gradients, not weights" in none.reason
    with pytest.raises(ExhumeError, match="its layout is not that of"):
        attacked(net, Gradient(gradient.values, Layout(("a",), ((3,),)), gradient.at), key)
    plain = nn.Sequential(nn.EmbeddingBag(WORDS, 3), nn.Linear(3, 2, bias=False))
    with pytest.raises(
        NotApplicable, match="no fully connected layer with a bias sees its records"
    ):
        attacked(TextModel.of(plain, PLACES), gradient, key)
