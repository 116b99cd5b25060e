"""What evidence shows besides cards: texts word by word, pairs around the threshold, records that leak most.

Like the cards these hold private records: made only for the full page, never for the redacted one.

Buzaglo23's App. A shows pairs around SSIM 0.4 and lets the reader judge; Fig. 1 plots SSIM against the
distance of a training image from the margin.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from torch import Tensor

from exhume.core.contract import ExhumeError, Shard
from exhume.report.figures import (
    BOTTOM,
    LEFT,
    NOTHING,
    RIGHT,
    TOP,
    LinearAxis,
    dots,
    finite_pairs,
    img,
    legend,
    strip,
    svg,
    x_axis,
    y_axis,
)
from exhume.report.words import number
from exhume.score.margin import GOOD
from exhume.score.risk import FACTORS, risk_of

_TEXTS = 200  # texts of one attack at most, those that came back best first
_LISTED = 500  # words of a list
_PAIRS = 8  # on a side of the threshold
_RISKIEST = 12  # records in the table


@dataclass(frozen=True)
class Word:
    text: str
    right: bool | None  # None: there is nothing to compare with


@dataclass(frozen=True)
class TextRow:
    original: tuple[Word, ...]  # right: it came back; empty: not known
    found: tuple[Word, ...] | None  # None: nothing came back for it, or the attack lists words only
    share: float | None
    label: str


@dataclass(frozen=True)
class TextGallery:
    rows: tuple[TextRow, ...]
    total: int
    ordered: bool
    truth: bool  # the private texts are there to compare with
    lists: bool  # the attack gives a list of words instead of texts
    listed: tuple[str, ...]
    unlisted: int  # words of the list that are not shown


@dataclass(frozen=True)
class _Lexicon:
    padding: int | None
    ordered: bool
    words: Mapping[str, str]

    @staticmethod
    def of(notes: Any) -> _Lexicon:
        try:
            return _Lexicon(notes["padding"], bool(notes["ordered"]), dict(notes["words"]))
        except (ValueError, KeyError, TypeError) as damage:
            raise ExhumeError(f"evidence: its words are damaged ({damage})") from None

    def text(self, token: int) -> str:
        return str(self.words.get(str(token), f"#{token}"))

    def tokens(self, row: Tensor) -> list[tuple[int, int]]:
        """Places and tokens, without padding at the end and, where there is no order, anywhere."""
        values = list(enumerate(row.tolist()))
        if not self.ordered:
            return [(place, token) for place, token in values if token != self.padding]
        while values and values[-1][1] == self.padding:
            values.pop()
        return values


def texts_of(evidence: Shard, classes: list[str]) -> TextGallery | None:
    """None where the evidence is of something else than texts."""
    if "lexicon" not in evidence.notes:
        return None
    lexicon = _Lexicon.of(evidence.notes["lexicon"])
    source = evidence.get("targets", evidence.get("reconstructions"))
    total = len(source) if source is not None else 0
    share = evidence.get("right_share")
    order = list(range(total))
    if share is not None:
        order = share.argsort(descending=True, stable=True).tolist()
    rows = tuple(_row(evidence, lexicon, index, classes) for index in order[:_TEXTS])
    words = evidence["listed"].tolist() if "listed" in evidence else []
    return TextGallery(
        rows,
        total,
        lexicon.ordered,
        truth="targets" in evidence,
        lists="listed" in evidence,
        listed=tuple(lexicon.text(token) for token in words[:_LISTED]),
        unlisted=max(0, len(words) - _LISTED),
    )


def _row(
    evidence: Mapping[str, Tensor], lexicon: _Lexicon, index: int, classes: list[str]
) -> TextRow:
    truth = evidence["targets"][index] if "targets" in evidence else None
    found = evidence["reconstructions"][index] if "reconstructions" in evidence else None
    if found is not None and bool((found < 0).all()):
        found = None
    label = int(evidence["labels"][index]) if "labels" in evidence else -1
    share = float(evidence["right_share"][index]) if "right_share" in evidence else None
    if truth is None:
        original: tuple[Word, ...] = ()
    elif "covered" in evidence:
        on = evidence["covered"][index].tolist()
        original = tuple(Word(lexicon.text(t), bool(on[p])) for p, t in lexicon.tokens(truth))
    else:
        original = _marked(truth, found, lexicon)
    back = None if found is None else _marked(found, truth, lexicon, known=truth is not None)
    name = classes[label] if 0 <= label < len(classes) else ""
    return TextRow(original, back, share, name)


def _marked(
    row: Tensor, other: Tensor | None, lexicon: _Lexicon, *, known: bool = True
) -> tuple[Word, ...]:
    """The words of a row: right where the other has the same, in place or (once for once) anywhere."""
    theirs = [] if other is None else other.tolist()
    left = Counter(theirs)
    words = []
    for place, token in lexicon.tokens(row):
        if lexicon.ordered:
            right = place < len(theirs) and theirs[place] == token
        else:
            right = left[token] > 0
            left[token] -= 1
        words.append(Word(lexicon.text(token), right if known else None))
    return tuple(words)


# Pairs on both sides of the threshold, and SSIM against margin


@dataclass(frozen=True)
class Pair:
    ssim: float
    truth: Markup
    found: Markup


@dataclass(frozen=True)
class PairGroup:
    """Pairs of one kind, in falling order of SSIM."""

    title: str
    pairs: tuple[Pair, ...]


def sides_of_threshold(evidence: dict[str, Tensor]) -> list[PairGroup]:
    """Training images just above and just below the threshold, and the decoys that came nearest to it."""
    if not {"targets", "reconstructions", "ssim"} <= set(evidence):
        return []
    if evidence["targets"].ndim != 4:
        return []
    ssim = evidence["ssim"]
    order = [i for i in ssim.argsort(descending=True).tolist() if math.isfinite(float(ssim[i]))]
    above = [i for i in order if float(ssim[i]) > GOOD][-_PAIRS:]
    below = [i for i in order if float(ssim[i]) <= GOOD][:_PAIRS]
    sides = [
        PairGroup(f"Just above {GOOD:g}: counted as brought back", _pairs(evidence, "", above)),
        PairGroup(f"Just below {GOOD:g}: not counted", _pairs(evidence, "", below)),
    ]
    if {"decoy_targets", "decoy_reconstructions", "decoy_ssim"} <= set(evidence):
        lucky = evidence["decoy_ssim"].argsort(descending=True).tolist()[:_PAIRS]
        title = "The luckiest decoys: images that were not trained on"
        sides.append(PairGroup(title, _pairs(evidence, "decoy_", lucky)))
    return [side for side in sides if side.pairs]


def _pairs(evidence: dict[str, Tensor], of: str, chosen: list[int]) -> tuple[Pair, ...]:
    """of: how the tensors' names begin."""
    images, back = evidence[f"{of}targets"], evidence[f"{of}reconstructions"]
    ssim = evidence[f"{of}ssim"]
    return tuple(
        Pair(
            float(ssim[i]),
            img(images[i], f"Image of a pair with SSIM {float(ssim[i]):.2f}"),
            img(back[i], "Its best match among the reconstructions"),
        )
        for i in chosen
    )


