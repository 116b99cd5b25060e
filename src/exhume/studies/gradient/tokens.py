"""Tokens from the update of a text classifier: which, in which sentence, at which place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch

from exhume import data
from exhume.attacks.gradient.text.tokens import TokenAttack
from exhume.contract import Key, Knowledge, Progress, Records
from exhume.models.tokens import TokenNet
from exhume.report.folder import RunFolder
from exhume.score.tokens import score_tokens
from exhume.store import NullStore
from exhume.studies.study import Claim, Outcome, Scale, Study, remembered
from exhume.victims.gradient import cut_batches, release_batches
from exhume.victims.tokens import corpus_of

__all__ = ["STUDY"]

DEVIATIONS = (
    "Wang23 names text as a further modality and reports no numbers.",
    "Networks at their own start, one hidden ReLU layer; the route to the embeddings is the bias ratio.",
    "A public embedding is random instead of pre-trained.",
)
_POOLS = ("flatten", "mean", "attention")
_DECOYS = 300


@dataclass(frozen=True)
class _Setting:
    vocabulary: int
    length: int
    width: int
    hidden: int
    batch_sizes: tuple[int, ...]
    batches: int
    sentences: str | None  # a set of sentence pairs; None: tokens drawn by Zipf's law


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(100, 4, 32, 128, (1, 2), 2, None),
    "cpu": _Setting(2000, 8, 128, 512, (1, 2, 4), 5, "en-fr"),
    "paper": _Setting(20_000, 16, 512, 2048, (1, 2, 4, 8, 16), 100, "en-fr"),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed)
    records = _records(setting, key)
    metrics: dict[str, float] = {}
    cases = list(product(_POOLS, ("trained", "public"), setting.batch_sizes))
    for place, (pool, kind, batch) in enumerate(cases):
        progress("reading tokens off updates", place, len(cases))
        net = TokenNet(
            setting.vocabulary,
            setting.length,
            setting.width,
            setting.hidden,
            len(records.classes),
            pool,
            frozen=kind == "public",
        )
        own = key.fold("gradient-tokens 1", repr(setting), pool, kind, batch)

        def measured(net: TokenNet = net, batch: int = batch, own: Key = own) -> dict[str, float]:
            return _measured(net, records, batch, setting.batches, own)

        for name, value in remembered(folder, own, measured).items():
            metrics[f"{pool}.{kind}.b{batch}.{name}"] = value
    progress("reading tokens off updates", len(cases), len(cases))
    return Outcome(_claims(metrics, setting), metrics, deviations=list(DEVIATIONS))


def _records(setting: _Setting, key: Key) -> Records:
    if setting.sentences is not None:
        sentences = data.pairs(setting.sentences).source
        return corpus_of(sentences, length=setting.length, vocabulary=setting.vocabulary).records
    shares = 1 / torch.arange(1, setting.vocabulary + 1).double()
    size = (600, setting.length)
    drawn = torch.multinomial(
        shares.expand(size[0], -1), size[1], replacement=True, generator=key.generator()
    )
    different = torch.unique(drawn, dim=0).float()
    return Records(different, torch.arange(len(different)) % 3, ("a", "b", "c"))


def _measured(
    net: TokenNet, records: Records, batch: int, batches: int, key: Key
) -> dict[str, float]:
    order = torch.randperm(len(records), generator=key.fold("batches").generator())
    private = cut_batches(records[order[: batch * batches]], batch)
    decoys = records[order[batch * batches :][:_DECOYS]]
    release, secret = release_batches(net, net.initial(key), private)
    found = (
        TokenAttack().prepare(Knowledge(architecture=net), key=key, store=NullStore()).run(release)
    )
    scores = score_tokens(secret, found, decoys.inputs).metrics()
    return scores | {"seconds": found.cost.seconds / batches}


def _claims(metrics: dict[str, float], setting: _Setting) -> list[Claim]:
    kinds = ("trained", "public")
    placed = min(metrics[f"{p}.{k}.b1.exact"] for p in ("flatten", "attention") for k in kinds)
    bags = min(metrics[f"mean.{k}.b1.exact_bags"] for k in kinds)
    most = setting.batch_sizes[-1]
    share = {p: min(metrics[f"{p}.{k}.b{most}.bag_accuracy"] for k in kinds) for p in _POOLS}
    return [
        Claim(
            "one sentence",
            "The update of one sentence gives every token and its place away, also with a public embedding",
            "recover the embeddings first, then the tokens",
            f"{placed:.0%} of the sentences whole",
            placed == 1,
        ),
        Claim(
            "averaged",
            "Averaging the embeddings hides the order and nothing else",
            "",
            f"{bags:.0%} of the bags whole",
            bags == 1,
        ),
        Claim(
            "batch",
            f"Of batches of {most} nine tokens in ten come back",
            "",
            ", ".join(f"{pool} {value:.0%}" for pool, value in share.items()),
            min(share.values()) >= 0.9,
        ),
    ]


STUDY = Study(
    name="gradient-tokens",
    title="Tokens from the update of a text classifier",
    paper="Wang23",
    run=_run,
)
