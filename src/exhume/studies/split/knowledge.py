"""Ensembler24's threat model, loosened and tightened: what the server knows, against what it gets.

A ResNet-18 without a defence, cut after its first convolution. The paper's attacker may not query, has
records of the training distribution, and a shadow head of three convolutions. Beside it: other records,
another head, features that were sent before, queries, and the head itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from exhume.attacks.split.inversion import QueriedInversion, ShadowInversion
from exhume.core.contract import Attack, Key, Records
from exhume.core.results import Chart, Point
from exhume.defences.split.single import Noise
from exhume.models.split.inverter import ShadowHead
from exhume.readers import Sizes
from exhume.studies.arms import pictured
from exhume.studies.claims import Comparison, flattened, point_of
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.split.game import (
    PAPER,
    ClientSetting,
    Row,
    SplitGame,
    bound_of,
    inversion,
)
from exhume.train.single import Schedule

_HALF = 5  # the first classes of CIFAR-10: airplane to deer
_SHOWN = {
    "mean_image": "mean image (null)",
    "paper": "the paper's: no query",
    "training_records": "training records",
    "other_classes": "five classes",
    "faces": "faces",
    "shorter_head": "shadow of 2 convolutions",
    "longer_head": "shadow of 5 convolutions",
    "seen": "features seen before",
    "queries_faces": "queries with faces",
    "queries_noise": "queries with noise",
    "head_known": "head known (bound)",
}


@dataclass(frozen=True)
class _OtherSetting:
    """Records unlike the client's."""

    source: str = "faces"


@dataclass(frozen=True)
class _Setting:
    client: ClientSetting
    attack: ShadowInversion
    steps: int  # of a decoder trained on queries
    queries: tuple[int, ...]
    match: float = 10.0
    others: _OtherSetting = _OtherSetting()


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        ClientSetting(Sizes(80, 12, 60, 30, 40), 4, Schedule(1, 40, 0.05)),
        inversion(4, 1, 30),
        steps=20,
        queries=(10, 60),
    ),
    "cpu": _Setting(
        ClientSetting(Sizes(4_000, 200, 1_000, 500, 1_000), 16, Schedule(8, 32, 0.05)),
        inversion(32, 6, 16),
        steps=400,
        queries=(10, 100, 1_000),
    ),
    "paper": _Setting(
        PAPER, inversion(64, 50, 128), steps=10_000, queries=(10, 100, 1_000, 10_000)
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("split-knowledge")
    game = SplitGame.of(run, setting.client, key, {"client": (Noise(), key.fold("client"))})
    pipeline = game.pipeline("client")
    rows = {"mean_image": game.mean_image()}
    for name, (attack, held) in _cases(run, game).items():
        rows[name] = game.holding(held).meet(pipeline, attack, name)
    shown = {_SHOWN.get(n, f"{n.removeprefix('queries_')} queries"): rows[n].scores for n in rows}
    pictures, labels = pictured({"Pictures": shown}, "Ensembler24", "what the client sends")
    return Outcome(
        said=compared(rows, setting.queries, key.fold("claims")),
        metrics={"accuracy": game.accuracy(pipeline)}
        | flattened({name: row.metrics for name, row in rows.items()}),
        attacks=pictures,
        classes=labels,
        charts=_charts(rows, setting.queries, key.fold("charts")),
    )


def _cases(run: Run[_Setting], game: SplitGame) -> dict[str, tuple[Attack, Records]]:
    """Attackers, and the records that each holds."""
    setting, held = run.setting, game.parts.shadow
    faces = as_pictures(run.placed(setting.others.source), held.shape)
    paper, asking = setting.attack, QueriedInversion(setting.attack.decoder, setting.steps)
    assert isinstance(paper.head, ShadowHead)  # of `inversion`
    shorter, longer = (replace(paper.head, convolutions=count) for count in (2, 5))
    return {
        "paper": (paper, held),
        "training_records": (paper, game.parts.fixed[: len(held)]),
        "other_classes": (paper, held[held.labels < _HALF]),
        "faces": (paper, faces),
        "shorter_head": (replace(paper, head=shorter), held),
        "longer_head": (replace(paper, head=longer), held),
        "seen": (replace(paper, match=setting.match, upright=True), held),
        "head_known": (bound_of(paper), held),
        **{f"queries_{count}": (asking, held[:count]) for count in setting.queries},
        "queries_faces": (asking, faces),
        "queries_noise": (asking, _noise(setting.queries[-1], held, game.key)),
    }


def as_pictures(records: Records, shape: tuple[int, ...]) -> Records:
    """Images made to fit another set's shape: resized, grey ones with equal colours."""
    small = F.interpolate(records.inputs, shape[1:], mode="area")
    return Records(small.expand(-1, shape[0], -1, -1).clone(), records.labels, records.classes)


def _noise(count: int, like: Records, key: Key) -> Records:
    """Independent uniform pixels."""
    pixels = torch.rand(count, *like.shape, generator=key.fold("noise").generator())
    made = Records(pixels, torch.zeros(count, dtype=torch.long), ("noise",))
    return made.to(like.inputs.device)


def compared(rows: Mapping[str, Row], queries: tuple[int, ...], key: Key) -> dict[str, object]:
    """What the claims ask for: rows compared image by image."""
    ssim = Comparison(lambda row: rows[row].scores.each["ssim"], "SSIM", key)
    return {
        **{"few": queries[0], "query_free": ssim("paper", "mean_image")},
        "most_queries": ssim(f"queries_{queries[-1]}", "paper"),
        "few_queries": ssim(f"queries_{queries[0]}", "paper"),
        "noise": ssim("queries_noise", "paper"),
        "faces": ssim("paper", "faces"),
    }


def _charts(rows: Mapping[str, Row], queries: tuple[int, ...], key: Key) -> list[Chart]:
    def point(name: str, x: str | float, measure: str = "ssim") -> Point:
        return point_of(x, rows[name].scores.each[measure], key.fold(name, measure))

    known = {
        "ours": [point(name, label) for name, label in _SHOWN.items()],
        "after an affine fit": [point(name, x, "affine_ssim") for name, x in _SHOWN.items()],
        "Ensembler24, Table 1": [Point(_SHOWN["paper"], 0.4363)],
    }
    asked = {"queries": [point(f"queries_{count}", float(count)) for count in queries]}
    for name in ("mean_image", "paper", "head_known"):
        asked[_SHOWN[name]] = [Point(float(count), rows[name].mean("ssim")) for count in queries]
    return [
        Chart("What the server knows", "knowledge", "SSIM", known),
        Chart("How many queries", "queries", "SSIM", asked, x_scale="log"),
    ]


STUDY = Study("split-knowledge", _SCALES, _run, on_device=True)
