"""Figures of a run for a page of documentation: charts, and what came back beside the records.

SVG and PNG, light and dark, with words for those who do not see them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from markupsafe import escape
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from exhume.core.contract import ExhumeError
from exhume.core.results import Chart, StudyResult, read_result
from exhume.report.evidence import TextGallery, Word, texts_of
from exhume.report.figures import WIDTH, draw_svg, style_of
from exhume.report.gallery import read_evidence
from exhume.report.words import TONES

_WIDE = 920  # pixels
_GAP, _LINE = 8, 14  # between cells; of a label
_MOST = 64  # cells
_ROWS = ("targets", "reconstructions", "nearest")  # of a cell, from above
_ENLARGED = 2
_PAPER, _INK = (255, 255, 255), (60, 60, 60)


def write_sheets(
    run: Path, out: Path, *, public: bool = False, attack: str = "", most: int = _MOST
) -> list[Path]:
    """An SVG for every chart, and for every attack a PNG of pictures or an SVG of texts.

    run: the folder of a study or an audit, or a study's kept result (docs/results/NAME.json): charts alone.
    public: the audit's records are; without it an audit is refused.
    attack: the id of the only attack to draw, without charts; "": all.
    most: records of an attack; where there are more, evenly from the best to the worst.
    """
    kept = run.suffix == ".json"
    result = read_result(run if kept else run / "result.json")
    study = isinstance(result, StudyResult)
    if not study and not public:
        raise ExhumeError(
            f"{run}: an audit's folder holds private records; --public draws them, where they are public"
        )
    name = result.study if isinstance(result, StudyResult) else run.resolve().name
    known = [section.spec.id for section in result.attacks]
    if attack and attack not in known:
        raise ExhumeError(
            f"{run}: it has no attack {attack!r}; it has {', '.join(known) or 'none'}"
        )
    files: dict[str, bytes] = {}
    for place, chart in enumerate(() if attack else result.charts, 1):
        if text := chart_file(chart):
            files[f"{name}-chart{place}.svg"] = text.encode()
    for section in result.attacks:
        if kept or not section.evidence or attack not in ("", section.spec.id):
            continue
        evidence = read_evidence(run / section.evidence)
        if texts := texts_of(evidence, list(result.classes)):
            if text := text_file(texts, most):
                files[f"{name}-{section.spec.id}.svg"] = text.encode()
        elif drawn := contact_sheet(evidence, result.classes, most):
            files[f"{name}-{section.spec.id}.png"] = drawn
    if not files:
        raise ExhumeError(f"{run}: it holds no chart, and no records beside what came back of them")
    out.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (out / file).write_bytes(content)
    return [out / file for file in files]


def contact_sheet(
    evidence: Mapping[str, Tensor], classes: Sequence[str], most: int = _MOST
) -> bytes | None:
    """Cells from left to right: record, what came back, nearest held if any, label. None: no pictures."""
    if not {"targets", "reconstructions"} <= set(evidence) or evidence["targets"].ndim != 4:
        return None
    rows = [evidence[role] for role in _ROWS if role in evidence]
    labels = evidence["labels"].tolist() if "labels" in evidence else []
    words = [classes[n] if 0 <= n < len(classes) else str(n) for n in map(int, labels)]
    cells = [
        _cell([row[place] for row in rows], words[place] if words else "")
        for place in _chosen(evidence, most)
    ]
    wide, high = cells[0].size
    across = max(1, (_WIDE + _GAP) // (wide + _GAP))
    lines = -(-len(cells) // across)
    sheet = Image.new(
        "RGB", (min(across, len(cells)) * (wide + _GAP), lines * (high + _GAP)), _PAPER
    )
    for place, cell in enumerate(cells):
        sheet.paste(cell, (place % across * (wide + _GAP), place // across * (high + _GAP)))
    data = io.BytesIO()
    sheet.quantize(128).save(data, format="PNG", optimize=True)
    return data.getvalue()


def _chosen(evidence: Mapping[str, Tensor], most: int) -> list[int]:
    """All places as they stand, or so many of them by rank, with the best and the worst: no selection."""
    back = evidence["reconstructions"]
    if len(back) <= most:
        return list(range(len(back)))
    error = (evidence["targets"].float() - back.float()).flatten(1).square().mean(1)
    order = torch.nan_to_num(error, nan=torch.inf).argsort(stable=True)
    return [int(order[place]) for place in evenly(len(order), most)]


def _cell(stack: Sequence[Tensor], label: str) -> Image.Image:
    pictures = [_picture(record) for record in stack]
    wide, high = pictures[0].size
    cell = Image.new("RGB", (wide, len(stack) * (high + 2) - 2 + _LINE), _PAPER)
    for place, picture in enumerate(pictures):
        cell.paste(picture, (0, place * (high + 2)))
    corner = (0, len(stack) * (high + 2) - 1)
    ImageDraw.Draw(cell).text(corner, label, _INK, ImageFont.load_default(size=11))
    return cell


def _picture(record: Tensor) -> Image.Image:
    """(c, h, w) in [0, 1]"""
    pixels = torch.nan_to_num(record.detach().float()).clamp(0, 1)
    pixels = pixels if pixels.shape[0] == 3 else pixels.mean(0, keepdim=True).expand(3, -1, -1)
    array = (pixels * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(array)
    bigger = (picture.width * _ENLARGED, picture.height * _ENLARGED)
    return picture.resize(bigger, Image.Resampling.NEAREST)


# A chart

_LEGEND_LINE = 17  # height of a line of the legend
_LIGHT = ("#0072b2", "#b85a00", "#5f6670", "#00795a", "#a33a7d", "#7a6a00")
_LIGHT_TONES = {"leak": "#a8201a", "risk": "#8a4b00", "clear": "#1f4e8c", "unknown": "#4b5563"}
_DARK_TONES = {"leak": "#ff9d92", "risk": "#f2b366", "clear": "#9cc3f5", "unknown": "#b8bec8"}
_DARK = ("#56b4e9", "#f0a04b", "#a7adb8", "#3ac49a", "#e08cc4", "#d8c84a")
_CHART_STYLE = """
text { fill: #5a606b; font: 12px system-ui, sans-serif; text-anchor: middle; }
.left { text-anchor: end; } .start { text-anchor: start; } .name { fill: #1e2126; }
.paper { fill: #fff; } path { fill: none; } .axis { stroke: #5a606b; } .grid { stroke: #e1ded7; }
.line { stroke-width: 2; } .whisker { stroke-width: 2; opacity: .5; }
.line.again { stroke-dasharray: 5 4; }
@media (prefers-color-scheme: dark) {
  text { fill: #a3a8b2; } .name { fill: #e8e6e1; } .paper { fill: #15171b; }
  .axis { stroke: #a3a8b2; } .grid { stroke: #32363d; }
}
"""


def chart_file(chart: Chart) -> str:
    """The whole file; "" where there is nothing to draw."""
    drawn, names = draw_svg(chart)
    if not names:
        return ""
    found = re.fullmatch(r'<svg class="chart" viewBox="0 0 \d+ (\d+)" (.*?)>(.*)</svg>', str(drawn))
    assert found is not None  # as `figures.svg` writes it
    height, label, inside = int(found[1]), found[2], found[3]
    toned = bool(set(names) & set(TONES))
    light = _colours(_LIGHT, _LIGHT_TONES if toned else {})
    dark = _colours(_DARK, _DARK_TONES if toned else {})
    style = f"{_CHART_STYLE}{light}@media (prefers-color-scheme: dark) {{ {dark} }}"
    size = f'width="{WIDTH}" height="{height + _LEGEND_LINE * len(names) + 4}"'
    marks = [inside]
    for place, name in enumerate(names):
        y = height + _LEGEND_LINE * place
        dot = f'<circle class="point {style_of(place, name)}" cx="14" cy="{y}" r="5"/>'
        marks.append(f'{dot}<text class="start name" x="26" y="{y + 4}">{escape(name)}</text>')
    return _svg_file(size, label, chart.title, style, marks)


def _svg_file(size: str, words: str, title: str, style: str, marks: Sequence[str]) -> str:
    """size, words: attributes of the drawing."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {words}>',
            f"<title>{escape(title)}</title><style>{style}</style>",
            f'<rect class="paper" {size}/>',
            *marks,
            "</svg>\n",
        ]
    )


def _colours(series: Sequence[str], tones: Mapping[str, str]) -> str:
    """Rules for series by their number, and for those that are verdicts."""
    rules = [
        f".s{i} {{ stroke: {colour}; }} .point.s{i} {{ fill: {colour}; stroke: none; }}\n"
        f".point.s{i}.again {{ fill: none; stroke: {colour}; stroke-width: 2; }}\n"
        for i, colour in enumerate(series)
    ]
    rules += [
        f".{tone} {{ stroke: {colour}; }} .point.{tone} {{ fill: {colour}; stroke: none; }}\n"
        for tone, colour in tones.items()
    ]
    return "".join(rules)


# Texts beside what came back of them, word by word

_TEXT_WIDE, _EDGE, _NAMES = 760, 14, 96  # pixels: the file, its margin, the column of names
_LETTER, _SPACE, _TEXT_LINE = 7.8, 9.0, 23  # of the letters below
_BETWEEN = 12  # two texts
_NOTHING = (Word("(nothing)", None),)
_TEXT_STYLE = """
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #1e2126; }
.name { font: 12px system-ui, sans-serif; fill: #5a606b; } .paper { fill: #fff; }
.right { fill: #fbe3e0; } .wrong { fill: #5a606b; text-decoration: line-through; } .rule { stroke: #e1ded7; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8e6e1; } .name, .wrong { fill: #a3a8b2; } .paper { fill: #15171b; }
  .right { fill: #5c2622; } .rule { stroke: #32363d; }
}
"""


def text_file(texts: TextGallery, most: int) -> str:
    """The whole file: words that came back are marked, wrong ones struck out; "" for lists of words."""
    known = [row for row in texts.rows if row.original]  # the best first
    if texts.lists or not known:
        return ""
    rows = [known[place] for place in evenly(len(known), most)]
    marks, height, right, asked = [], _EDGE, 0, 0
    for place, row in enumerate(rows):
        if place:
            rule = height + _BETWEEN / 2
            marks.append(f'<path class="rule" d="M{_EDGE} {rule:g}H{_TEXT_WIDE - _EDGE}"/>')
            height += _BETWEEN
        for name, words in (("private text", row.original), ("came back", row.found or _NOTHING)):
            drawn, height = _line(name, words, height, struck=name == "came back")
            marks += drawn
        right += sum(word.right is True for word in row.original)
        asked += len(row.original)
    count = "A text" if len(rows) == 1 else f"{len(rows)} texts, each"
    title = f"{count} above what came back of it: {right} of {asked} words are right."
    size = f'width="{_TEXT_WIDE}" height="{height + _EDGE}"'
    spoken = f'role="img" aria-label="{escape(title)}"'
    return _svg_file(size, spoken, title, _TEXT_STYLE, marks)


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
        if left + wide > _TEXT_WIDE - _EDGE and left > _EDGE + _NAMES:
            left, height = float(_EDGE + _NAMES), height + _TEXT_LINE
        if word.right:
            box = f'x="{left - 3:.1f}" y="{height + 2}" width="{wide + 6:.1f}" height="19" rx="4"'
            marks.append(f'<rect class="right" {box}/>')
        style = ' class="wrong"' if struck and word.right is False else ""
        place = f'x="{left:.1f}" y="{height + 16}" textLength="{wide:.1f}"'
        marks.append(f"<text{style} {place}>{escape(word.text)}</text>")
        left += wide + _SPACE
    return marks, height + _TEXT_LINE
