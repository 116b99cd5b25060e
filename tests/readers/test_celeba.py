from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planted_data import picture, says

from exhume.readers import load

ATTRIBUTES = "3\nMale Smiling\n1.jpg -1  1\n2.jpg  1  1\n3.jpg  1 -1\n"


@pytest.fixture
def faces(tmp_path: Path, rng: np.random.Generator) -> Path:
    for i in (1, 2, 3):
        picture(tmp_path / "set" / "img" / f"{i}.jpg", rng.integers(0, 256, (8, 6, 3)))
    return tmp_path / "set" / "img"


@pytest.mark.parametrize("place", ["img", "."])
@pytest.mark.parametrize("name", ["list_attr_celeba.txt", "CelebAMask-HQ-attribute-anno.txt"])
def test_attribute(faces: Path, place: str, name: str) -> None:
    (faces.parent / place / name).write_text(ATTRIBUTES)
    records = load(f"celeba-hq:{faces}")
    assert records.classes == ("not Male", "Male")
    assert records.labels.tolist() == [0, 1, 1]
    assert records.shape == (3, 8, 6)


def test_attributes_as_csv(faces: Path) -> None:
    rows = "image_id,Male,Smiling\n1.jpg,-1,1\n2.jpg,1,1\n3.jpg,-1,-1\n"
    (faces / "list_attr_celeba.csv").write_text(rows)
    assert load(faces).labels.tolist() == [0, 1, 0]


def test_identity_goes_first(faces: Path) -> None:
    (faces / "identity_CelebA.txt").write_text("1.jpg 20\n2.jpg 3\n3.jpg 20\n")
    (faces / "list_attr_celeba.txt").write_text(ATTRIBUTES)
    records = load(faces)
    assert records.classes == ("3", "20")
    assert records.labels.tolist() == [1, 0, 1]


def test_identity_through_the_mapping(faces: Path) -> None:
    mapping = "idx orig_idx orig_file\n1 118 000119.jpg\n2 7 000008.jpg\n3 0 000001.jpg\n"
    (faces.parent / "CelebA-HQ-to-CelebA-mapping.txt").write_text(mapping)
    (faces.parent / "identity_CelebA.txt").write_text("000001.jpg 5\n000008.jpg 6\n000119.jpg 5\n")
    assert load(f"celeba-hq:{faces}").labels.tolist() == [0, 1, 0]


def test_images_in_their_usual_folder(faces: Path) -> None:
    faces.rename(faces.parent / "CelebA-HQ-img")
    (faces.parent / "list_attr_celeba.txt").write_text(ATTRIBUTES)
    assert load(faces.parent, size=4).shape == (3, 4, 4)


def test_without_annotations(faces: Path) -> None:
    records = load(f"celeba-hq:{faces}")
    assert records.classes == ("img",)
    assert load(f"celeba-hq:{faces}", size=4).shape == (3, 4, 4)


def test_what_is_refused(faces: Path) -> None:
    attributes = faces / "list_attr_celeba.txt"
    attributes.write_text(ATTRIBUTES.replace("2.jpg", "9.jpg"))
    assert says(lambda: load(faces)) == f"{attributes}: has no line for 2.jpg"
    attributes.write_text(ATTRIBUTES.replace("-1  1", "7 1"))
    assert "Male has the value '7'; legal are -1, 0 and 1" in says(lambda: load(faces))
    attributes.write_text("")
    assert f"{attributes}: has no column Male" in says(lambda: load(faces))
    attributes.write_bytes(b"\xff\xfe\x00")
    assert "not a text file in UTF-8" in says(lambda: load(faces))
    attributes.write_text(ATTRIBUTES)
    for file in faces.glob("*.jpg"):
        file.unlink()
    assert f"{faces}: holds no images" in says(lambda: load(faces))
