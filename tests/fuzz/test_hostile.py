"""Hostile and hopeless input to `exhume audit`: one sentence, exit code 2, and nothing half-written."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from exhume.cli import app

SMALL = ["--fixed", "20", "--targets", "5", "--shadows", "30", "--steps", "5", "--hidden", "4"]
SOUND = {"1.weight": torch.ones(5, 16), "1.bias": torch.ones(5), "3.weight": torch.ones(3, 5)}


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def images(folder: Path, count: int = 60, side: int = 8) -> Path:
    for index in range(count):
        place = folder / f"class{index % 2}"
        place.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(index).integers(0, 256, (side, side), dtype=np.uint8)
        Image.fromarray(noise).save(place / f"{index}.png")
    return folder


def table(folder: Path, labels: np.ndarray) -> Path:
    x = np.random.default_rng(0).random((len(labels), 16), dtype=np.float32)
    np.savez(folder / "data.npz", x=x, y=labels)
    return folder / "data.npz"


def checkpoint(tmp_path: Path, file: Path) -> list[str]:
    config = tmp_path / "audit.toml"
    config.write_text(f'[checkpoint]\nfile = "{file}"\nshape = [1, 4, 4]\n')
    return [str(config)]


def bomb(tmp_path: Path) -> list[str]:
    torch.save(
        {"1.weight": torch.ones(2, 2), "x": Bomb(tmp_path / "exploded")}, tmp_path / "net.pt"
    )
    return checkpoint(tmp_path, tmp_path / "net.pt")


def nan_weights(tmp_path: Path) -> list[str]:
    save_file({**SOUND, "1.bias": torch.full((5,), torch.nan)}, tmp_path / "net.safetensors")
    return checkpoint(tmp_path, tmp_path / "net.safetensors")


def ten_gigabytes(tmp_path: Path) -> list[str]:
    path = tmp_path / "net.safetensors"
    size = 10 << 30
    header = f'{{"w":{{"dtype":"U8","shape":[{size}],"data_offsets":[0,{size}]}}}}'.encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + size)  # sparse
    return checkpoint(tmp_path, path)


def empty_class(tmp_path: Path) -> list[str]:
    images(tmp_path / "data")
    (tmp_path / "data" / "nobody").mkdir()
    return ["--data", str(tmp_path / "data"), *SMALL]


def one_class(tmp_path: Path) -> list[str]:
    return ["--data", str(table(tmp_path, np.zeros(80, dtype=np.int64))), *SMALL]


def mixed_sizes(tmp_path: Path) -> list[str]:
    images(tmp_path / "data")
    images(tmp_path / "data", count=1, side=9)
    return ["--data", str(tmp_path / "data"), *SMALL]


def negative_labels(tmp_path: Path) -> list[str]:
    return ["--data", str(table(tmp_path, np.arange(80) % 3 - 1)), *SMALL]


def fractional_labels(tmp_path: Path) -> list[str]:
    return ["--data", str(table(tmp_path, np.arange(80) / 7)), *SMALL]


def failing_forward(tmp_path: Path) -> list[str]:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Mine(nn.Linear):\n"
        "    def forward(self, x): raise KeyError('weights')\n"
        "def net(): return Mine(16, 3)\n"
    )
    records = table(tmp_path, np.arange(80) % 3)
    return ["--data", str(records), "--network", f"{tmp_path / 'mine.py'}:net", *SMALL[:-2]]


def few_outputs(tmp_path: Path) -> list[str]:
    (tmp_path / "mine.py").write_text("from torch import nn\ndef net(): return nn.Linear(16, 2)\n")
    records = table(tmp_path, np.arange(80) % 3)
    return ["--data", str(records), "--network", f"{tmp_path / 'mine.py'}:net", *SMALL[:-2]]


def nul_in_a_path(tmp_path: Path) -> list[str]:
    return ["--data", "a\0b", *SMALL]


def endless_path(tmp_path: Path) -> list[str]:
    return ["--data", "x" * 5000, *SMALL]


REFUSED = {
    empty_class: "nobody: this class folder holds no images",
    bomb: "needs Python code to be loaded",
    nan_weights: "1.bias holds NaN or infinite values",
    ten_gigabytes: "need 21.5 GB of memory",
    one_class: "1 class among the labels",
    mixed_sizes: "images of different sizes",
    negative_labels: "y holds the negative label -1",
    fractional_labels: "labels that are not whole numbers",
    failing_forward: "KeyError",
    few_outputs: "returns 2 logits a record, the data has 3 classes",
    nul_in_a_path: "no such data",
    endless_path: "no such data: 'xxx",
}


def ran(arguments: list[str], out: Path):
    return CliRunner().invoke(app, ["audit", *arguments, "--out", str(out)])


def sentence_of(result) -> str:
    """What was said at the end; a traceback would be a defect."""
    assert "Traceback" not in result.output
    assert "defect" not in result.output
    said = [line for line in result.output.splitlines() if line.startswith("exhume: ")]
    assert len(said[-1]) < 1000
    return said[-1].removeprefix("exhume: ")


def left_over(out: Path) -> list[str]:
    """Files that a finished run would not have, or that look finished although nothing was."""
    found = [path.name for path in out.rglob("*")] if out.exists() else []
    return [n for n in found if n.endswith(".part") or n in ("result.json", "report.html")]


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_refused_in_one_sentence(make, tmp_path, monkeypatch):
    monkeypatch.setattr("exhume.store.memory.memory_free", lambda: 16e9)
    result = ran(make(tmp_path), tmp_path / "out")
    assert result.exit_code == 2
    assert REFUSED[make] in sentence_of(result)
    assert left_over(tmp_path / "out") == []
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("place", ["file/run", "/proc/exhume-run", "/dev/null/run"])
def test_an_output_folder_that_cannot_be(place, tmp_path):
    (tmp_path / "file").write_text("here")
    result = ran(["--data", "digits", *SMALL], tmp_path / place)
    assert result.exit_code == 2
    assert "cannot use" in sentence_of(result)
    assert (tmp_path / "file").read_text() == "here"


def test_a_read_only_output_folder(tmp_path, monkeypatch):
    """Root may write anywhere, so the answer of the system is made up."""
    (tmp_path / "out").mkdir()
    allowed = os.access
    monkeypatch.setattr(
        os, "access", lambda p, mode: False if mode == os.W_OK else allowed(p, mode)
    )
    result = ran(["--data", "digits", *SMALL], tmp_path / "out")
    assert result.exit_code == 2
    assert "it is read-only" in sentence_of(result)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("writes", [0, 1, 3, 6])
def test_a_full_disk(writes, tmp_path, monkeypatch):
    """After so many files nothing more can be written."""
    done, real = [], os.fsync

    def fsync(descriptor: int) -> None:
        if len(done) >= writes:
            raise OSError(28, "No space left on device")
        done.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    result = ran(["--data", "digits", *SMALL], tmp_path / "out")
    assert result.exit_code == 2
    assert "No space left on device" in sentence_of(result)
    assert left_over(tmp_path / "out") == []
