"""Texts from updates: of a text classifier (Wang23's other modality), and of language models."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume import readers
from exhume.attacks.gradient.language import LanguageAttack, TokenBag
from exhume.attacks.gradient.text import TextAttack
from exhume.core.contract import Attack, Key, Knowledge, Reconstruction, Records
from exhume.core.own_code import seeded_globals
from exhume.models.ordinary import LanguageTransformer
from exhume.models.own_texts import LanguageModel, TextModel
from exhume.readers.sentences import synthetic_pairs
from exhume.readers.tokens import TextReading, tokenised
from exhume.score.texts import token_shares
from exhume.studies.arms import mounted
from exhume.studies.claims import by_row, flattened, row_means
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.victims import secret_of
from exhume.victims.gradient import cut_batches, release_batches

_POOLS, _KINDS = ("flatten", "mean", "attention"), ("trained", "public")
_DECOYS = 300


@dataclass(frozen=True)
class _Setting:
    vocabulary: int
    length: int
    width: int
    hidden: int
    batch_sizes: tuple[int, ...]
    batches: int
    source: str = ""  # a set of sentence pairs; "": synthetic sentences


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(100, 4, 32, 128, (1, 2), 2),
    "cpu": _Setting(2000, 8, 128, 512, (1, 2, 4), 5, "en-fr"),
    "paper": _Setting(20_000, 16, 512, 2048, (1, 2, 4, 8, 16), 100, "en-fr"),
}


def _run(run: Run[_Setting]) -> Outcome:
    """Tokens from the update of a text classifier: which, in which sentence, at which place."""
    setting = run.setting
    cases = product(_POOLS, _KINDS, setting.batch_sizes)
    jobs = {f"{pool}.{kind}.b{batch}": (pool, kind, batch) for pool, kind, batch in cases}
    metrics = flattened(run.arms("reading tokens off updates", _measured, jobs))
    said = _said(metrics, setting.batch_sizes[-1])
    return Outcome(metrics, said=said)


@lru_cache(maxsize=1)  # one in each process
def _corpus(run: Run[_Setting]) -> Records:
    """Sentences of at most so many words and marks; the rarest words have the last number in common."""
    setting, last = run.setting, run.setting.vocabulary - 1
    if setting.source:
        pairs = readers.pairs(run.source(setting.source), progress=run.progress)
    else:
        key = run.key.fold("sentences")
        pairs = synthetic_pairs(600, words=last, length=setting.length, key=key)
    texts = list(dict.fromkeys(pairs.source))
    tokens, words = tokenised(texts, TextReading(length=setting.length + 1), "sentences")
    short = tokens[:, -1] == words.padding
    ends = torch.tensor([{"?": 1, "!": 2}.get(text.rstrip()[-1:], 0) for text in texts])
    classes = ("statement", "question", "exclamation")
    return Records(tokens[short, :-1].clamp_max(last), ends[short], classes, words)


class _Classifier(nn.Module):
    """An embedding, a way of pooling it, two fully connected layers.

    - flatten: the embeddings side by side
    - mean: their mean; the order of the tokens does not matter
    - attention: layer norm of embeddings and positions, one head of self-attention, then the mean
    """

    places: Tensor

    def __init__(self, setting: _Setting, classes: int, pool: str, *, public: bool) -> None:
        super().__init__()
        self.pool, width = pool, setting.width
        self.embed = nn.Embedding(setting.vocabulary, width)
        self.embed.requires_grad_(not public)
        self.register_buffer("places", torch.randn(setting.length, width))
        names = ("query", "key", "value") if pool == "attention" else ()
        self.mix = nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in names})
        inputs = width * (setting.length if pool == "flatten" else 1)
        self.hidden = nn.Linear(inputs, setting.hidden)
        self.out = nn.Linear(setting.hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.embed(tokens)
        if self.pool == "attention":
            placed = F.layer_norm(vectors + self.places, vectors.shape[-1:])
            asked, offered, given = (layer(placed) for layer in self.mix.values())
            vectors = placed + F.scaled_dot_product_attention(asked, offered, given)
        pooled = vectors.flatten(1) if self.pool == "flatten" else vectors.mean(1)
        logits: Tensor = self.out(F.relu(self.hidden(pooled)))
        return logits


def _network(
    setting: _Setting, records: Records, pool: str, key: Key, *, public: bool
) -> TextModel:
    with seeded_globals(key.fold("network")):
        module = _Classifier(setting, len(records.classes), pool, public=public)
    assert records.vocabulary is not None  # they are texts
    return TextModel.of(module, setting.length, records.vocabulary.padding)


def _measured(run: Run[_Setting], job: tuple[str, str, int]) -> dict[str, float]:
    (pool, kind, batch), batches, records = job, run.setting.batches, _corpus(run)
    key = run.key.fold("gradient-tokens", pool, kind, batch)
    net = _network(run.setting, records, pool, key, public=kind == "public")
    order = torch.randperm(len(records), generator=key.fold("batches").generator())
    private = cut_batches(records[order[: batch * batches]], batch)
    decoys = records[order[batch * batches :][:_DECOYS]]
    release, secret = release_batches(net, net.initial(key), private)
    known = Knowledge(architecture=net, batch_size=batch)
    found = mounted(TextAttack(), known, release, key)
    scores = token_shares(secret, found, decoys.inputs, padding=net.padding)
    return scores | {"seconds": found.cost.seconds / batches}


def _said(metrics: dict[str, float], largest: int) -> dict[str, float]:
    """The least of every embedding: of one sentence, and of the largest batch."""
    found = {
        "placed": min(
            metrics[f"{p}.{k}.b1.exact"] for p in ("flatten", "attention") for k in _KINDS
        ),
        "bags": min(metrics[f"mean.{k}.b1.exact_bags"] for k in _KINDS),
        "largest": largest,
    }
    last = f"b{largest}.bag_accuracy"
    return found | {f"share.{p}": min(metrics[f"{p}.{k}.{last}"] for k in _KINDS) for p in _POOLS}


STUDY = Study("gradient-tokens", _SCALES, _run)


# Texts from the updates of language models: rows of `update-networks`.
#
# Shapes of GPT-2, BERT and Llama. Texts are sentences end to end, cut
# into blocks, as in pre-training; the rarest words have one number in common. *Exact*: the share of texts
# that come back whole; *false*: texts claimed that were in no batch; *tokens*: the share of the tokens
# asked for that a list of tokens has, each as often; its null has every word as often as other texts do.

_SENTENCES = 12_000
_DECOYS = 200


@dataclass(frozen=True)
class LanguageSetting:
    """Sizes of all language models of the study."""

    vocabulary: int = 2000
    length: int = 16  # places
    width: int = 256
    layers: int = 4
    heads: int = 4
    batches: int = 8
    corpus: str = "en-fr"  # the English half; "": synthetic sentences
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of batches, for each shape


LANGUAGE: dict[Scale, LanguageSetting] = {
    "smoke": LanguageSetting(
        *(120, 6, 48, 2, 2, 1, ""), {"gpt": (1, 3), "bert": (1, 2), "llama": (2,), "gpt.bag": (12,)}
    ),
    "cpu": LanguageSetting(
        sizes={"gpt": (1, 8, 15), "gpt.bag": (32,), "bert": (1, 4, 8), "llama": (8,)}
    ),
    "paper": LanguageSetting(
        *(20_000, 32, 768, 12, 12, 16),
        sizes={"gpt": (1, 8, 16, 23), "gpt.bag": (32, 128), "bert": (1, 4, 8), "llama": (8,)},
    ),
}


def _language_model(own: LanguageSetting, kind: str, key: Key) -> LanguageModel:
    with seeded_globals(key.fold("weights")):
        module = LanguageTransformer(
            kind,
            vocabulary=own.vocabulary,
            length=own.length,
            width=own.width,
            layers=own.layers,
            heads=own.heads,
        )
    if kind == "bert":
        return LanguageModel.of(module, own.length, None, "masked", own.vocabulary - 1)
    return LanguageModel.of(module, own.length + 1)


# Texts


@lru_cache(maxsize=2)  # once in each process
def _tokens(corpus: str, vocabulary: int, key: Key) -> Tensor:
    """All words one after the other; 0 is not used, and the last number is that of the mask."""
    if corpus:
        texts = list(dict.fromkeys(readers.pairs(corpus).source))
    else:
        texts = list(synthetic_pairs(600, words=vocabulary - 3, length=6, key=key).source)
    order = torch.randperm(len(texts), generator=key.fold("order").generator())[:_SENTENCES]
    rows, words = tokenised([texts[i] for i in order.tolist()], TextReading(), "sentences")
    return rows[rows != words.padding].clamp_max(vocabulary - 2)


def _blocks(own: LanguageSetting, length: int, key: Key) -> Tensor:
    """(n, l), in random order."""
    stream = _tokens(own.corpus, own.vocabulary, key.fold("corpus"))
    blocks = stream[: len(stream) // length * length].reshape(-1, length)
    return blocks[torch.randperm(len(blocks), generator=key.fold("blocks").generator())]


# Rows


def language_metrics(run: Run[Any], own: LanguageSetting) -> dict[str, float]:
    jobs = {
        f"{name}.b{size} {index}": (own, name, size, index)
        for name, sizes in own.sizes.items()
        for size in sizes
        for index in range(own.batches)
    }
    found = run.tensors("attacking language models", _one_batch, jobs) if jobs else {}
    return row_means(by_row({job.replace(".bag", ""): kept for job, kept in found.items()}))


def _one_batch(run: Run[Any], job: tuple[LanguageSetting, str, int, int]) -> Mapping[str, Tensor]:
    """One client's batch: its own texts, its own weights."""
    own, name, size, index = job
    kind = name.split(".")[0]
    key = run.key.fold("language", name, size, index)
    net = _language_model(own, kind, key)
    blocks = _blocks(own, net.length, run.key)
    first = index * size  # no text in two batches of a row
    private, others = blocks[first : first + size], blocks[first + size :]
    trained = net.masked(private, key.fold("masks")) if kind == "bert" else private
    batch = Records(trained[None], torch.zeros(1, size, dtype=torch.int64), ("text",))
    release, _ = release_batches(net, net.initial(key), batch)
    known = Knowledge(architecture=net)
    attack: Attack = TokenBag() if name.endswith(".bag") else LanguageAttack()
    began = time.perf_counter()
    found = mounted(attack, known, release, key)
    seconds = time.perf_counter() - began
    measured = (
        _bag(found, private[:, 1:], others)
        if name.endswith(".bag")
        else _texts(found, net.fed(trained), others)
    )
    measured |= {"seconds": seconds}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in measured.items()}


def _texts(found: Reconstruction, fed: Tensor, others: Tensor) -> dict[str, float]:
    batch = Records(fed[None], torch.zeros(1, len(fed), dtype=torch.int64), ("text",))
    scores = token_shares(secret_of(batch), found, others[:_DECOYS], padding=None)
    claimed = found.found().long()
    true = (claimed[:, None] == fed).all(2).any(1) if len(claimed) else torch.zeros(0).bool()
    return {
        "exact": scores["exact"],
        "tokens_in_place": scores["token_accuracy"],
        "false": float((~true).sum()),
        "null": scores["null_token_accuracy"],
    }


def _bag(found: Reconstruction, asked: Tensor, others: Tensor) -> dict[str, float]:
    truth = Counter(asked.flatten().tolist())
    total = sum(truth.values())
    usual = torch.bincount(others.flatten()).double()
    expected = (usual / usual.sum() * total).round().long()
    null = Counter({token: int(n) for token, n in enumerate(expected.tolist()) if n})
    listed = Counter(found.found().long().flatten().tolist())
    return {
        "tokens": sum((truth & listed).values()) / total,
        "tokens_null": sum((truth & null).values()) / total,
        "listed": sum(listed.values()) / total,
    }
