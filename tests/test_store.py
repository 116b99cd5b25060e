from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from exhume.contract import ExhumeError, Key, Layout, Records
from exhume.store import FolderStore, NullStore, address, describe, digest, write_atomically


@dataclass(frozen=True)
class Recipe:
    rate: float
    widths: tuple[int, ...] = (1, 2)


ADDRESS = "a" * 64


def test_a_folder_store_returns_what_was_saved(tmp_path):
    store = FolderStore(tmp_path / "shards")
    tensors = {"x": torch.randn(3, 2), "y": torch.arange(4)}
    assert store.load(ADDRESS) is None
    store.save(ADDRESS, tensors)
    loaded = store.load(ADDRESS)
    assert loaded is not None
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert (tmp_path / "shards").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_shard_counts_as_not_there(tmp_path, damage):
    store = FolderStore(tmp_path)
    store.save(ADDRESS, {"x": torch.randn(100)})
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        content = content[:-7]
    elif damage == "empty":
        content = bytearray()
    else:
        content[-20] ^= 1
    path.write_bytes(content)
    assert store.load(ADDRESS) is None


def test_a_null_store_keeps_nothing():
    NullStore().save(ADDRESS, {"x": torch.zeros(1)})
    assert NullStore().load(ADDRESS) is None


def test_an_address_depends_on_everything():
    key = Key.from_seed(0)
    base = ("fit", Recipe(0.1), ("in",), key, 0)
    variants = [
        base,
        ("fit2", *base[1:]),
        ("fit", Recipe(0.2), ("in",), key, 0),
        ("fit", Recipe(0.1, (1,)), ("in",), key, 0),
        ("fit", Recipe(0.1), ("out",), key, 0),
        ("fit", Recipe(0.1), ("in",), key.fold(1), 0),
        ("fit", Recipe(0.1), ("in",), key, 1),
    ]
    assert len({address(*variant) for variant in variants}) == len(variants)
    assert address(*base) == address(*base)


def test_a_digest_sees_values_shape_and_type():
    x = torch.zeros(4)
    others = [torch.zeros(2, 2), torch.zeros(4, dtype=torch.float64), torch.tensor([0.0, 0, 0, 1])]
    assert digest(x) == digest(torch.zeros(4))
    assert len({digest(x), *(digest(o) for o in others)}) == 4
    assert digest(x[::2]) == digest(torch.zeros(2))
    records = Records(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), ("a",))
    assert digest(records) != digest(records.inputs)


def test_describe_refuses_what_has_no_name():
    assert describe(Layout(("w",), ((2,),))) == [["w", [2]]]
    with pytest.raises(TypeError, match="cannot describe Tensor"):
        describe(torch.zeros(1))


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ExhumeError, match="cannot write .*file: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
