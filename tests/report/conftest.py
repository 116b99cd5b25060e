"""Small made-up run folders, and a browser where there is one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for report_runs, in every import mode of pytest

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A run folder: `make_run(result, tensors, config="…", environment={…})`."""
    from report_runs import write_run

    return partial(write_run, tmp_path / "run")


@pytest.fixture(
    scope="module"
)  # while it is open, nothing else in this process can run an event loop
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on the PATH (Debian's package is called chromium)")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield opened
        opened.close()
