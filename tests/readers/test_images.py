from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planted_data import picture, says

from exhume.readers import images, load


@pytest.mark.parametrize("ending", ["png", "pgm", "bmp", "tif"])
def test_grey_classes_round_trip(tmp_path: Path, rng: np.random.Generator, ending: str) -> None:
    values = rng.integers(0, 256, (12, 5, 4))
    for i, value in enumerate(values):
        picture(tmp_path / "set" / f"s{1 + i // 4 * 9}" / f"{i}.{ending}", value)
    records = load(tmp_path / "set")
    assert records.classes == ("s1", "s10", "s19")
    assert records.inputs.dtype == torch.float32
    assert records.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert np.array_equal((records.inputs * 255).round().numpy(), values[:, None])


def test_natural_order(tmp_path: Path) -> None:
    for name in ("10", "9", "1", "a2", "a10"):
        picture(tmp_path / "k" / f"{name}.png", np.full((2, 2), 7))
    names = [file.stem for file in images.images_in(tmp_path / "k")]
    assert names == ["a2", "a10", "1", "9", "10"]


def test_colour_is_channels_first(tmp_path: Path, rng: np.random.Generator) -> None:
    value = rng.integers(0, 256, (4, 6, 3))
    picture(tmp_path / "a" / "1.png", value)
    assert np.array_equal(
        (load(tmp_path).inputs[0] * 255).numpy().round(), value.transpose(2, 0, 1)
    )


def test_mixed_modes_become_colour(tmp_path: Path, rng: np.random.Generator) -> None:
    grey, colour = rng.integers(0, 256, (4, 4)), rng.integers(0, 256, (4, 4, 3))
    picture(tmp_path / "a" / "1.png", grey)
    picture(tmp_path / "b" / "1.png", colour)
    first, second = (load(tmp_path).inputs * 255).round().numpy()
    assert np.array_equal(first, np.stack([grey] * 3))
    assert np.array_equal(second, colour.transpose(2, 0, 1))


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("LA", 1), ("P", 3), ("RGBA", 3)])
def test_other_modes(tmp_path: Path, mode: str, channels: int) -> None:
    Image.new("RGB", (3, 3), "white").convert(mode).save(tmp_path / "1.png")
    inputs = load(tmp_path).inputs
    assert inputs.shape == (1, channels, 3, 3)
    assert torch.equal(inputs, torch.ones_like(inputs))


def test_flat_folder_is_one_class(tmp_path: Path) -> None:
    picture(tmp_path / "mine" / "1.png", np.zeros((2, 2)))
    (tmp_path / "mine" / "README.txt").write_text("about")
    (tmp_path / "mine" / ".hidden").mkdir()
    records = load(f"{tmp_path}/mine")
    assert records.classes == ("mine",)
    assert len(records) == 1


def test_size_crops_the_centre_and_resizes(tmp_path: Path) -> None:
    wide = np.zeros((8, 16))
    wide[:, 4:12] = 200
    picture(tmp_path / "1.png", wide)
    picture(tmp_path / "2.png", np.full((8, 8), 200))
    inputs = load(tmp_path, size=4).inputs
    assert inputs.shape == (2, 1, 4, 4)
    assert torch.allclose(inputs, torch.full_like(inputs, 200 / 255))


def test_progress_counts_every_image(tmp_path: Path) -> None:
    for i in range(3):
        picture(tmp_path / f"{i}.png", np.zeros((2, 2)))
    calls: list[tuple[str, int, int]] = []
    load(tmp_path, progress=lambda *call: calls.append(call))
    assert calls == [("read images", i, 3) for i in range(4)]


def test_empty_folder(tmp_path: Path) -> None:
    assert says(lambda: load(tmp_path)).startswith(f"{tmp_path}: an empty folder; legal are")


def test_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    text = says(lambda: load(tmp_path))
    assert text.startswith(f"{tmp_path}: holds no images")
    assert ".png" in text


def test_empty_class_folder(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png", np.zeros((2, 2)))
    (tmp_path / "b").mkdir()
    assert f"{tmp_path / 'b'}: this class folder holds no images" in says(lambda: load(tmp_path))


def test_images_beside_folders(tmp_path: Path) -> None:
    picture(tmp_path / "1.png", np.zeros((2, 2)))
    picture(tmp_path / "a" / "1.png", np.zeros((2, 2)))
    assert "holds both images (1.png) and folders (a)" in says(lambda: load(tmp_path))


def test_folder_in_class_folder(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "a" / "1.png", np.zeros((2, 2)))
    assert "holds images only, it has a folder a" in says(lambda: load(tmp_path))


def test_mixed_sizes_name_two_files(tmp_path: Path) -> None:
    one = picture(tmp_path / "a" / "1.png", np.zeros((2, 3)))
    two = picture(tmp_path / "a" / "2.png", np.zeros((4, 5)))
    assert f"{one} is 3x2, {two} is 5x4" in says(lambda: load(tmp_path))


def test_illegal_size(tmp_path: Path) -> None:
    picture(tmp_path / "1.png", np.zeros((2, 2)))
    assert says(lambda: load(tmp_path, size=0)) == "size: 0 given, it must be 1 or more"


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "pgm"])
@pytest.mark.parametrize("kept", [0, 10, 0.6])
def test_truncated_image(
    tmp_path: Path, rng: np.random.Generator, ending: str, kept: float
) -> None:
    path = picture(tmp_path / f"1.{ending}", rng.integers(0, 256, (32, 32)))
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    assert says(lambda: load(tmp_path)).startswith(f"{path}: unreadable or truncated image")


def test_text_called_png(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_text("not an image")
    assert "1.png: unreadable or truncated image" in says(lambda: load(tmp_path))


def test_sixteen_bits(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((2, 2), np.uint16)).save(tmp_path / "1.png")
    assert "legal are 8-bit grey and colour images" in says(lambda: load(tmp_path))


@pytest.mark.parametrize("limit", [20, 50])  # Pillow's error at twice the limit, its warning before
def test_decompression_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    path = picture(tmp_path / "1.png", np.zeros((8, 8)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    text = says(lambda: load(tmp_path))
    assert text == f"{path}: more than {limit} pixels, perhaps a decompression bomb"


@pytest.mark.skipif(sys.platform == "win32", reason="the size of the memory is not asked there")
def test_more_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "1.png", np.zeros((8, 8)))
    monkeypatch.setattr("os.sysconf", lambda _: 10)
    assert "1 records of 1x8x8 need 0.0 MB" in says(lambda: load(tmp_path))
