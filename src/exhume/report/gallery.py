"""Evidence of one attack: target, reconstruction and what the adversary already held, as cards.

The cards hold private records. They are made only for the full page, never for the redacted one.

Shapes: t targets, *record is (c, h, w) for images and (d,) for vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from markupsafe import Markup
from safetensors import SafetensorError
from torch import Tensor

from exhume.core.contract import ExhumeError, Shard
from exhume.core.records import Column, cells_of
from exhume.core.typed_json import from_json
from exhume.report.figures import img, strip
from exhume.store.shards import read_shard

CARDS = 200  # embedded per attack at most: half the best, a quarter the worst, a quarter between
SMALL = 64  # images up to this side are enlarged with visible pixels instead of being smoothed

PICTURES = {
    "targets": ("Private record", "the private record"),
    "reconstructions": ("Brought back", "what the attack brought back"),
    "nearest": ("Nearest held", "the nearest record the adversary already held"),
    "nearest_to_reconstruction": (
        "Held, nearest to what came back",
        "the held record nearest to the reconstruction",
    ),
    "decoys": ("Nearest decoy", "the record not trained on that resembles the reconstruction most"),
}
ENLARGED = ("nearest_to_reconstruction",)  # shown where a card is enlarged, for want of room
BESIDE = (  # drawn elsewhere
    *("margins", "gradient_norms", "outliers", "rows"),
    *("decoy_targets", "decoy_reconstructions", "decoy_ssim"),
    *("listed", "covered", "right_share"),
    *("target_pictures", "decoy_pictures", "rank"),
)
RANKED = {  # by which tensor cards are ranked: its sign, and the words for both ends
    "ratio": (1, "largest gain over what was held", "smallest gain over what was held"),
    "mse": (1, "lowest error", "highest error"),
    "ssim": (-1, "most similar", "least similar"),
    "cosine": (-1, "most alike", "least alike"),
    "confidence": (-1, "surest", "least sure"),
}
VECTORS = (
    "mse",
    "mae",
    "psnr",
    "ssim",
    "cosine",
    "oracle_mse",
    "null_mse",
    "confidence",
    "labels",
    "inferred",
)


@dataclass(frozen=True)
class Picture:
    role: str
    caption: str
    drawing: Markup

    @property
    def small(self) -> bool:
        """It is on the card itself, not only on the enlarged one."""
        return self.role not in ENLARGED


@dataclass(frozen=True)
class TableCell:
    """One column of a table: its value in every picture of the card, by role."""

    name: str
    values: tuple[str, ...]

    @property
    def right(self) -> bool:
        """What came back is what was there."""
        return len(self.values) > 1 and self.values[0] == self.values[1]


@dataclass(frozen=True)
class Card:
    rank: int  # 1 = largest gain (or most similar, or surest) of all targets
    pictures: tuple[Picture, ...]
    mse: float | None
    ssim: float | None
    cosine: float | None
    oracle: float | None
    confidence: float | None
    label: int | None
    label_name: str
    inferred_name: str
    label_right: bool
    lined_up: int | None = None  # its place in the line-up; 1: identified
    cells: tuple[TableCell, ...] = ()  # of a table's record, column by column

    @property
    def ratio(self) -> float | None:
        """Error over the oracle's error; None where the adversary held an exact copy."""
        if self.mse is None or not self.oracle or not math.isfinite(self.oracle):
            return None
        return self.mse / self.oracle


@dataclass(frozen=True)
class Gallery:
    cards: tuple[Card, ...]
    total: int
    best: int
    worst: int
    classes: tuple[tuple[int, str], ...]  # labels that occur on a card
    ranked_by: str = "mse"

    @property
    def best_first(self) -> str:
        return RANKED[self.ranked_by][1]

    @property
    def worst_first(self) -> str:
        return RANKED[self.ranked_by][2]

    @property
    def truth(self) -> bool:
        """Whether the private records are there to be shown."""
        return any(p.role == "targets" for card in self.cards for p in card.pictures)

    @property
    def tabular(self) -> bool:
        return any(card.cells for card in self.cards)

    @property
    def has_confidence(self) -> bool:
        return any(card.confidence is not None for card in self.cards)


