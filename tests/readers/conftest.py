"""What every test of `exhume.readers` starts from."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for planted_data, whatever pytest's import mode


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def no_user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the cache of whoever runs it."""
    cache = tmp_path / "user-cache"
    monkeypatch.setenv("EXHUME_CACHE", str(cache))
    return cache
