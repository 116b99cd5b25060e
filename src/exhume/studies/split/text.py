"""Ensembler24, A.1: a client has its sentences translated and keeps the embeddings to itself.

The paper's attacker trains a shadow of the embeddings around the frozen body and fails. Ours takes the secret
table for what it is, a substitution cipher, and reads it with the statistics of its own sentences.

`EXHUME_MULTI30K` names the folder with Multi30k's `train.en` and `train.de`, the paper's sentences; without
it the pairs are English and French (`en-fr`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from exhume import data
from exhume.attacks.split.cipher import KnownTable, SubstitutionCipher
from exhume.attacks.split.translation import FittedTranslation, ShadowTranslation
from exhume.contract import Key, Progress
from exhume.data import TextPairs
from exhume.data.synthetic import made_up_pairs
from exhume.models.split.seq2seq import Translator, read_out
from exhume.report.folder import RunFolder
from exhume.score.sentences import SentenceScores
from exhume.store import write_atomically
from exhume.studies.split.text_game import Game, Noises
from exhume.studies.split.text_told import charts, claims, deviations
from exhume.studies.study import Outcome, Scale, Study
from exhume.train.single import Schedule
from exhume.train.translation import train_translator, word_accuracy
from exhume.victims.pairs import pair_corpus

__all__ = ["FOLDER", "STUDY"]

FOLDER = "EXHUME_MULTI30K"
_COLUMNS = (
    "ground truth",
    "translation",
    "shadow's translation",
    "decoder on shadow",
    "decoder on client",
    "cipher on client",
)
_SHOWN = 50  # rows of table.tsv


@dataclass(frozen=True)
class _Setting:
    vocabulary: int
    length: int
    network: tuple[int, int, int, int]  # width, heads, layers, hidden
    client: int  # pairs the network is trained on
    server: int  # pairs of the attacker's own
    earlier: int  # sentences sent before
    private: int
    training: Schedule
    shadow: Schedule
    fewer: tuple[int, ...]  # of the sentences sent before, for the cipher


def _adam(epochs: int, batch: int, rate: float) -> Schedule:
    return Schedule(epochs, batch, rate, "adam", 0.0)


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        vocabulary=44,
        length=6,
        network=(32, 2, 1, 64),
        client=600,
        server=500,
        earlier=500,
        private=100,
        training=_adam(5, 32, 1e-2),
        shadow=_adam(5, 32, 2e-2),
        fewer=(50,),
    ),
    "cpu": _Setting(
        vocabulary=1000,
        length=12,
        network=(96, 4, 2, 192),
        client=6000,
        server=4000,
        earlier=2500,
        private=500,
        training=_adam(10, 64, 3e-3),
        shadow=_adam(8, 64, 1e-2),
        fewer=(30, 100, 300, 1000),
    ),
    "paper": _Setting(
        vocabulary=10_000,
        length=40,
        network=(512, 8, 3, 512),
        client=14_000,
        server=8000,
        earlier=6000,
        private=900,
        training=_adam(18, 128, 3e-4),
        shadow=_adam(18, 128, 3e-3),
        fewer=(30, 100, 300, 1000, 3000),
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed).fold("split-text")
    game, net = _game(scale, setting, key, folder, progress)
    shadow = game.meet(ShadowTranslation(net, shadow_schedule=setting.shadow), "shadow")
    fitted = shadow.prepared
    assert isinstance(fitted, FittedTranslation)
    private = game.private.source.inputs
    with torch.no_grad():
        by_itself = fitted.decode(fitted.words.send(private))[0]
    cipher = game.meet(SubstitutionCipher(), "cipher")
    rows: dict[str, SentenceScores] = {
        "null": game.scored(game.usual()),
        "decoder_on_shadow": game.scored(by_itself),
        "decoder_on_client": shadow.scores,
        "frequency": game.meet(SubstitutionCipher(rounds=0), "frequency").scores,
        "cipher": cipher.scores,
        "known_table": game.meet(KnownTable(), "known table", with_table=True).scores,
    }
    for few in setting.fewer:
        name = f"cipher_seen_{few}"
        rows[name] = game.meet(SubstitutionCipher(), name, seen=few).scores
    spoken, score = game.translated(game.words)
    shadow_spoken, shadow_score = game.translated(fitted.words)
    metrics = {
        "translation.bleu": score,
        "translation.word_accuracy": word_accuracy(
            game.words, game.body, private, game.private.target
        ),
        "shadow_translation.bleu": shadow_score,
        "cipher.symbols": cipher.found.observed["symbols"],
        "cipher.seconds": cipher.found.cost.seconds,
        "shadow.seconds": shadow.found.cost.seconds,
    } | {f"shadow.{name}": value for name, value in shadow.found.observed.items()}
    for name, noises in _noises(setting, net.width, key).items():
        rows[f"cipher_{name}"] = game.meet(SubstitutionCipher(), name, noises=noises).scores
        metrics[f"translation_{name}.bleu"] = game.translated(game.words, noises.private)[1]
    for name, row in rows.items():
        metrics |= row.metrics(name)
    read = [private, by_itself, shadow.found.candidates[:, 0], cipher.found.candidates[:, 0]]
    truth, *sentences = (read_out(tokens, game.private.source_words) for tokens in read)
    _write_table(folder, [truth, spoken, shadow_spoken, *sentences])
    return Outcome(
        claims=claims(rows, metrics, key.fold("claims")),
        metrics=metrics,
        deviations=deviations(game, net, setting.client),
        charts=charts(rows, setting.fewer, setting.earlier, key.fold("charts")),
    )


def _game(
    scale: Scale, setting: _Setting, key: Key, folder: RunFolder, progress: Progress
) -> tuple[Game, Translator]:
    corpus = pair_corpus(
        _pairs(scale, key, progress),
        length=setting.length,
        vocabulary=setting.vocabulary,
        key=key.fold("corpus"),
    )
    own, held, earlier, private = corpus.deal(
        setting.client, setting.server, setting.earlier, setting.private
    )
    net = Translator(len(corpus.source_words), len(corpus.target_words), *setting.network)
    words, body = net.words(key.fold("client")), net.body(key.fold("client"))
    train_translator(
        words,
        body,
        own.source.inputs,
        own.target,
        setting.training,
        key=key.fold("client"),
        store=folder.store(),
        progress=progress,
    )
    return Game(words, body, held, earlier, private, key, folder.store(), progress), net


def _pairs(scale: Scale, key: Key, progress: Progress) -> TextPairs:
    if scale == "smoke":
        return made_up_pairs(2500, words=40, length=6, key=key.fold("made up"))
    return data.pairs(os.environ.get(FOLDER) or "en-fr", progress=progress)


def _noises(setting: _Setting, width: int, key: Key) -> dict[str, Noises]:
    """The paper's noise, and a stronger one that is not the same for every sentence."""
    shape = (setting.length, width)
    return {
        "fixed_noise": Noises.fixed(0.1, shape, key),
        "fresh_noise": Noises.fresh(0.25, shape, (setting.private, setting.earlier), key),
    }


def _write_table(folder: RunFolder, columns: list[list[str]]) -> None:
    """The paper's Table 4 and one column more; it holds private sentences, like the folder."""
    lines = ["\t".join(_COLUMNS), *("\t".join(row) for row in zip(*columns, strict=True))]
    text = "\n".join(lines[: _SHOWN + 1]) + "\n"
    write_atomically(folder.path / "table.tsv", text.encode())


STUDY = Study(
    name="split-text",
    title="Sentences from the embeddings that a client sends to a translator",
    paper="Ensembler24",
    run=_run,
)