def ssim_against_margin(evidence: dict[str, Tensor]) -> Markup:
    """A point per training image; the threshold as a line. Margins are over the smallest positive one."""
    if not {"margins", "ssim"} <= set(evidence):
        return Markup("")
    margins, ssim = evidence["margins"].double(), evidence["ssim"].double()
    positive = margins[margins > 0]
    unit = float(positive.min()) if len(positive) else 1.0
    pairs = finite_pairs((margins / unit).tolist(), ssim.tolist())
    if not pairs:
        return NOTHING
    across = LinearAxis.around([a for a, _ in pairs], LEFT, RIGHT)
    up = LinearAxis.around([*(b for _, b in pairs), GOOD, 0.0, 1.0], BOTTOM, TOP)
    good = sum(b > GOOD for _, b in pairs)
    marks = [
        x_axis(across, "margin of the training image, over the smallest"),
        y_axis(up, "SSIM of its best match"),
        Markup('<path class="diagonal" d="M{} {:.1f}H{}"/>').format(LEFT, up.place(GOOD), RIGHT),
        dots([p for p in pairs if p[1] <= GOOD], across, up, "s1"),
        dots([p for p in pairs if p[1] > GOOD], across, up, "s0"),
    ]
    label = f"SSIM against margin. {good} of {len(pairs)} training images lie above {GOOD:g}."
    below = ("dot s1", f"at most {GOOD:g}", len(pairs) - good)
    return svg(marks, label) + legend([("dot s0", f"above {GOOD:g}", good), below])


# The records that leak most, with thumbnails and reasons


@dataclass(frozen=True)
class RiskRow:
    row: int
    record: Markup
    found: Markup
    leak: str
    back: bool
    factors: list[str]
    why: str


@dataclass(frozen=True)
class RiskTable:
    heads: list[str]  # of the factors
    rows: list[RiskRow]
    total: int


def risk_table(evidence: Mapping[str, Tensor]) -> RiskTable | None:
    """The first few; None where the evidence does not say which records it is about."""
    risk = risk_of(evidence)
    if risk is None or "targets" not in evidence:
        return None
    rows = [
        RiskRow(
            int(risk.rows[index]),
            _drawn(evidence["targets"][index], f"Record {int(risk.rows[index])}"),
            _drawn(evidence["reconstructions"][index], "What the attack brought back"),
            number(float(risk.leak[index])),
            bool(risk.back[index]),
            [number(float(values[index])) for values in risk.factors.values()],
            risk.why(index),
        )
        for index in risk.order[:_RISKIEST]
    ]
    heads = [FACTORS[name][0].capitalize() for name in risk.factors]
    return RiskTable(heads, rows, len(risk.rows))


def _drawn(record: Tensor, alt: str) -> Markup:
    if record.ndim == 1:
        low, high = record.float().min(), record.float().max()
        return strip((record.float() - low) / (high - low).clamp_min(1e-12), label=alt)
    return img(record, alt, Markup(' width="48"'), side=64)
