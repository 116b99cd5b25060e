from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume.attacks.split.cipher import (
    SubstitutionCipher,
    decipher,
    numbered,
)
from exhume.attacks.split.token_search import KnownHead, ShadowTranslation
from exhume.core.contract import Activations, ExhumeError, Key, NotApplicable, Outcome, Weights
from exhume.models.mlp import MLP
from exhume.models.split.seq2seq import UNKNOWN, Translator
from exhume.readers.sentences import pair_corpus, synthetic_pairs
from exhume.store.shards import NullStore
from exhume.train.single import Schedule, train_translator
from exhume.victims.split import release_sentences, translation_knowledge

NET = Translator(44, 44, width=32, heads=2, layers=1, hidden=64)
QUICK = Schedule(3, 32, 1e-2, "adam", 0.0)
SHADOW = ShadowTranslation(NET, 64, QUICK, Schedule(5, 32, 1e-2, "adam", 0.0))


@pytest.fixture(scope="module")
def game():
    key = Key.from_seed(0)
    pairs = synthetic_pairs(3500, words=40, length=6, key=key)
    corpus = pair_corpus(pairs, length=6, vocabulary=44, key=key)
    own, held, earlier, private = corpus.deal(400, 700, 700, 80)
    words, body = NET.words(key), NET.body(key)
    train_translator(words, body, own.source.inputs, own.target, QUICK, key=key, store=NullStore())
    release, secret = release_sentences(words, private.source)
    knowledge = translation_knowledge(
        words, body, held.source, held.target, earlier=earlier.source, with_table=True
    )
    return knowledge, release, secret.open().inputs


def run(attack, game, key, store=None):
    return attack.prepare(game[0], key=key, store=store or NullStore()).run(game[1])


def right(found, truth):
    real = truth != 0
    assert not found.candidates[:, 0][~real].any()
    return float((found.candidates[:, 0] == truth)[real].double().mean())


def test_the_cipher_is_read_and_frequencies_alone_do_not_do(game, key):
    found = run(SubstitutionCipher(), game, key)
    assert right(found, game[2]) > 0.95
    assert found.observed["symbols"] == 40
    assert right(run(SubstitutionCipher(rounds=0), game, key), game[2]) < 0.5


def test_the_shadow_reads_itself_and_not_the_client(game, key):
    prepared = SHADOW.prepare(game[0], key=key, store=NullStore())
    truth = game[2]
    with torch.no_grad():
        own = prepared.decode(prepared.words.send(truth))[0]
    assert float((own == truth)[truth != 0].double().mean()) > 0.9
    found = prepared.run(game[1])
    assert right(found, truth) < 0.3
    assert found.observed["accuracy_on_own_features"] > 0.9
    assert float(found.confidence.max()) <= 1
    assert found.cost.models == 2


def test_with_the_table_every_word_is_read(game, key):
    assert right(run(KnownHead(NET.source), game, key), game[2]) == 1


def test_words_that_were_never_sent_are_unknown(game, key):
    knowledge, release, truth = game
    few = replace(knowledge, seen=knowledge.seen[:1])
    prepared = SubstitutionCipher().prepare(few, key=key, store=NullStore())
    tokens = prepared.run(release).candidates[:, 0]
    assert prepared.observed["symbols"] <= 6
    assert (tokens[truth != 0] == UNKNOWN).double().mean() > 0.3


def test_equal_vectors_have_equal_numbers_in_spite_of_noise(key):
    generator = key.generator()
    table = 10 * torch.randn(5, 16, generator=generator)
    words = torch.randint(5, (200, 3), generator=generator)
    vectors = table[words] + 0.1 * torch.randn(200, 3, 16, generator=generator)
    vectors[::2, 2] = 0
    numbers, centres = numbered(vectors, vectors[0, :0], 5.0)
    assert len(centres) == 5
    assert not numbers[::2, 2].any()
    real = numbers > 0
    for word in range(5):
        assert len(set(numbers[real & (words == word)].tolist())) == 1


def test_a_planted_permutation_is_undone(key):
    """Two texts of one language; the first is written in other numbers."""
    pairs = synthetic_pairs(4000, words=30, length=6, key=key)
    text = torch.zeros(4000, 6, dtype=torch.long)
    for row, sentence in zip(text, pairs.source, strict=True):
        tokens = torch.tensor([1 + int(word[1:]) for word in sentence.split()])
        row[: len(tokens)] = tokens
    order = torch.randperm(30, generator=key.generator())
    secret = torch.cat([torch.zeros(1, dtype=torch.long), 1 + order])
    found = decipher(secret[text[:2000]], text[2000:], (31, 31))
    assert torch.equal(found[secret], torch.arange(31))
    rough = decipher(secret[text[:2000]], text[2000:], (31, 31), 0)
    assert sorted(rough.tolist()) == list(range(31))
    assert not torch.equal(rough[secret], torch.arange(31))
    fewer = decipher(secret[text[:2000]], text[2000:].clamp_max(20), (31, 21))
    assert int((fewer[1:] == 0).sum()) == 10  # symbols that no word is left for


def test_killed_and_resumed_it_ends_with_the_same_bits(game, key, dying_store):
    whole, store = run(SHADOW, game, key), dying_store(4)
    with pytest.raises(KeyboardInterrupt):
        run(SHADOW, game, key, store)
    assert torch.equal(run(SHADOW, game, key, store).candidates, whole.candidates)


def test_what_does_not_fit_is_said(game, key):
    knowledge, release, _ = game
    prepared = SubstitutionCipher().prepare(knowledge, key=key, store=NullStore())
    with pytest.raises(ExhumeError, match=r"features of shape \(3, 32\), \(6, 32\) expected"):
        prepared.run(Activations(release.values[:, :3], "embedding"))
    weights = Weights(torch.zeros(1, 3), MLP((1,), (), 2).layout)
    assert prepared.run(weights).status.outcome is Outcome.NOT_APPLICABLE
    nothing = replace(knowledge, shadow=None, answers=None, seen=None, parts={})
    for attack, said in (
        (SHADOW, "needs to know: shadow, answers, parts"),
        (SubstitutionCipher(), "needs to know: shadow, seen"),
        (KnownHead(NET.source), "needs to know: shadow"),
    ):
        with pytest.raises(NotApplicable, match=said):
            attack.prepare(nothing, key=key, store=NullStore())
    foreign = replace(knowledge, parts={"body0": torch.nn.Identity()})
    with pytest.raises(NotApplicable, match="body0 is not the body of a translator"):
        SHADOW.prepare(foreign, key=key, store=NullStore())
    with pytest.raises(ExhumeError, match="plain: .* numbers from 1 to 3 needed"):
        decipher(torch.ones(1, 1, dtype=torch.long), torch.full((1, 1), 9), (2, 4))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SubstitutionCipher(rounds=-1), "rounds at least 0"),
        (lambda: SubstitutionCipher(tolerance=1.0), r"tolerance in \[0, 1\) needed"),
        (lambda: ShadowTranslation(NET, hidden=0), "hidden: at least 1 needed"),
    ],
)
def test_illegal_settings(make, said):
    with pytest.raises(ExhumeError, match=said):
        make()
