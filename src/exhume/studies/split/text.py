"""Ensembler24, A.1: a client has its sentences translated and keeps the embeddings to itself.

The paper's attacker trains a shadow of the embeddings around the frozen body and fails. Ours takes the secret
table for what it is, a substitution cipher, and reads it with the statistics of its own sentences.

`--data`, or else `EXHUME_MULTI30K`, names the folder with Multi30k's `train.en` and `train.de`, the paper's
sentences; without it the pairs are English and French (`en-fr`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume import readers
from exhume.attacks.split.cipher import SubstitutionCipher
from exhume.attacks.split.token_search import FittedTranslation, KnownHead, ShadowTranslation
from exhume.core.contract import Attack, Key, Prepared, Reconstruction
from exhume.core.results import Chart, Point
from exhume.models.split.seq2seq import (
    PADDING,
    Translator,
    TranslatorBody,
    TranslatorWords,
    read_out,
)
from exhume.readers import TextPairs
from exhume.readers.sentences import PairCorpus, pair_corpus, synthetic_pairs
from exhume.report.folder import RunFolder
from exhume.score.intervals import bootstrap
from exhume.score.texts import SentenceScores, bleu, score_sentences
from exhume.store.shards import write_atomically
from exhume.studies.claims import Range, paired, point_of, prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.train.single import Schedule, train_translator, translate, word_accuracy
from exhume.victims import secret_of
from exhume.victims.split import release_sentences, translation_knowledge

FOLDER = "EXHUME_MULTI30K"
_LINES = 50  # of table.tsv
_SHOWN = {
    "null": "usual word of each place (null)",
    "decoder_on_shadow": "shadow, its own sentences",
    "decoder_on_client": "shadow, the client's",
    "frequency": "cipher, by frequency alone",
    "cipher": "cipher",
    "cipher_fixed_noise": "cipher, noise 0.1 fixed",
    "cipher_fresh_noise": "cipher, noise 0.25 fresh",
    "known_table": "table known (bound)",
}


@dataclass(frozen=True)
class _Sizes:
    vocabulary: int
    length: int
    network: tuple[int, int, int, int]  # width, heads, layers, hidden
    client: int  # pairs the network is trained on
    server: int  # pairs of the attacker's own
    earlier: int  # sentences sent before
    private: int
    training: Schedule


@dataclass(frozen=True)
class _Setting:
    sizes: _Sizes
    shadow: Schedule
    fewer: tuple[int, ...]  # of the sentences sent before, for the cipher
    source: str = "en-fr"


def _adam(epochs: int, batch: int, rate: float) -> Schedule:
    return Schedule(epochs, batch, rate, "adam", 0.0)


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        _Sizes(44, 6, (32, 2, 1, 64), 600, 500, 500, 100, _adam(5, 32, 1e-2)),
        shadow=_adam(5, 32, 2e-2),
        fewer=(50,),
        source="",
    ),
    "cpu": _Setting(
        _Sizes(1000, 12, (96, 4, 2, 192), 6000, 4000, 2500, 500, _adam(10, 64, 3e-3)),
        shadow=_adam(8, 64, 1e-2),
        fewer=(30, 100, 300, 1000),
    ),
    "paper": _Setting(
        _Sizes(10_000, 40, (512, 8, 3, 512), 14_000, 8000, 6000, 900, _adam(18, 128, 3e-4)),
        shadow=_adam(18, 128, 3e-3),
        fewer=(30, 100, 300, 1000, 3000),
    ),
}


@dataclass(frozen=True, eq=False)
class _Game:
    """A client, a server and their sentences: one attack after another on the same translator."""

    run: Run[_Setting]
    key: Key
    net: Translator
    words: TranslatorWords  # the client's
    body: TranslatorBody
    held: PairCorpus  # the server's own pairs
    earlier: PairCorpus  # what the client sent before: the server knows the features only
    private: PairCorpus

    @staticmethod
    def of(run: Run[_Setting], key: Key) -> _Game:
        """Deal the pairs out and train the client's network."""
        pairs, sizes, clients = _pairs(run, key), run.setting.sizes, key.fold("client")
        corpus = pair_corpus(
            pairs, length=sizes.length, vocabulary=sizes.vocabulary, key=key.fold("corpus")
        )
        own, *others = corpus.deal(sizes.client, sizes.server, sizes.earlier, sizes.private)
        net = Translator(len(corpus.source_words), len(corpus.target_words), *sizes.network)
        words, body, working = net.words(clients), net.body(clients), run.working(clients)
        train_translator(words, body, own.source.inputs, own.target, sizes.training, **working)
        return _Game(run, key, net, words, body, *others)

    def meet(
        self,
        attack: Attack,
        name: str,
        *,
        noises: tuple[Tensor | None, Tensor | None] = (None, None),
        seen: int | None = None,
    ) -> tuple[Prepared, Reconstruction, SentenceScores]:
        """The attack as prepared, what it finds and how good that is.

        noises: of private and of earlier sentences; seen: only so many of those sent before.
        """
        release, _ = release_sentences(self.words, self.private.source, noises[0])
        knowledge = translation_knowledge(
            self.words,
            self.body,
            self.held.source,
            self.held.target,
            earlier=self.earlier.source[:seen],
            noise=noises[1],
            with_table=isinstance(attack, KnownHead),
        )
        working = self.run.part(name).working(self.key.fold("attack", name))
        prepared = attack.prepare(knowledge, **working)
        found = prepared.run(release)
        return prepared, found, self.scored(found)

    def scored(self, found: Reconstruction | Tensor) -> SentenceScores:
        """Scores of what an attack finds, or of given sentences (n, l)."""
        return score_sentences(secret_of(self.private.source), found, self.private.source_words)

    def read(self, tokens: Tensor) -> list[str]:
        """Sentences (n, l) of the client's language in words."""
        return read_out(tokens, self.private.source_words)

    def usual(self) -> Tensor:
        """(n, l) the null: at each place the word most frequent there in the server's sentences."""
        own = self.held.source.inputs
        columns = (column[column != PADDING] for column in own.T)
        usual = [float(c.mode().values) if len(c) else float(PADDING) for c in columns]
        return torch.tensor(usual).expand_as(self.private.source.inputs)

    def translated(
        self, words: TranslatorWords, noise: Tensor | None = None
    ) -> tuple[list[str], float]:
        """The private sentences through the body, and their BLEU."""
        longest = self.private.target.shape[1]
        tokens = translate(words, self.body, self.private.source.inputs, longest, noise)
        text = read_out(tokens, self.private.target_words)
        return text, bleu(text, self.private.references)


