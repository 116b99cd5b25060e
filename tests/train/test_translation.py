from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError
from exhume.models.split.seq2seq import END, PADDING, START, Translator
from exhume.store.shards import NullStore
from exhume.train.single import Schedule, train_translator, translate, word_accuracy

NET = Translator(14, 14, width=16, heads=2, layers=1, hidden=32)
QUICK = Schedule(12, 32, 2e-2, "adam", 0.0)


def copies(count, key):
    """Sentences of one or two words; the translation says the same."""
    source = torch.randint(4, 14, (count, 2), generator=key.generator()).float()
    source[::3, 1] = PADDING
    target = torch.zeros(count, 4)
    target[:, 0], target[:, 1] = START, source[:, 0]
    short = source[:, 1] == PADDING
    target[:, 2] = torch.where(short, float(END), source[:, 1])
    target[~short, 3] = END
    return source, target


def test_it_learns_to_copy_and_stops_at_the_end(key):
    source, target = copies(300, key)
    words, body = NET.words(key), NET.body(key)
    before = word_accuracy(words, body, source, target)
    train_translator(words, body, source, target, QUICK, key=key, store=NullStore())
    assert word_accuracy(words, body, source, target) > 0.95 > before + 0.5
    said = translate(words, body, source, 4)
    wanted = torch.cat([target[:, 1:], torch.zeros(300, 1)], 1)
    assert (said == wanted).all(1).double().mean() > 0.9
    assert not any(p.requires_grad for p in (*words.parameters(), *body.parameters()))
    loud = translate(words, body, source, 4, 100 * torch.randn(2, 16, generator=key.generator()))
    assert (loud == wanted).all(1).double().mean() < 0.5


def test_a_frozen_body_stays_as_it_is(key):
    source, target = copies(60, key)
    words, body = NET.words(key), NET.body(key)
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    table = words.source.weight.detach().clone()
    once = Schedule(1, 32, 1e-2, "adam", 0.0)
    train_translator(words, body, source, target, once, frozen=True, key=key, store=NullStore())
    assert all(torch.equal(tensor, before[name]) for name, tensor in body.state_dict().items())
    assert not torch.equal(words.source.weight, table)


def test_killed_and_resumed_it_ends_with_the_same_bits(key, dying_store):
    source, target = copies(60, key)
    schedule = Schedule(3, 32, 1e-2, "adam", 0.0)

    def table(store):
        words, body = NET.words(key), NET.body(key)
        train_translator(words, body, source, target, schedule, key=key, store=store)
        return words.source.weight

    whole, store = table(NullStore()), dying_store(2)
    with pytest.raises(KeyboardInterrupt):
        table(store)
    assert torch.equal(table(store), whole)


def test_pairs_must_be_pairs(key):
    source, target = copies(6, key)
    for fewer in (source[:5], source[:0]):
        with pytest.raises(ExhumeError, match=r"sentences and 6 translations given"):
            train_translator(
                NET.words(key), NET.body(key), fewer, target, QUICK, key=key, store=NullStore()
            )
