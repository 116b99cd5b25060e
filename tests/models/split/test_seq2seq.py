from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import layer_norm

from exhume.core.contract import ExhumeError
from exhume.models.split.seq2seq import END, PADDING, START, Translator, read_out, sinusoids

NET = Translator(20, 30, width=16, heads=2, layers=1, hidden=24)


def test_what_leaves_the_client_is_the_table_and_the_places(key):
    words = NET.words(key)
    sentence = torch.tensor([[7.0, 4.0, PADDING]])
    sent = words.send(sentence).detach()
    table = words.source.weight.detach()
    for place, word in enumerate((7, 4)):
        for k in range(8):
            angle = place / 10_000 ** (2 * k / 16)
            for column, wave in ((2 * k, math.sin(angle)), (2 * k + 1, math.cos(angle))):
                wanted = 4 * float(table[word, column]) + wave
                assert float(sent[0, place, column]) == pytest.approx(wanted, abs=1e-5)
    assert not sent[0, 2].any()
    noise = torch.ones(3, 16)
    moved = words.send(sentence, noise) - sent
    torch.testing.assert_close(moved[0, :2], noise[:2])
    assert not moved[0, 2].any()
    torch.testing.assert_close(sinusoids(5, 16)[3, :2], torch.tensor([math.sin(3), math.cos(3)]))


def test_padding_does_not_count_and_words_do_not_look_ahead(key):
    words, body = NET.words(key), NET.body(key)
    source = torch.tensor([[5, 6, 7]])
    longer = torch.tensor([[5, 6, 7, PADDING, PADDING]])
    begun = torch.tensor([[START, 8, 9]])
    whole = body(words.send(source), words.begin(begun))
    torch.testing.assert_close(body(words.send(longer), words.begin(begun)), whole)
    other = body(words.send(source), words.begin(torch.tensor([[START, 8, 10]])))
    torch.testing.assert_close(other[:, :2], whole[:, :2])
    assert not torch.allclose(other[:, 2], whole[:, 2])
    swapped = body(words.send(torch.tensor([[6, 5, 7]])), words.begin(begun))
    assert not torch.allclose(swapped, whole)


def test_one_encoder_layer_equals_its_definition(key):
    words, body = NET.words(key), NET.body(key)
    x = words.send(torch.tensor([[5, 6, 7, 9]]))[0]
    layer = body.encoder[0]
    with torch.no_grad():
        h = layer_norm(x, (16,))
        asked, (keys, values) = layer.own.asked(h), layer.own.offered(h).chunk(2, 1)
        mixed = []
        for part in (slice(0, 8), slice(8, 16)):  # two heads
            scores = asked[:, part] @ keys[:, part].T / math.sqrt(8)
            mixed.append(torch.softmax(scores, 1) @ values[:, part])
        y = x + layer.own.out(torch.cat(mixed, 1))
        first, _, second = layer.dense
        y = y + second(torch.relu(first(layer_norm(y, (16,)))))
        torch.testing.assert_close(body.encode(x[None])[0], layer_norm(y, (16,)))


def test_weights_come_from_the_key(key):
    before = torch.random.get_rng_state()
    one, two, other = NET.words(key), NET.words(key), NET.words(key.fold("other"))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.source.weight, two.source.weight)
    assert not torch.equal(one.source.weight, other.source.weight)
    assert float(one.target.weight.detach().std()) == pytest.approx(1 / 4, rel=0.1)


def test_sentences_are_read_out():
    words = ("<padding>", "<unknown>", "<start>", "<end>", "a", "dog")
    tokens = torch.tensor([[START, 4, 5, END, 5], [5, 1, PADDING, PADDING, PADDING]])
    assert read_out(tokens, words) == ["a dog", "dog <unknown>"]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"source": 4}, "source and target must exceed 4"),
        ({"layers": 0}, "all other sizes be at least 1"),
        ({"width": 18}, "18 is not a multiple of twice the 2 heads"),
    ],
)
def test_illegal_sizes(sizes, said):
    with pytest.raises(ExhumeError, match=said):
        Translator(**{"source": 20, "target": 20, "width": 16, "heads": 2, **sizes})
