"""Few strangers, so that line-ups take a moment."""

from __future__ import annotations

import numpy as np
import pytest

from exhume import readers


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory) -> str:
    """A file of the first 200 digits: the same records at the same places."""
    digits = readers.load("digits")[:200]
    path = tmp_path_factory.mktemp("digits") / "few.npz"
    np.savez(path, x=digits.inputs.numpy(), y=digits.labels.numpy())
    return str(path)
