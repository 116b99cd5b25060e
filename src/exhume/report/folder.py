"""The run folder: settings, environment, result, tensors and shards of one run, for its owner's eyes only."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from exhume.contract import ExhumeError
from exhume.scale import place
from exhume.store import FolderStore, write_atomically

__all__ = ["RunFolder", "environment"]


MARKER = ".exhume-run"


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @staticmethod
    def create(path: Path) -> RunFolder:
        """Make the folder, or take up an earlier run in it; only its owner can read it.

        A folder that holds anything else is left as it is.
        """
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            ours = (path / MARKER).exists()
            if not ours and any(path.iterdir()):
                raise ExhumeError(
                    f"cannot use {path} as run folder: it holds other files; choose a new or empty one"
                )
            path.chmod(0o700)
        except OSError as error:
            raise ExhumeError(
                f"cannot use {path} as run folder: {error.strerror or error}"
            ) from error
        if not os.access(path, os.W_OK):
            raise ExhumeError(f"cannot use {path} as run folder: it is read-only")
        if not ours:
            write_atomically(path / MARKER, b"A run folder of exhume. It holds private records.\n")
        return RunFolder(path)

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    def has_work(self) -> bool:
        """Whether a run got as far as leaving anything worth keeping."""
        return (self.path / "result.json").exists() or any(self.path.glob("shards/*.safetensors"))

    def store(self) -> FolderStore:
        return FolderStore(self.path / "shards")

    def write_config(self, text: str) -> None:
        write_atomically(self.config, text.encode())

    def write_text(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
        write_atomically(self.path / name, f"{text}\n".encode())

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        write_atomically(self.path / name, save(plain))


def environment() -> dict[str, str | int]:
    """Where a run took place: enough to know which bits can be expected again."""
    return {
        "exhume": version("exhume"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        **place(),
    }


def _cpu() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
