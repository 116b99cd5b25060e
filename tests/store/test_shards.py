from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from exhume.core.contract import ExhumeError, Key, Layout, Records, Shard
from exhume.store.shards import (
    FolderStore,
    NullStore,
    address,
    cached,
    describe,
    digest,
    leftover_of,
    read_shard,
    remove_leftovers,
    write_atomically,
    write_shard,
)


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


def test_only_its_owner_reads_what_is_stored(tmp_path):
    folder = tmp_path / "a" / "b"
    FolderStore(folder).save(ADDRESS, {"x": torch.zeros(1)})
    assert (folder / f"{ADDRESS}.safetensors").stat().st_mode & 0o777 == 0o600
    write_atomically(tmp_path / "private", b"")
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600
    write_atomically(tmp_path / "public", b"", mode=0o640)
    assert (tmp_path / "public").stat().st_mode & 0o777 == 0o640
    FolderStore(folder)  # once more
    (tmp_path / "file").write_text("")
    with pytest.raises(ExhumeError, match="cannot create .*file: File exists"):
        FolderStore(tmp_path / "file")
    with pytest.raises(ExhumeError, match="cannot write .*none/file: No such file"):
        write_atomically(tmp_path / "none" / "file", b"")


def test_a_shard_can_be_read_without_a_store(tmp_path):
    path = tmp_path / "x.safetensors"
    write_shard(path, Shard({"b": torch.arange(3), "a": torch.ones(2)}, {"why": "so"}))
    found = read_shard(path)
    assert (list(found), found.notes) == (["b", "a"], {"why": "so"})
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0  # numbers are aligned
    about = json.loads(content[8 : 8 + size])["__metadata__"]
    assert list(about) == ["digest", "notes", "order"]
    write_shard(path, {"a": torch.ones(2), "b": torch.arange(3)})
    with safe_open(path, framework="pt") as file:
        assert list(file.metadata()) == ["digest"]  # nothing to say of their order
    path.write_bytes(b"nothing")
    with pytest.raises(SafetensorError):
        read_shard(path)


def test_what_is_not_there_is_made_and_kept(tmp_path):
    store, made = FolderStore(tmp_path), []

    def make():
        made.append(1)
        return {"x": torch.arange(3)}

    for _ in range(2):
        assert cached(store, ADDRESS, make)["x"].tolist() == [0, 1, 2]
    assert made == [1]
    noted = cached(store, "b" * 64, lambda: Shard({}, {"why": "so"}))
    assert noted.notes == store.load("b" * 64).notes == {"why": "so"}
    assert cached(NullStore(), ADDRESS, make)["x"].tolist() == [0, 1, 2]
    assert made == [1, 1]


def test_a_shard_keeps_notes_beside_its_tensors(tmp_path):
    store = FolderStore(tmp_path)
    notes = {
        "why": "übermäßig\n\0",
        "rate": 0.1,
        "none": None,
        "words": {"1": ["a", "b"]},
        "inf": inf,
    }
    store.save(ADDRESS, Shard({"x": torch.arange(3)}, notes))
    loaded = store.load(ADDRESS)
    assert loaded is not None
    assert loaded.notes == notes
    assert loaded["x"].tolist() == [0, 1, 2]
    store.save(ADDRESS, Shard({}, {"only": "notes"}))
    loaded = store.load(ADDRESS)
    assert loaded is not None
    assert (dict(loaded), loaded.notes) == ({}, {"only": "notes"})
    store.save(ADDRESS, {"x": torch.zeros(1)})
    loaded = store.load(ADDRESS)
    assert loaded is not None
    assert loaded.notes == {}


def test_tensors_come_back_in_the_order_in_which_they_were_made(tmp_path):
    """Otherwise a resumed study lists its numbers in another order than one that was never stopped."""
    store = FolderStore(tmp_path)
    for names in (["b", "a", "c"], ["a", "b", "c"], ["c", "ü", "b"]):
        store.save(ADDRESS, {name: torch.zeros(1, dtype=torch.float64) for name in names})
        assert list(store.load(ADDRESS)) == names


@pytest.mark.parametrize("order", ["3", '["a"]', "[[]]", "{", '["a", "a"]'])
def test_an_order_that_cannot_be_is_passed_over(tmp_path, order):
    store, tensors = FolderStore(tmp_path), {"b": torch.zeros(1), "a": torch.zeros(1)}
    store.save(ADDRESS, tensors)
    (path,) = tmp_path.iterdir()
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    save_file(tensors, path, about | {"order": order})
    loaded = store.load(ADDRESS)
    assert loaded is None or list(loaded) == ["a", "b"]


def test_the_same_shard_is_the_same_bytes(tmp_path):
    """safetensors writes what is said about a file in any order."""
    shard = Shard({"b": torch.arange(3), "a": torch.rand(2)}, {"why": 'übermäßig\n"', "n": 1})
    found = set()
    for _ in range(30):
        FolderStore(tmp_path).save(ADDRESS, shard)
        found.add((tmp_path / f"{ADDRESS}.safetensors").read_bytes())
    assert len(found) == 1
    assert FolderStore(tmp_path).load(ADDRESS).notes == shard.notes


def test_notes_that_json_cannot_say_are_refused(tmp_path):
    with pytest.raises(TypeError, match="not JSON serializable"):
        FolderStore(tmp_path).save(ADDRESS, Shard({}, {"x": torch.zeros(1)}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        (b"reason", b"raison"),
        (b"reason", b'rea"on'),
        (b'"notes"', b'"motes"'),
        (b"digest", b"digist"),
    ],
)
def test_a_shard_with_damaged_notes_counts_as_not_there(tmp_path, was, is_now):
    store = FolderStore(tmp_path)
    store.save(ADDRESS, Shard({"x": torch.randn(10)}, {"why": "a reason"}))
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    assert content.count(was) == 1
    path.write_bytes(content.replace(was, is_now))
    assert store.load(ADDRESS) is None


