"""`import exhume`: what it offers, and what its help and the page of all settings say."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import exhume
from exhume.core.results import Result
from exhume.settings.reference import reference_page, sections
from exhume.settings.schema import settings_of

ROOT = Path(__file__).parents[1]


def test_nothing_else_is_offered():
    offered = {"Audit", "__version__", "audit", "audit_fitted", "compare", "plan"}
    assert set(dir(exhume)) == set(exhume.__all__) == offered
    for name in offered:
        assert getattr(exhume, name)


def test_help_lists_every_key_and_every_field():
    said = exhume.audit.__doc__
    for name, kind in sections().items():
        (line,) = [line for line in said.splitlines() if f"[{name}] " in line] if name else ["seed"]
        assert all(key in line for key in settings_of(kind))
    for field in fields(Result):
        assert field.name in said


def test_the_page_of_all_settings_is_up_to_date():
    """`python -m exhume.settings > docs/settings.md` makes it."""
    assert (ROOT / "docs" / "settings.md").read_text() == reference_page()
    made = subprocess.run(
        [sys.executable, "-m", "exhume.settings"], capture_output=True, text=True, check=True
    )
    assert made.stdout == reference_page()


def test_importing_it_does_not_load_torch():
    code = "import sys, exhume, exhume.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
