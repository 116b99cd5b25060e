"""Texts that a split network's client sends: vectors told apart, positions voted on, tokens searched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from exhume.attacks.split.as_sent import WordsAsSent
from exhume.attacks.split.cipher import SubstitutionCipher, gap_between, numbered, shifts, unplaced
from exhume.attacks.split.token_search import KnownHead
from exhume.core.contract import Activations, ExhumeError, Key, Knowledge, NotApplicable, Records
from exhume.store.shards import NullStore


def drawn(*shape, key):
    return torch.randn(*shape, generator=key.generator())


def texts(count, length, words, key):
    return torch.randint(words, (count, length), generator=key.generator())


@given(st.integers(0, 10**6), st.sampled_from([0.0, 1e-3, 0.02]))
@settings(max_examples=15, deadline=None)
def test_vectors_of_one_word_are_told_from_those_of_others(seed, noise):
    """Whatever is added at a place, and though two words' vectors are close compared with their length."""
    key = Key.from_seed(seed)
    table = 5 + drawn(12, 16, key=key.fold("table"))
    sent = table[texts(80, 4, 12, key)] + noise * drawn(80, 4, 16, key=key.fold("noise"))
    apart = gap_between(sent)
    within = noise * 16**0.5 * 2
    between = float(torch.pdist(table).min())
    assert apart < between
    assert apart >= min(within, 1e-6)
    assert len(numbered(sent, sent[0, :0], apart)[1]) == 12


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_positions_are_found_by_a_vote(seed):
    key = Key.from_seed(seed)
    table, added = drawn(20, 8, key=key.fold("table")), drawn(5, 8, key=key.fold("places"))
    sent = table[texts(150, 5, 20, key)] + added
    found = shifts(sent, gap_between(sent))
    apart = (added - added[:1]) - (found - found[:1])
    assert float(apart.abs().max()) < 1e-4


def test_a_place_that_always_has_the_same_word_stays_unknown(key):
    table, added = drawn(20, 8, key=key.fold("table")), drawn(4, 8, key=key.fold("places"))
    tokens = texts(150, 4, 20, key)
    tokens[:, 2] = 7
    sent = table[tokens] + added
    found = shifts(sent, gap_between(sent))
    assert found.isnan().all(1).tolist() == [False, False, True, False]
    numbers, centres = numbered(unplaced(sent, found), sent[0, :0], gap_between(sent))
    assert len(centres) == 20
    assert not numbers[:, 2].any()


def test_nothing_to_compare_is_nothing_apart():
    assert gap_between(torch.zeros(3, 2, 4)) > 0
    assert gap_between(torch.ones(1, 1, 4)) > 0
    assert gap_between(torch.ones(3, 1, 4)) > 0


class Mixing(nn.Module):
    """Each place also sees the one before."""

    def __init__(self, key):
        super().__init__()
        self.table = nn.Parameter(drawn(15, 12, key=key))

    def forward(self, tokens):
        x = self.table[tokens.long()]
        return torch.tanh(x + 0.7 * x.roll(1, 1))


def knowing(head, held, features):
    records = Records(held, torch.zeros(len(held), dtype=torch.long), ("a",))
    return Knowledge(shadow=records, features=features, parts={"head": head})


def read(attack, head, tokens, held, key):
    sent = head(tokens).detach()
    knowledge = knowing(head, held, tuple(sent.shape[1:]))
    prepared = attack.prepare(knowledge, key=key, store=NullStore())
    return prepared.run(Activations(sent, "embed")).candidates[:, 0]


def test_a_known_head_that_mixes_places_is_searched(key):
    head, held = Mixing(key), texts(200, 6, 15, key.fold("held"))
    truth = texts(30, 6, 15, key.fold("truth"))
    right = (read(KnownHead(15), head, truth, held, key) == truth).double().mean()
    alone = (read(KnownHead(15, sweeps=0), head, truth, held, key) == truth).double().mean()
    assert right > 0.95
    assert alone < right - 0.1