def test_a_shard_of_before_there_were_notes_still_loads(tmp_path):
    store, x = FolderStore(tmp_path), torch.arange(5.0)
    named = hashlib.sha256(f"x:{digest(x)};".encode()).hexdigest()
    save_file({"x": x}, tmp_path / f"{ADDRESS}.safetensors", {"digest": named})
    loaded = store.load(ADDRESS)
    assert loaded is not None
    assert torch.equal(loaded["x"], x)
    assert loaded.notes == {}


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
    assert describe(Recipe(0.5)) == {"type": "Recipe", "rate": 0.5, "widths": [1, 2]}
    assert describe({1: [True, None, "x"]}) == {"1": [True, None, "x"]}

    @dataclass(frozen=True)
    class Quiet:
        value: int
        progress: str = field(default="", compare=False)

    assert describe(Quiet(1, "loud")) == {"type": "Quiet", "value": 1}
    with pytest.raises(TypeError, match="cannot describe type"):
        describe(Recipe)
    names = [address("f", {"a": 1, "b": 2}, (), Key.from_seed(0), 0)]
    names += [address("f", {"b": 2, "a": 1}, (), Key.from_seed(0), 0)]
    assert names[0] == names[1]
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


def part_of(path: Path, token: str = "0123abcd") -> Path:
    partial = path.with_name(f".{path.name}.{token}.part")
    partial.write_bytes(b"half")
    return partial


def test_what_a_killed_write_left_is_removed_by_the_next(tmp_path):
    left, other = part_of(tmp_path / "file"), part_of(tmp_path / "another")
    mine = tmp_path / ".file.part"  # not of the form
    mine.write_text("mine")
    write_atomically(tmp_path / "file", b"new")
    assert not left.exists()
    assert other.exists()
    assert mine.exists()
    remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".file.part", "file"]
    assert leftover_of(mine) == leftover_of(tmp_path / "x.file.0123abcd.part") == ""
    assert leftover_of(left) == "file"


def test_leftovers_in_folders_below_are_removed_where_that_is_asked(tmp_path):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    left = [part_of(folder / "file") for folder in (tmp_path, below, tmp_path / "elsewhere")]
    other = part_of(below / "other")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "elsewhere")
    odd = tmp_path / ".folder.0123abcd.part"
    odd.mkdir()
    remove_leftovers(tmp_path / "a")
    assert all(path.exists() for path in left)
    remove_leftovers(tmp_path / "a", of="file", below=True)
    assert [path.exists() for path in (*left, other)] == [True, False, True, True]
    remove_leftovers(tmp_path, below=True)
    assert not any(path.exists() for path in (*left, other))
    assert odd.is_dir()
    remove_leftovers(tmp_path / "none")  # not there: nothing to do


def test_a_link_in_place_of_a_leftover_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    link = tmp_path / ".file.0123abcd.part"
    link.symlink_to(tmp_path / "mine")
    remove_leftovers(tmp_path)
    assert link.is_symlink()
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_store_begins_without_leftovers(tmp_path):
    left = part_of(tmp_path / f"{ADDRESS}.safetensors")
    FolderStore(tmp_path)
    assert not left.exists()


WRITER = """
import os, sys
from pathlib import Path
from exhume.store.shards import write_atomically
wait = os.fsync
def fsync(descriptor):
    print("writing", flush=True)
    sys.stdin.readline()
    wait(descriptor)
os.fsync = fsync
write_atomically(Path(sys.argv[1]), b"theirs")
"""


def test_a_write_that_is_under_way_is_left_alone(tmp_path, monkeypatch):
    """A lock is the open file's: another writer of this process meets it like one of another."""
    path, wait = tmp_path / "file", os.fsync
    begun, go_on = threading.Event(), threading.Event()

    def fsync(descriptor):
        if threading.current_thread() is other:
            begun.set()
            go_on.wait(60)
        wait(descriptor)

    other = threading.Thread(target=write_atomically, args=(path, b"theirs"))
    monkeypatch.setattr(os, "fsync", fsync)
    other.start()
    assert begun.wait(60)
    remove_leftovers(tmp_path)
    write_atomically(path, b"ours")
    (part,) = tmp_path.glob(".*.part")
    assert leftover_of(part) == "file"
    assert path.read_bytes() == b"ours"
    go_on.set()
    other.join()
    assert path.read_bytes() == b"theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_write_that_is_under_way_elsewhere_is_left_alone(tmp_path):
    path = tmp_path / "file"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    other = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], text=True, **pipes)
    assert other.stdout.readline() == "writing\n"
    remove_leftovers(tmp_path)
    write_atomically(path, b"ours")
    (part,) = tmp_path.glob(".*.part")
    assert leftover_of(part) == "file"
    other.communicate("\n")
    assert other.returncode == 0
    assert path.read_bytes() == b"theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_part_that_was_taken_away_before_it_was_held_is_begun_again(tmp_path, monkeypatch):
    real, made = os.open, []

    def snatched(path, flags, *more):
        descriptor = real(path, flags, *more)
        if flags & os.O_EXCL and not made:
            Path(path).unlink()
            made.append(path)
        return descriptor

    monkeypatch.setattr(os, "open", snatched)
    write_atomically(tmp_path / "file", b"new")
    assert made
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
