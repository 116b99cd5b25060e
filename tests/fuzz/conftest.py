"""Makes fuzzing.py importable, and a place where thousands of files are written quickly."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # in every import mode of pytest


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder in memory where the system has such; on a disk each of these files takes milliseconds."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)
