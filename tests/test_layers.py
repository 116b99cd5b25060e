"""The map of the package, enforced: who may import whom, and who may name a Secret."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "exhume"
ORDER = (
    "errors",
    "notation",
    "settings",
    "records",
    "contract",
    "typed_json",
    "evidence",
    "results",
    "naming",
    "store",
    "workers",
    "scale",
    "data",
    "models",
    "score",
    "train",
    "bounds",
    "defences",
    "victims",
    "attacks",
    "report",
    "bench",
    "choices",
    "auditing",
    "studies",
    "integrations",
    "cli",
)
NEVER = {"attacks": {"data", "victims", "score"}, "score": {"attacks"}}
MAY_NAME_SECRET = {"contract", "victims", "score"}
OUTSIDE = {"__init__", "__main__"}


def room(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            assert node.level == 0, "relative import"
    return {name.split(".")[1] for name in names if name.startswith("exhume.")}


def imported_packages(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.split(".")[0] for name in names}


FILES = [path for path in sorted(SRC.rglob("*.py")) if room(path) not in OUTSIDE]


def test_only_scale_knows_ray():
    knowing = {room(path) for path in FILES if {"ray"} & imported_packages(path)}
    named = {room(path) for path in FILES if 'import_module("ray")' in path.read_text()}
    assert (knowing, named) == (set(), {"scale"})  # and it imports late, so that Ray may be absent


def test_every_room_is_on_the_map():
    assert {room(path) for path in FILES} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_up(path):
    here = room(path)
    for other in imported_rooms(ast.parse(path.read_text())):
        assert ORDER.index(other) <= ORDER.index(here), f"{here} must not import {other}"
        assert other not in NEVER.get(here, set()), f"{here} must never import {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_only_victims_and_scoring_name_a_secret(path):
    if room(path) in MAY_NAME_SECRET:
        return
    tree = ast.parse(path.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {
        alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names
    }
    assert "Secret" not in names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_files_and_functions_can_be_read(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 420
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 100, node.name
