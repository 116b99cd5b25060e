"""Figures of a study for a page of documentation: its charts, and contact sheets of what came back."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from exhume.contract import ExhumeError
from exhume.report.chart_file import chart_file
from exhume.report.gallery import read_evidence
from exhume.results import StudyResult, read_result

__all__ = ["contact_sheet", "write_sheets"]

_WIDE = 920  # pixels
_GAP, _LINE = 8, 14  # between cells; of a label
_MOST = 64  # cells
_ENLARGED = 2
_PAPER, _INK = (255, 255, 255), (60, 60, 60)


def write_sheets(run: Path, out: Path) -> list[Path]:
    """A PNG for every section of a study whose records are pictures, and an SVG for every chart.

    run: a study's folder, or its kept result (docs/results/NAME.json), which has charts alone.
    """
    kept = run.suffix == ".json"
    result = read_result(run if kept else run / "result.json")
    if not isinstance(result, StudyResult):
        raise ExhumeError(
            f"{run}: an audit holds private records; figures are drawn of studies only"
        )
    written: list[Path] = []
    for place, chart in enumerate(result.charts, 1):
        if text := chart_file(chart):
            out.mkdir(parents=True, exist_ok=True)
            written.append(out / f"{result.study}-chart{place}.svg")
            written[-1].write_text(text, encoding="utf-8")
    for section in result.attacks:
        if kept or not section.evidence:
            continue
        evidence = read_evidence(run / section.evidence)
        drawn = contact_sheet(evidence, result.classes)
        if drawn is None:
            continue
        out.mkdir(parents=True, exist_ok=True)
        written.append(out / f"{result.study}-{section.spec.id}.png")
        written[-1].write_bytes(drawn)
    if not written:
        raise ExhumeError(
            f"{run}: it holds no chart, and no pictures beside what came back of them"
        )
    return written


def contact_sheet(evidence: Mapping[str, Tensor], classes: Sequence[str]) -> bytes | None:
    """Cells from left to right, under each its label. None: these are no pictures."""
    if not {"targets", "reconstructions"} <= set(evidence) or evidence["targets"].ndim != 4:
        return None
    pairs = list(zip(evidence["targets"], evidence["reconstructions"], strict=True))[:_MOST]
    labels = evidence["labels"].tolist() if "labels" in evidence else []
    words = [classes[n] if 0 <= n < len(classes) else str(n) for n in map(int, labels)]
    cells = [_cell(*pair, words[place] if words else "") for place, pair in enumerate(pairs)]
    wide, high = cells[0].size
    across = max(1, (_WIDE + _GAP) // (wide + _GAP))
    rows = -(-len(cells) // across)
    sheet = Image.new(
        "RGB", (min(across, len(cells)) * (wide + _GAP), rows * (high + _GAP)), _PAPER
    )
    for place, cell in enumerate(cells):
        sheet.paste(cell, (place % across * (wide + _GAP), place // across * (high + _GAP)))
    data = io.BytesIO()
    sheet.quantize(128).save(data, format="PNG", optimize=True)
    return data.getvalue()


def _cell(target: Tensor, back: Tensor, label: str) -> Image.Image:
    above, below = _picture(target), _picture(back)
    wide, high = above.size
    cell = Image.new("RGB", (wide, 2 * high + 2 + _LINE), _PAPER)
    cell.paste(above, (0, 0))
    cell.paste(below, (0, high + 2))
    ImageDraw.Draw(cell).text((0, 2 * high + 3), label, _INK, ImageFont.load_default(size=11))
    return cell


def _picture(record: Tensor) -> Image.Image:
    """(c, h, w) in [0, 1]"""
    pixels = torch.nan_to_num(record.detach().float()).clamp(0, 1)
    pixels = pixels if pixels.shape[0] == 3 else pixels.mean(0, keepdim=True).expand(3, -1, -1)
    array = (pixels * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(array)
    bigger = (picture.width * _ENLARGED, picture.height * _ENLARGED)
    return picture.resize(bigger, Image.Resampling.NEAREST)
