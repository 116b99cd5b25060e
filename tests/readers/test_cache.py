from __future__ import annotations

from pathlib import Path

import pytest
import torch
from planted_data import says
from safetensors.torch import save_file

from exhume.readers.images import Pixels
from exhume.store import cache


def planted() -> Pixels:
    values = torch.arange(2 * 12, dtype=torch.uint8).reshape(2, 3, 2, 2)
    return Pixels(values, torch.tensor([1, 0]), ("a", "é"), white=23)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "set.safetensors"
    cache.write(path, planted().content())
    found = Pixels.of(cache.read(path, planted().content().digest()))
    assert torch.equal(found.values, planted().values)
    assert torch.equal(found.labels, planted().labels)
    assert (found.classes, found.white) == (("a", "é"), 23)
    assert found.records().inputs.max() == 1
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_digest_sees_every_part() -> None:
    base = planted()
    others = [
        Pixels(base.values.flip(0), base.labels, base.classes, 23),
        Pixels(base.values, base.labels.flip(0), base.classes, 23),
        Pixels(base.values, base.labels, ("a", "b"), 23),
        Pixels(base.values, base.labels, base.classes, 24),
        Pixels(base.values.reshape(2, 3, 4, 1), base.labels, base.classes, 23),
    ]
    digests = {pixels.content().digest() for pixels in [base, *others]}
    assert len(digests) == 6


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("place", [0, 9, -1, -20])
def test_changed_byte_is_refused(tmp_path: Path, pinned: bool, place: int) -> None:
    path = tmp_path / "set.safetensors"
    cache.write(path, planted().content())
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    text = says(lambda: cache.read(path, planted().content().digest() if pinned else None))
    assert text.startswith(f"{path}: this cache file is damaged or was altered")
    assert text.endswith("delete it, or replace it with `exhume data fetch set`")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "set.safetensors"
    cache.write(path, planted().content())
    path.write_bytes(path.read_bytes()[:kept])
    assert "damaged or was altered" in says(lambda: cache.read(path, None))


def test_consistent_forgery_is_refused_where_a_digest_is_pinned(tmp_path: Path) -> None:
    path = tmp_path / "set.safetensors"
    base = planted()
    forged = Pixels(base.values + 1, base.labels, base.classes, base.white)
    cache.write(path, forged.content())
    assert "its content differs" in says(lambda: cache.read(path, base.content().digest()))


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.safetensors"
    save_file({"weights": torch.zeros(2)}, path)
    assert "its format is not 'exhume data 1'" in says(lambda: cache.read(path, None))


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["exhume.store.cache.save", "os.fsync"])
@pytest.mark.parametrize("before", [True, False])
def test_failed_write_leaves_what_was_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    step: str,
    before: bool,
) -> None:
    path = tmp_path / "set.safetensors"
    if before:
        path.write_bytes(b"as it was")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(step, fail)
    if isinstance(error, OSError):
        text = says(lambda: cache.write(path, planted().content()))
        assert text.startswith(f"{path}: cannot be written (disk full); set EXHUME_CACHE")
    else:
        with pytest.raises(KeyboardInterrupt):
            cache.write(path, planted().content())
    assert [p.name for p in tmp_path.iterdir()] == ([path.name] if before else [])
    assert not before or path.read_bytes() == b"as it was"


def test_cache_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "set.safetensors"
    assert "cannot be written" in says(lambda: cache.write(path, planted().content()))


def test_which_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXHUME_CACHE", "/own")
    assert cache.folder() == Path("/own")
    monkeypatch.delenv("EXHUME_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.folder() == Path("/xdg/exhume")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache" / "exhume"
