"""Texts beside what came back of them, word by word, as a small SVG file for a page of documentation."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import escape

from exhume.report.texts import Texts, Word

__all__ = ["evenly", "text_file"]

_WIDE, _EDGE, _NAMES = 760, 14, 96  # pixels: the file, its margin, the column of names
_LETTER, _SPACE, _LINE = 7.8, 9.0, 23  # of the letters below
_BETWEEN = 12  # two texts
_NOTHING = (Word("(nothing)", None),)
_STYLE = """
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #1e2126; }
.name { font: 12px system-ui, sans-serif; fill: #5a606b; } .paper { fill: #fff; }
.right { fill: #fbe3e0; } .wrong { fill: #5a606b; text-decoration: line-through; } .rule { stroke: #e1ded7; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8e6e1; } .name, .wrong { fill: #a3a8b2; } .paper { fill: #15171b; }
  .right { fill: #5c2622; } .rule { stroke: #32363d; }
}
"""


def text_file(texts: Texts, most: int) -> str:
    """The whole file: words that came back are marked, wrong ones struck out; "" for lists of words."""
    known = [row for row in texts.rows if row.original]  # the best first
    if texts.lists or not known:
        return ""
    rows = [known[place] for place in evenly(len(known), most)]
    marks, height, right, asked = [], _EDGE, 0, 0
    for place, row in enumerate(rows):
        if place:
            rule = height + _BETWEEN / 2
            marks.append(f'<path class="rule" d="M{_EDGE} {rule:g}H{_WIDE - _EDGE}"/>')
            height += _BETWEEN
        for name, words in (("private text", row.original), ("came back", row.found or _NOTHING)):
            drawn, height = _line(name, words, height, struck=name == "came back")
            marks += drawn
        right += sum(word.right is True for word in row.original)
        asked += len(row.original)
    count = "A text" if len(rows) == 1 else f"{len(rows)} texts, each"
    said = f"{count} above what came back of it: {right} of {asked} words are right."
    size = f'width="{_WIDE}" height="{height + _EDGE}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(said)}">',
            f"<title>{escape(said)}</title><style>{_STYLE}</style>",
            f'<rect class="paper" {size}/>',
            *marks,
            "</svg>\n",
        ]
    )


def evenly(count: int, most: int) -> list[int]:
    """At most so many of the places, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / max(most - 1, 1)) for place in range(most)]


def _line(name: str, words: Sequence[Word], height: int, *, struck: bool) -> tuple[list[str], int]:
    """Words from left to right, and where the next line begins. struck: wrong words are."""
    marks = [f'<text class="name" x="{_EDGE}" y="{height + 16}">{escape(name)}</text>']
    left = float(_EDGE + _NAMES)
    for word in words:
        wide = _LETTER * len(word.text)
        if left + wide > _WIDE - _EDGE and left > _EDGE + _NAMES:
            left, height = float(_EDGE + _NAMES), height + _LINE
        if word.right:
            box = f'x="{left - 3:.1f}" y="{height + 2}" width="{wide + 6:.1f}" height="19" rx="4"'
            marks.append(f'<rect class="right" {box}/>')
        style = ' class="wrong"' if struck and word.right is False else ""
        place = f'x="{left:.1f}" y="{height + 16}" textLength="{wide:.1f}"'
        marks.append(f"<text{style} {place}>{escape(word.text)}</text>")
        left += wide + _SPACE
    return marks, height + _LINE