def test_a_known_head_of_few_numbers_is_searched_from_the_usual_words(key):
    mixing = drawn(6 * 12, 40, key=key.fold("dense"))
    table = drawn(15, 12, key=key.fold("table"))

    class Flat(nn.Module):
        def forward(self, tokens):
            return table[tokens.long()].flatten(1) @ mixing

    held, truth = texts(200, 6, 15, key.fold("held")), texts(30, 6, 15, key.fold("truth"))
    found = read(KnownHead(15, options=15, sweeps=8), Flat(), truth, held, key)
    assert (found == truth).double().mean() > 0.9


def test_words_as_sent(key):
    truth = texts(10, 4, 6, key)
    held = Records(truth.float(), torch.zeros(10, dtype=torch.long), ("a",))
    look = WordsAsSent(6)
    for sent in (nn.functional.one_hot(truth, 6).float(), truth[..., None].float(), truth.float()):
        known = Knowledge(shadow=held, features=tuple(sent.shape[1:]))
        found = look.prepare(known, key=key, store=NullStore()).run(Activations(sent, "0"))
        assert torch.equal(found.candidates[:, 0], truth)
        assert bool((found.confidence == 1).all())
    for features in ((4, 5), (3,), (4, 6, 1)):
        with pytest.raises(NotApplicable, match="are no words by themselves"):
            look.prepare(Knowledge(shadow=held, features=features), key=key, store=NullStore())


def test_a_cipher_needs_a_vector_for_each_place(key):
    held = Records(texts(9, 4, 6, key), torch.zeros(9, dtype=torch.long), ("a",))
    attack = SubstitutionCipher(tolerance=0.0, positions="none", padding=None, unknown=-1)
    knowledge = Knowledge(shadow=held, seen=torch.ones(5, 7))
    with pytest.raises(NotApplicable, match="are not one vector for each of 4 places"):
        attack.prepare(knowledge, key=key, store=NullStore())
    with pytest.raises(NotApplicable, match="nothing but zeros"):
        attack.prepare(replace(knowledge, seen=torch.zeros(5, 4, 7)), key=key, store=NullStore())


@pytest.mark.parametrize("padding", [None, 0, 3, 5])
def test_any_number_may_be_the_padding(padding, key):
    """Numbers before and behind it come back as they were."""
    words, length = 12, 8
    order = key.fold("language").generator()
    shares = 2.0 ** -torch.arange(words).double()
    follow = torch.stack([shares[torch.randperm(words, generator=order)] for _ in range(words)])
    draw, chain = key.generator(), [torch.zeros(600, dtype=torch.long)]
    for _ in range(length):
        chain.append(torch.multinomial(follow[chain[-1]], 1, generator=draw)[:, 0])
    tokens = torch.stack(chain[1:], 1)
    table = drawn(words, 8, key=key)
    if padding is not None:
        ends = torch.randint(4, length + 1, (600, 1), generator=draw)
        tokens = tokens + (tokens >= padding)  # no word has its number
        tokens[torch.arange(length) >= ends] = padding
        table = drawn(words + 1, 8, key=key)
        table[padding] = 0
    held = Records(tokens[:300], torch.zeros(300, dtype=torch.long), ("a",))
    attack = SubstitutionCipher(tolerance=0.0, positions="none", padding=padding, unknown=-1)
    knowledge = Knowledge(shadow=held, seen=table[tokens[300:550]])
    prepared = attack.prepare(knowledge, key=key, store=NullStore())
    found = prepared.run(Activations(table[tokens[550:]], "0")).candidates[:, 0]
    assert float((found == tokens[550:]).double().mean()) > 0.9


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SubstitutionCipher(positions="learned"), "positions: 'learned' is not one of"),
        (lambda: KnownHead(0), "vocabulary and options at least 1"),
        (lambda: WordsAsSent(0), "vocabulary: at least 1 needed"),
    ],
)
def test_illegal_settings(make, said):
    with pytest.raises(ExhumeError, match=said):
        make()
