from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planted_data import picture, says

from exhume.readers import load


@pytest.mark.parametrize("given", ["minst", "minst:/some/where"])
def test_unknown_name(given: str) -> None:
    text = says(lambda: load(given))
    assert text.startswith("no such data: 'minst'; did you mean 'mnist'? legal are mnist, cifar10,")
    assert text.endswith("and a path")


def test_nothing_near() -> None:
    assert "no such data: 'xyzzy'; legal are" in says(lambda: load("xyzzy"))


@pytest.mark.parametrize("given", ["./none", "none/at/all", "none.npz", "~/no-such", Path("none")])
def test_missing_path(given: str | Path) -> None:
    assert says(lambda: load(given)).startswith(
        f"no such file or folder: {str(given)!r}; legal are"
    )


@pytest.mark.parametrize("name", ["mnist", "cifar10", "celeba-hq"])
@pytest.mark.parametrize("rest", ["", "/no/such/place"])
def test_missing_copy(name: str, rest: str) -> None:
    assert f"no such file or folder: {rest!r}" in says(lambda: load(f"{name}:{rest}"))


def test_name_goes_before_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "digits" / "1.png", np.zeros((2, 2)))
    monkeypatch.chdir(tmp_path)
    assert len(load("digits")) == 1797
    assert len(load("./digits")) == len(load(Path("digits"))) == 1


def test_sentence_pairs_are_no_records() -> None:
    assert says(lambda: load("en-fr")) == "en-fr: a set of sentence pairs, which `pairs` loads"


def test_unknown_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "x.dat").write_text("1,2")
    assert "x.dat: not a file that can be loaded; legal are a folder" in says(
        lambda: load(tmp_path / "x.dat")
    )


@pytest.mark.parametrize("name", ["digits", "faces", "celeba-hq"])
def test_copy_of_another_kind(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.bin").write_bytes(b"x")
    assert f"not a copy of {name}; " in says(lambda: load(f"{name}:{tmp_path / 'x.bin'}"))


def test_size_only_for_folders(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.eye(2), y=[0, 1])
    for source in ("digits", str(tmp_path / "s.npz")):
        text = says(lambda source=source: load(source, size=8))
        assert text == f"size: 8 given, but {source} has its own; only folders of images resize"


def test_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "Permission denied" in says(lambda: load(tmp_path))
