"""Few records, so that line-ups take a moment; an audit of weights that several files look at."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import numpy as np
import pytest

import exhume
from exhume.auditing import controls
from exhume.core.contract import Key
from exhume.score.lineup import Lineup


@pytest.fixture(scope="session")
def few_records(tmp_path_factory, make_mixtures) -> str:
    """A file of 240 images of three classes that shadow models tell a lot about."""
    records = make_mixtures(240, (1, 8, 8), 3, Key.from_seed(0))
    path = tmp_path_factory.mktemp("records") / "few.npz"
    np.savez(path, x=records.inputs.numpy(), y=records.labels.numpy())
    return str(path)


@pytest.fixture(scope="session")
def small(few_records) -> dict[str, Any]:
    """A brief: weights that leak every target."""
    sizes = {"fixed": 30, "targets": 12, "shadows": 60, "public": 20, "test": 30}
    return {
        "data": {"source": few_records, **sizes},
        "victim": {"steps": 30, "hidden": [8]},
        "machine": {"threads": 1, "chunk": 16},
    }


@pytest.fixture(scope="session")
def trained(small, tmp_path_factory) -> exhume.auditing.Audit:
    """The audit of these weights, with a page that can be shared. Nobody changes its folder."""
    return exhume.audit(small, tmp_path_factory.mktemp("trained") / "run", redact=True)


@pytest.fixture
def canned(monkeypatch) -> None:
    """A rung's case finds its line-ups itself, by the names of the attacks."""

    def line_ups(case, rows, store, progress, *, tests):
        return dict(case.find(tuple(row.id for row in rows)))

    monkeypatch.setattr(controls, "line_ups", line_ups)


@pytest.fixture
def fewer_draws(monkeypatch) -> None:
    """Line-ups of 999 permutations, where hundreds of them are made."""
    monkeypatch.setattr(Lineup, "score", partialmethod(Lineup.score, draws=999))
