"""Heads that mix or rename numbers and hide nothing: whoever knows one inverts it in one way or another."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from exhume import readers
from exhume.attacks.split.strongest import StrongestInversion, StrongestReading
from exhume.attacks.split.token_search import KnownHead
from exhume.core.contract import (
    Activations,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Records,
)
from exhume.models.split.inverter import Decoder
from exhume.readers import Sizes
from exhume.store.shards import NullStore
from exhume.train.single import Schedule

SHORT = Schedule(1, 32, 3e-3, "adam", 0.0)
ATTACK = StrongestInversion(Decoder(4), SHORT, steps=60)


class Mapped(nn.Module):
    """Any function, as a head."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def cosines(side):
    """(side, side) the orthonormal discrete cosine transform."""
    at, wave = torch.arange(side) + 0.5, torch.arange(side)[:, None]
    basis = torch.cos(math.pi * at * wave / side) * math.sqrt(2 / side)
    basis[0] /= math.sqrt(2)
    return basis


def renamed(x):
    """Every grey value has another one in its place, at each pixel by a table of its own."""
    tables = torch.stack(
        [torch.randperm(17, generator=torch.Generator().manual_seed(i)) for i in range(64)]
    )
    levels = (x.flatten(1) * 16).round().long()
    return (tables[torch.arange(64), levels].float() / 16).view_as(x)


def heads():
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(64, generator=generator)
    turned, _ = torch.linalg.qr(torch.randn(64, 64, generator=generator))
    channels, _ = torch.linalg.qr(torch.randn(8, 8, generator=generator))
    dct = cosines(8)
    return {
        "cosines": lambda x: dct @ x @ dct.T,
        "permutation": lambda x: x.flatten(1)[:, order].view_as(x),
        "orthogonal": lambda x: (x.flatten(1) @ turned).view_as(x),
        "half": lambda x: x.flatten(1) @ turned[:, :32],
        "channels": lambda x: torch.einsum("nchw,dc->ndhw", x, channels[:, :1]),
        "renamed": renamed,
        "renamed and moved": lambda x: renamed(x).flatten(1)[:, order].view_as(x),
        "bent": lambda x: torch.tanh(3 * (x.flatten(1) @ turned) - 0.5).view_as(x),
    }


@pytest.fixture(scope="module")
def digits():
    return readers.split(readers.load("digits"), Sizes(0, 40, 700, 0, 0), Key.from_seed(0))


def met(attack, head, held, private, key):
    """What comes back (t, *shape), and what was seen on held pairs."""
    sent = head(private)
    features = tuple(sent.shape[1:])
    parts = {"head": head, "body0": nn.Flatten()}
    known = Knowledge(shadow=held, features=features, parts=parts)
    found = attack.prepare(known, key=key, store=NullStore()).run(Activations(sent, "0"))
    return found.candidates[:, 0], found.observed


def named(found, private):
    """Share nearest to its own among all that are private."""
    apart = torch.cdist(found.flatten(1), private.flatten(1))
    return float((apart.argmin(1) == torch.arange(len(private))).double().mean())


@pytest.mark.parametrize("name", heads())
def test_a_head_that_hides_nothing_is_inverted(name, digits, key):
    private = digits.target.inputs
    found, seen = met(ATTACK, Mapped(heads()[name]), digits.shadow, private, key)
    assert named(found, private) == 1
    assert max(seen.values()) == 1
    if name.startswith("renamed"):
        assert torch.equal(found, private)
        assert seen["named_by_ridge"] < 1
        assert "named_by_search" not in seen  # a table has no slope


def test_never_weaker_than_a_ridge_on_held_pairs(digits, key):
    """Behind a decoder that learned nothing."""
    private = digits.target.inputs
    _, seen = met(ATTACK, Mapped(heads()["cosines"]), digits.shadow, private, key)
    assert seen["named_by_decoder"] < 0.5
    assert seen["named_by_ridge"] == 1


def test_what_a_head_hides_stays_hidden(digits, key):
    """Only how bright an image is."""
    private = digits.target.inputs
    bright = Mapped(lambda x: x.mean((1, 2, 3), keepdim=True).expand_as(x))
    found, seen = met(ATTACK, bright, digits.shadow, private, key)
    assert named(found, private) < 0.3
    assert max(seen.values()) < 0.3


def test_a_head_that_sends_nothing_is_answered_by_numbers(digits, key):
    private = digits.target.inputs
    found, seen = met(ATTACK, Mapped(torch.zeros_like), digits.shadow, private, key)
    assert torch.isfinite(found).all()
    assert max(seen.values()) < 0.3


def test_vectors_are_inverted_too(key):
    draw = key.generator()
    columns = torch.randn(240, 6, generator=draw) * torch.tensor([1, 10, 0.1, 1, 5, 2])
    mixing = torch.randn(6, 9, generator=draw)
    held = Records(columns[:200], torch.zeros(200, dtype=torch.long), ("a",))
    found, seen = met(
        ATTACK, Mapped(lambda x: torch.tanh(x @ mixing / 20)), held, columns[200:], key
    )
    assert named(found, columns[200:]) > 0.9
    assert "named_by_decoder" not in seen


def test_texts_behind_a_head_that_mixes_all_places(key):
    draw = key.generator()
    texts = torch.randint(0, 12, (640, 5), generator=draw)
    table, mixing = torch.randn(12, 8, generator=draw), torch.randn(40, 40, generator=draw)
    turned, _ = torch.linalg.qr(mixing)
    head = Mapped(lambda x: (table[x.long()].flatten(1) @ turned).view(-1, 5, 8))
    held = Records(texts[:600], torch.zeros(600, dtype=torch.long), ("a",))
    attack = StrongestReading(KnownHead(12, options=6, sweeps=1))
    found, seen = met(attack, head, held, texts[600:], key)
    assert seen["read_by_look_up"] < 0.9
    assert (found == texts[600:]).double().mean() > 0.95


def test_what_it_needs(digits, key):
    known = Knowledge(shadow=digits.shadow, features=(1, 8, 8), parts={"body0": nn.Flatten()})
    with pytest.raises(NotApplicable, match="needs the part named head"):
        ATTACK.prepare(known, key=key, store=NullStore())
    with pytest.raises(ExhumeError, match="steps and rate must be positive"):
        StrongestInversion(steps=0)
