"""`make` installs only what has a hash in lock/, which is what pyproject.toml and constraints.txt ask for."""

from __future__ import annotations

import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
RELOCK = runpy.run_path(str(ROOT / "lock" / "relock.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
CORE = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
LAYERS = {  # what an environment is installed from
    "demo": ("demo", "torch"),
    "on a CPU": ("demo", "torch-cpu"),
    "test": ("demo", "torch", "build", "test"),
    "serve": ("demo", "torch", "build", "test", "serve"),
    "docs": ("docs",),
}
ASKED = {
    "demo": CORE,
    "on a CPU": CORE,
    "test": [*CORE, *RELOCK["flat"](EXTRAS, "test")],
    "serve": RELOCK["flat"](EXTRAS, "serve"),
    "docs": EXTRAS["docs"],
}


def locked(environment: str) -> dict[str, set[str]]:
    """Versions by name."""
    found: dict[str, set[str]] = {}
    for layer in LAYERS[environment]:
        for line in RELOCK["read"](ROOT / "lock" / f"{layer}.txt"):
            asked = Requirement(line)
            (pin,) = asked.specifier
            assert pin.operator == "==", line
            found.setdefault(canonicalize_name(asked.name), set()).add(pin.version)
    return found


@pytest.mark.parametrize("layer", sorted({layer for layers in LAYERS.values() for layer in layers}))
def test_every_line_has_hashes_and_no_source(layer):
    path = ROOT / "lock" / f"{layer}.txt"
    lines = RELOCK["read"](path)
    assert lines
    for line, hashes in lines.items():
        assert hashes, line
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), line
    assert "/" not in path.read_text().replace("`make lock`", "")  # neither an address nor a path
    assert not re.search(r"(index|find-links|trusted)", path.read_text())


@pytest.mark.parametrize("environment", LAYERS)
def test_what_is_asked_for_is_locked(environment):
    versions = locked(environment)
    for line in ASKED[environment]:
        asked = Requirement(line)
        found = versions[canonicalize_name(asked.name)]
        assert all(asked.specifier.contains(one, prereleases=True) for one in found), line


@pytest.mark.parametrize("environment", LAYERS)
def test_the_lock_keeps_to_the_constraints(environment):
    versions = locked(environment)
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in constraints if line and not line.startswith("#")]
    met = [pin for pin in pins if canonicalize_name(pin.name) in versions]
    assert met
    for pin in met:
        found = versions[canonicalize_name(pin.name)]
        assert all(pin.specifier.contains(one, prereleases=True) for one in found), (
            f"{pin}: `make lock`"
        )


def commands(*more: str) -> tuple[list[str], str]:
    """Installing commands of `make`, and what it warns of."""
    make = ["make", "--dry-run", "--always-make", "setup", "demo", "docs", *more]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "pip install" in line], done.stderr


def test_make_installs_nothing_without_a_hash():
    installs, warned = commands()
    own = [line for line in installs if line.endswith("--no-deps --no-build-isolation -e .")]
    others = [line for line in installs if line not in own]
    assert len(own) == 1
    assert len(others) == 6
    assert all(
        "--require-hashes --no-deps --no-build-isolation -r lock/" in line for line in others
    ), others
    assert "NOT checked" not in warned


def test_make_without_hashes_says_so():
    installs, warned = commands("HASHES=no")
    assert not any("lock/" in line for line in installs)
    assert "NOT checked" in warned