def read_evidence(path: Path) -> Shard:
    """The tensors the page can draw, checked to agree in number of targets and record shape."""
    try:
        tensors = read_shard(path)
    except FileNotFoundError:
        raise ExhumeError(f"{path}: the evidence named in result.json is missing") from None
    except (SafetensorError, OSError, ValueError) as damage:
        raise ExhumeError(f"{path}: not readable as safetensors ({damage})") from None
    known = {name: tensors[name] for name in (*PICTURES, *VECTORS) if name in tensors}
    if len({t.shape[0] if t.ndim else 0 for t in known.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in known.items())
        raise ExhumeError(f"{path}: tensors disagree on the number of targets: {shapes}")
    if any(known[name].ndim != 1 for name in VECTORS if name in known):
        raise ExhumeError(f"{path}: each of {', '.join(VECTORS)} must have one number per target")
    drawn = {tuple(known[name].shape) for name in PICTURES if name in known}
    if len(drawn) > 1 or any(len(shape) not in (2, 4) for shape in drawn):
        raise ExhumeError(f"{path}: records must share one shape, (t, d) or (t, c, h, w): {drawn}")
    pair = {"targets", "reconstructions"} <= set(known) and "lexicon" not in tensors.notes
    if "mse" not in known and pair:
        difference = known["targets"].float() - known["reconstructions"].float()
        known["mse"] = difference.flatten(1).square().mean(1)
    beside = {name: tensors[name] for name in BESIDE if name in tensors}
    return Shard(known | beside, tensors.notes)


def selection(error: Tensor, most: int) -> tuple[list[int], int, int]:
    """At most `most` indices by rising error, and how many of them are the best and the worst.

    error: (t,); NaN counts as the largest.
    """
    order: list[int] = torch.argsort(
        torch.nan_to_num(error.double(), nan=math.inf), stable=True
    ).tolist()
    if len(order) <= most:
        return order, len(order), 0
    best = max(1, most // 2)
    worst = most // 4
    between = most - best - worst
    middle = order[best : len(order) - worst]
    step = len(middle) / max(between, 1)
    chosen = [middle[int(step * (i + 0.5))] for i in range(between)]
    return order[:best] + chosen + order[len(order) - worst :], best, worst


def make_gallery(
    evidence: Shard, classes: list[str], *, size: int, ranked_by: str = ""
) -> Gallery | None:
    """As many cards as fit in `size` bytes, up to `CARDS`; None where there is nothing to draw.

    Ranked by how much nearer than the nearest held record, else by error, or by confidence where there is
    none, unless told otherwise.
    """
    if {"mse", "oracle_mse"} <= set(evidence):
        ratio = evidence["mse"] / evidence["oracle_mse"].where(evidence["oracle_mse"] > 0, math.nan)
        evidence = Shard({**evidence, "ratio": ratio}, evidence.notes)
    ranked_by = ranked_by or next((n for n in ("ratio", "mse") if n in evidence), "confidence")
    if ranked_by not in RANKED:
        raise ExhumeError(f"ranked_by: {ranked_by!r} is not one of {', '.join(RANKED)}")
    if ranked_by not in evidence or not any(name in evidence for name in PICTURES):
        return None
    columns = from_json(tuple[Column, ...], evidence.notes.get("columns", []), "columns")
    cells = _cells(evidence, columns)
    evidence = Shard({**evidence, **_drawable(evidence), **_pictures(evidence)}, evidence.notes)
    error = RANKED[ranked_by][0] * evidence[ranked_by]
    total, most = len(error), CARDS
    ranks = {index: rank for rank, index in enumerate(selection(error, total)[0], start=1)}
    while True:
        chosen, best, worst = selection(error, most)
        cards = tuple(
            replace(_card(evidence, index, ranks[index], classes), cells=cells(index))
            for index in chosen
        )
        drawn = sum(len(picture.drawing) for card in cards for picture in card.pictures)
        if drawn <= size or most == 1:
            break
        most = max(1, min(most - 1, int(0.95 * len(cards) * size / drawn)))
    present = {card.label: card.label_name for card in cards if card.label is not None}
    labels = tuple(sorted(present.items()))
    return Gallery(cards, total, best, worst, labels, ranked_by) if cards else None


def _cells(
    evidence: Mapping[str, Tensor], columns: Sequence[Column]
) -> Callable[[int], tuple[TableCell, ...]]:
    """What a person reads of the record with this index; nothing where records are no table's."""
    roles = [role for role in PICTURES if role in evidence and role not in ENLARGED]
    fits = bool(columns) and all(
        evidence[role].ndim == 2 and evidence[role].shape[1] == sum(c.width for c in columns)
        for role in roles
    )

    def cells(index: int) -> tuple[TableCell, ...]:
        if not fits:
            return ()
        rows = [cells_of(torch.nan_to_num(evidence[role][index]), columns) for role in roles]
        return tuple(TableCell(c.name, tuple(row[c.name] for row in rows)) for c in columns)

    return cells


def _drawable(evidence: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Vectors (t, d) of any range, each column scaled to [0, 1] over everything that is drawn of it."""
    drawn = {role: evidence[role].float() for role in PICTURES if role in evidence}
    if any(records.ndim != 2 for records in drawn.values()):
        return {}
    everything = torch.nan_to_num(torch.cat(list(drawn.values())))
    low, high = everything.amin(0), everything.amax(0)
    return {
        role: (records - low) / (high - low).clamp_min(1e-12) for role, records in drawn.items()
    }


def _pictures(evidence: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Images behind vectors take their place."""
    behind = {"targets": "target_pictures", "decoys": "decoy_pictures"}
    return {role: evidence[name] for role, name in behind.items() if name in evidence}


def _card(evidence: Mapping[str, Tensor], index: int, rank: int, classes: list[str]) -> Card:
    label, label_name = _label(evidence, "labels", index, classes)
    inferred, inferred_name = _label(evidence, "inferred", index, classes)
    pictures = tuple(
        Picture(role, caption, _drawing(evidence[role][index], f"Rank {rank}: {alt}"))
        for role, (caption, alt) in PICTURES.items()
        if role in evidence
    )
    return Card(
        rank=rank,
        pictures=pictures,
        mse=_figure(evidence, "mse", index),
        ssim=_figure(evidence, "ssim", index),
        cosine=_figure(evidence, "cosine", index),
        oracle=_figure(evidence, "oracle_mse", index),
        confidence=_figure(evidence, "confidence", index),
        label=label,
        label_name=label_name,
        inferred_name=inferred_name,
        label_right=label == inferred,
        lined_up=_place(evidence, index),
    )


def _figure(evidence: Mapping[str, Tensor], name: str, index: int) -> float | None:
    return float(evidence[name][index]) if name in evidence else None


def _label(
    evidence: Mapping[str, Tensor], name: str, index: int, classes: list[str]
) -> tuple[int | None, str]:
    if name not in evidence:
        return None, ""
    label = int(evidence[name][index])
    return label, classes[label] if 0 <= label < len(classes) else str(label)


def _place(evidence: Mapping[str, Tensor], index: int) -> int | None:
    """In the line-up; None where the record took no part in one."""
    ranks = evidence.get("rank")
    if ranks is None or ranks.ndim != 1 or index >= len(ranks) or ranks[index] < 1:
        return None
    return int(ranks[index])


def _drawing(record: Tensor, alt: str) -> Markup:
    if record.ndim == 1:
        return strip(record, label=alt)
    height, width = record.shape[1:]
    style = "pixels" if max(height, width) <= SMALL else "photo"
    sizes = Markup(' width="{}" height="{}"').format(width, height)
    return img(record, alt, sizes, style=style)
