from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from exhume.contract import ExhumeError
from exhume.report.sheet import contact_sheet, write_sheets


def test_records_stand_above_what_came_back():
    white, black = torch.ones(3, 1, 4, 6), torch.zeros(3, 1, 4, 6)
    evidence = {"targets": white, "reconstructions": black, "labels": torch.arange(3)}
    drawn = Image.open(io.BytesIO(contact_sheet(evidence, ("a", "b", "c")))).convert("RGB")
    assert drawn.width == 3 * (12 + 8)
    for cell in range(3):
        left = cell * 20
        assert drawn.getpixel((left + 6, 4)) == (255, 255, 255)
        assert drawn.getpixel((left + 6, 8 + 2 + 4)) == (0, 0, 0)


def test_vectors_are_no_pictures():
    vectors = torch.zeros(3, 5)
    assert contact_sheet({"targets": vectors, "reconstructions": vectors}, ()) is None
    assert contact_sheet({"targets": torch.zeros(1, 1, 2, 2)}, ()) is None


def test_only_finished_studies_are_drawn(tmp_path):
    with pytest.raises(ExhumeError, match="no finished run"):
        write_sheets(tmp_path, tmp_path / "out")
