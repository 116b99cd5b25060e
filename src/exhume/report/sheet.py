"""Figures of a run for a page of documentation: its charts, and what came back beside the records."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from exhume.core.contract import ExhumeError
from exhume.core.results import StudyResult, read_result
from exhume.report.chart_file import chart_file
from exhume.report.gallery import read_evidence
from exhume.report.text_file import evenly, text_file
from exhume.report.texts import texts_of

__all__ = ["contact_sheet", "write_sheets"]

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
