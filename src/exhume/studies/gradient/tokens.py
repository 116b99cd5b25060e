"""Tokens from the update of a text classifier: which, in which sentence, at which place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume import data
from exhume.attacks.gradient.text import TextAttack
from exhume.core.contract import Key, Knowledge, Records
from exhume.data.synthetic import synthetic_pairs
from exhume.data.tokens import Reading, tokenised
from exhume.models.own.text import TextModel
from exhume.naming import seeded_globals
from exhume.score.texts import token_shares
from exhume.studies.arms import mounted
from exhume.studies.claims import flattened
from exhume.studies.framework import Claims, Outcome, Run, Scale, Study
from exhume.victims.gradient import cut_batches, release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "Wang23 names text as a further modality and reports no numbers.",
    "Networks at their own start, one hidden ReLU layer; the route to the embeddings is the bias ratio.",
    "A public embedding is random instead of pre-trained.",
)
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
    setting = run.setting
    cases = product(_POOLS, _KINDS, setting.batch_sizes)
    jobs = {f"{pool}.{kind}.b{batch}": (pool, kind, batch) for pool, kind, batch in cases}
    metrics = flattened(run.arms("reading tokens off updates", _measured, jobs))
    return Outcome(_claims(metrics, setting), metrics, deviations=list(DEVIATIONS))


@lru_cache(maxsize=1)  # one in each process
def _corpus(run: Run[_Setting]) -> Records:
    """Sentences of at most so many words and marks; the rarest words have the last number in common."""
    setting, last = run.setting, run.setting.vocabulary - 1
    if setting.source:
        pairs = data.pairs(run.source(setting.source), progress=run.progress)
    else:
        key = run.key.fold("sentences")
        pairs = synthetic_pairs(600, words=last, length=setting.length, key=key)
    texts = list(dict.fromkeys(pairs.source))
    tokens, words = tokenised(texts, Reading(length=setting.length + 1), "sentences")
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


def _claims(metrics: dict[str, float], setting: _Setting) -> Claims:
    placed = min(metrics[f"{p}.{k}.b1.exact"] for p in ("flatten", "attention") for k in _KINDS)
    bags = min(metrics[f"mean.{k}.b1.exact_bags"] for k in _KINDS)
    most = setting.batch_sizes[-1]
    share = {p: min(metrics[f"{p}.{k}.b{most}.bag_accuracy"] for k in _KINDS) for p in _POOLS}
    return {
        "one sentence": (
            "The update of one sentence gives every token and its place away, also with a public embedding",
            "recover the embeddings first, then the tokens",
            f"{placed:.0%} of the sentences whole",
            placed == 1,
        ),
        "averaged": (
            "Averaging the embeddings hides the order and nothing else",
            "",
            f"{bags:.0%} of the bags whole",
            bags == 1,
        ),
        "batch": (
            f"Of batches of {most} nine tokens in ten come back",
            "",
            ", ".join(f"{pool} {value:.0%}" for pool, value in share.items()),
            min(share.values()) >= 0.9,
        ),
    }


_TITLE = "Tokens from the update of a text classifier"
STUDY = Study("gradient-tokens", _TITLE, "Wang23", _SCALES, _run)
