"""Small made-up run folders, and a browser where there is one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

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

    def make(
        result: dict[str, Any],
        tensors: dict[str, Any] | None = None,
        *,
        config: str = 'seed = 0\n[data]\npath = "/home/jane/my data/mnist.npz"\n',
        environment: dict[str, Any] | None = None,
    ) -> Path:
        run = tmp_path / "run"
        run.mkdir()
        (run / "result.json").write_text(json.dumps(result))
        (run / "config.toml").write_text(config)
        (run / "environment.json").write_text(json.dumps(environment or {"torch": "2.13.0"}))
        if tensors:
            save_file(tensors, run / "closed-form.safetensors")
        return run

    return make


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on the PATH (Debian's package is called chromium)")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield opened
        opened.close()
