from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import pytest
from planted_data import says

from exhume.readers import TextPairs, pairs
from exhume.readers.sentences import tabbed_zip

TABBED = "Go.\tVa !\tCC-BY 2.0\nHi.\tSalut\u2028toi !\tCC-BY 2.0\r\nRun!\tCours\u202f!\n"


def zipped(**members: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__", "."), text)
    return out.getvalue()


def check(found: TextPairs) -> None:
    assert found.source == ("Go.", "Hi.", "Run!")
    assert found.target == ("Va !", "Salut\u2028toi !", "Cours\u202f!")
    assert len(found) == 3
    assert found[1:].source == ("Hi.", "Run!")


def test_tabbed_file(tmp_path: Path) -> None:
    (tmp_path / "fra.txt").write_bytes(TABBED.encode())
    found = pairs(tmp_path / "fra.txt")
    check(found)
    assert found.languages == ("en", "fra")


def test_tabbed_zip(tmp_path: Path) -> None:
    (tmp_path / "fra-eng.zip").write_bytes(zipped(_about__txt="about", fra__txt=TABBED))
    found = pairs(str(tmp_path / "fra-eng.zip"))
    check(found)
    assert found.languages == ("en", "fra")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_parallel_files(tmp_path: Path, ending: str) -> None:
    pack = gzip.compress if ending else bytes
    (tmp_path / f"train.de{ending}").write_bytes(pack(b"Hallo\nWelt\n"))
    (tmp_path / f"train.en{ending}").write_bytes(pack(b"Hello\nworld\n"))
    found = pairs(tmp_path)
    assert found == TextPairs(("Hello", "world"), ("Hallo", "Welt"), ("en", "de"))


def test_content_round_trip() -> None:
    found = TextPairs(("a é", "b"), ("c\u2028", "d"), ("en", "fr"))
    assert TextPairs.of(found.content()) == found


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no sentences"),
        (b"Go.\tVa !\nHi.\n", "line 2 is not a sentence, a tab and its translation: 'Hi.'"),
        (b"Go.\t \n", "line 1 is not a sentence"),
        (b"Go.\tVa \xff\n", "not a text file in UTF-8"),
    ],
)
def test_bad_tabbed_file(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "fra.txt").write_bytes(data)
    text = says(lambda: pairs(tmp_path / "fra.txt"))
    assert text.startswith(str(tmp_path / "fra.txt"))
    assert message in text


def test_zip_with_two_texts(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(zipped(a__txt=TABBED, b__txt=TABBED))
    assert "is needed, found a.txt, b.txt" in says(lambda: pairs(tmp_path / "x.zip"))


def test_zip_with_climbing_name(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("../../fra.txt", TABBED)
    check(tabbed_zip(out, "evil.zip", ("en", "fr")))
    assert not list(tmp_path.rglob("fra.txt"))


def test_damaged_zip(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(zipped(a__txt=TABBED)[:-30])
    assert "x.zip: truncated or damaged archive" in says(lambda: pairs(tmp_path / "x.zip"))


def test_bad_parallel_files(tmp_path: Path) -> None:
    assert "two files such as train.en and train.de are needed, found none" in says(
        lambda: pairs(tmp_path)
    )
    (tmp_path / "train.en").write_text("a\nb\n")
    assert "found train.en" in says(lambda: pairs(tmp_path))
    (tmp_path / "train.de").write_text("a\n")
    assert "train.en has 2 lines, train.de has 1" in says(lambda: pairs(tmp_path))
    (tmp_path / "train.de").write_text("a\n\n")
    assert "train.de: line 2 is empty" in says(lambda: pairs(tmp_path))
    (tmp_path / "train.de").unlink()
    (tmp_path / "train.de.gz").write_bytes(gzip.compress(b"a\nb\n")[:-6])
    assert "train.de.gz: truncated or damaged file" in says(lambda: pairs(tmp_path))


def test_unknown_source(tmp_path: Path) -> None:
    assert "no such data: 'en-fn'; did you mean 'en-fr'?" in says(lambda: pairs("en-fn"))
    (tmp_path / "x.csv").write_text("a,b")
    assert "x.csv: not a file of sentence pairs; legal are" in says(
        lambda: pairs(tmp_path / "x.csv")
    )
