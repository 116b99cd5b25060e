"""What the study of split translation says: claims, charts, deviations from the paper."""

from __future__ import annotations

from collections.abc import Mapping

from exhume.contract import Key
from exhume.models.split.seq2seq import Translator
from exhume.report.charts import Chart, Point
from exhume.score.intervals import bootstrap
from exhume.score.sentences import SentenceScores
from exhume.studies.split.text_game import Game
from exhume.studies.study import Claim

__all__ = ["charts", "claims", "deviations"]

_UNDERSTOOD = 0.5  # share of the words with which a sentence can mostly be understood
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


def claims(
    rows: Mapping[str, SentenceScores], metrics: Mapping[str, float], key: Key
) -> list[Claim]:
    def interval(name: str) -> tuple[float, float]:
        return bootstrap(rows[name].right, key.fold(name))

    def told(name: str) -> str:
        low, high = interval(name)
        return (
            f"{metrics[f'{name}.token_accuracy']:.1%} of the words ({low:.1%} to {high:.1%}), "
            f"BLEU {metrics[f'{name}.bleu']:.1f}"
        )

    over_null = rows["decoder_on_client"].right - rows["null"].right
    gain = bootstrap(over_null, key.fold("gain")) if bool(over_null.any()) else (0.0, 0.0)
    own, shadow = metrics["translation.bleu"], metrics["shadow_translation.bleu"]
    return [
        Claim(
            "shadow-translates",
            "The shadow translates, though not as well as the client's network",
            "two sentences, columns 2 and 3 of Table 4",
            f"BLEU {shadow:.1f} against {own:.1f}",
            own / 2 <= shadow < own,
        ),
        Claim(
            "decodes-itself",
            "Its decoder reads the shadow's own features (nine words in ten)",
            "two sentences, nearly word by word",
            told("decoder_on_shadow"),
            interval("decoder_on_shadow")[0] >= 0.9,
        ),
        Claim(
            "not-the-client",
            "and gets no more of the client's than the usual word of each place",
            "could not be understood",
            f"{told('decoder_on_client')}; usual words {metrics['null.token_accuracy']:.1%}, "
            f"paired difference {gain[0]:.3f} to {gain[1]:.3f}",
            gain[1] <= 0,
        ),
        Claim(
            "secret-embeddings-protect",
            "A server that may not query cannot read half of the words",
            "concluded from the decoder above",
            f"cipher: {told('cipher')}",
            interval("cipher")[1] < _UNDERSTOOD,
        ),
        Claim(
            "noise-protects",
            "nor with the paper's fixed noise of 0.1 added",
            "not tried on text",
            f"cipher: {told('cipher_fixed_noise')}; the translation keeps BLEU "
            f"{metrics['translation_fixed_noise.bleu']:.1f} of {own:.1f}",
            interval("cipher_fixed_noise")[1] < _UNDERSTOOD,
        ),
    ]


def charts(
    rows: Mapping[str, SentenceScores], fewer: tuple[int, ...], most: int, key: Key
) -> list[Chart]:
    def point(name: str, x: str | float) -> Point:
        low, high = bootstrap(rows[name].right, key.fold(name))
        return Point(x, float(rows[name].right.mean()), low, high)

    counts = {**{few: f"cipher_seen_{few}" for few in fewer}, most: "cipher"}
    null = float(rows["null"].right.mean())
    return [
        Chart(
            "How much of the sentences comes back",
            "attacker",
            "share of the words",
            {"ours": [point(name, shown) for name, shown in _SHOWN.items()]},
        ),
        Chart(
            "How many sentences the server must have seen",
            "sentences sent before",
            "share of the words",
            {
                "cipher": [point(name, float(count)) for count, name in counts.items()],
                "usual word of each place": [Point(float(count), null) for count in counts],
            },
            x_scale="log",
        ),
    ]


def deviations(game: Game, net: Translator, trained_on: int) -> list[str]:
    places = game.private.source.inputs.shape[1]
    first, second = game.private.languages
    return [
        f"Pairs {first}-{second} of at most {places} words and marks on either side, in lower case; the "
        f"{net.source:,} and {net.target:,} most frequent words, all others are one unknown word.",
        f"A transformer of our own of width {net.width}, {net.layers} + {net.layers} layers, no dropout; "
        "the paper takes an example of PyTorch's (width 512, 3 + 3 layers).",
        f"Trained on {trained_on:,} pairs; the server holds {len(game.held):,} others and has seen "
        f"{len(game.earlier):,} sentences; {len(game.private):,} are attacked.",
        "The client also keeps the layer that names the next word; with it the server could read along.",
        "The client adds the positions; the server takes the public sinusoids away again.",
        "The list of words is known to the server, as part of the architecture.",
        "The decoder reads place by place; the paper does not describe its own.",
        "The cipher also uses what the client has sent before, not its sentences.",
    ]
