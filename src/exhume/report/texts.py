"""Evidence of an attack on texts: each private text beside what came back, word by word.

Like the cards of images these hold private records: made only for the full page, never for the redacted one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from exhume.core.contract import ExhumeError, Shard

__all__ = ["TextRow", "Texts", "Word", "texts_of"]

SHOWN = 200  # texts of one attack at most, those that came back best first
LISTED = 500  # words of a list


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
class Texts:
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


def texts_of(evidence: Shard, classes: list[str]) -> Texts | None:
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
    rows = tuple(_row(evidence, lexicon, index, classes) for index in order[:SHOWN])
    words = evidence["listed"].tolist() if "listed" in evidence else []
    return Texts(
        rows,
        total,
        lexicon.ordered,
        truth="targets" in evidence,
        lists="listed" in evidence,
        listed=tuple(lexicon.text(token) for token in words[:LISTED]),
        unlisted=max(0, len(words) - LISTED),
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