def _run(run: Run[_Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("split-text")
    game = _Game.of(run, key)
    attack, private = SubstitutionCipher(), game.private.source.inputs
    shadowing = ShadowTranslation(game.net, shadow_schedule=setting.shadow)
    fitted, shadow, of_shadow = game.meet(shadowing, "shadow")
    _, cipher, of_cipher = game.meet(attack, "cipher")
    assert isinstance(fitted, FittedTranslation)
    with torch.no_grad():
        by_itself = fitted.decode(fitted.words.send(private))[0]
    rows: dict[str, SentenceScores] = {
        "null": game.scored(game.usual()),
        "decoder_on_shadow": game.scored(by_itself),
        "decoder_on_client": of_shadow,
        "frequency": game.meet(replace(attack, rounds=0), "frequency")[-1],
        "cipher": of_cipher,
        "known_table": game.meet(KnownHead(game.net.source), "known table")[-1],
    }
    for few in setting.fewer:
        name = f"cipher_seen_{few}"
        rows[name] = game.meet(attack, name, seen=few)[-1]
    spoken, score = game.translated(game.words)
    shadow_spoken, shadow_score = game.translated(fitted.words)
    right = word_accuracy(game.words, game.body, private, game.private.target)
    metrics = {
        "translation.bleu": score,
        "translation.word_accuracy": right,
        "shadow_translation.bleu": shadow_score,
        "cipher.symbols": cipher.observed["symbols"],
        "cipher.seconds": cipher.cost.seconds,
        "shadow.seconds": shadow.cost.seconds,
        **prefixed("shadow", shadow.observed),
    }
    for name, noises in _noises(setting.sizes, key).items():
        rows[f"cipher_{name}"] = game.meet(attack, name, noises=noises)[-1]
        metrics[f"translation_{name}.bleu"] = game.translated(game.words, noises[0])[1]
    for name, row in rows.items():
        metrics |= row.metrics(name)
    columns = {
        "ground truth": game.read(private),
        "translation": spoken,
        "shadow's translation": shadow_spoken,
        "decoder on shadow": game.read(by_itself),
        "decoder on client": game.read(shadow.candidates[:, 0]),
        "cipher on client": game.read(cipher.candidates[:, 0]),
    }
    _write_table(run.folder, columns)
    return Outcome(
        said={
            **compared(rows, key.fold("claims")),
            **{"net": game.net, "first": game.private.languages[0]},
            "second": game.private.languages[1],
        },
        metrics=metrics,
        charts=_charts(rows, setting, key.fold("charts")),
    )


def _pairs(run: Run[_Setting], key: Key) -> TextPairs:
    if not run.setting.source:
        return synthetic_pairs(2500, words=40, length=6, key=key.fold("made up"))
    source = run.asked.data or os.environ.get(FOLDER) or run.setting.source
    return readers.pairs(source, progress=run.progress)


def _noises(setting: _Sizes, key: Key) -> dict[str, tuple[Tensor, Tensor]]:
    """The paper's noise, one map (l, e) for all sentences, and a stronger one drawn for each."""
    shape, generator = (setting.length, setting.network[0]), key.fold("fresh").generator()
    fixed = 0.1 * torch.randn(shape, generator=key.fold("fixed").generator())
    private = 0.25 * torch.randn(setting.private, *shape, generator=generator)
    earlier = 0.25 * torch.randn(setting.earlier, *shape, generator=generator)
    return {"fixed_noise": (fixed, fixed), "fresh_noise": (private, earlier)}


def _write_table(folder: RunFolder, columns: Mapping[str, list[str]]) -> None:
    """The paper's Table 4 and one column more; it holds private sentences, like the folder."""
    lines = ["\t".join(row) for row in (columns, *zip(*columns.values(), strict=True))]
    write_atomically(folder.path / "table.tsv", ("\n".join(lines[: _LINES + 1]) + "\n").encode())


def compared(rows: Mapping[str, SentenceScores], key: Key) -> dict[str, object]:
    """What the claims ask for: shares of words with their intervals, and the gain over the usual words."""
    names = ("decoder_on_shadow", "decoder_on_client", "cipher", "cipher_fixed_noise")
    said: dict[str, object] = {
        name: Range(*bootstrap(rows[name].right, key.fold(name))) for name in names
    }
    usual, own = rows["null"].right, rows["decoder_on_client"].right
    return said | {"gain": paired(own, usual, key.fold("gain"))}


def _charts(rows: Mapping[str, SentenceScores], setting: _Setting, key: Key) -> list[Chart]:
    def point(name: str, x: str | float) -> Point:
        return point_of(x, rows[name].right, key.fold(name))

    counts = {few: f"cipher_seen_{few}" for few in setting.fewer}
    counts[setting.sizes.earlier] = "cipher"
    null = float(rows["null"].right.mean())
    attackers = {"ours": [point(name, shown) for name, shown in _SHOWN.items()]}
    seen = {
        "cipher": [point(name, float(count)) for count, name in counts.items()],
        "usual word of each place": [Point(float(count), null) for count in counts],
    }
    what, share = "How many sentences the server must have seen", "share of the words"
    return [
        Chart("How much of the sentences comes back", "attacker", share, attackers),
        Chart(what, "sentences sent before", share, seen, x_scale="log"),
    ]


STUDY = Study("split-text", _SCALES, _run)
