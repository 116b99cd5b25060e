"""The map of the package, enforced: who may import whom, and who may name a Secret."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "exhume"
ORDER = (
    "core",
    "settings",
    "store",
    "models",
    "score",
    "train",
    "bounds",
    "defences",
    "readers",
    "victims",
    "attacks",
    "report",
    "choices",
    "auditing",
    "studies",
    "guard",
    "bench",
    "integrations",
    "cli",
)
NEVER = {"attacks": {"readers", "victims", "score"}, "score": {"attacks"}}
MAY_NAME_SECRET = {"core", "victims", "score"}
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


def imported_packages(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.split(".")[0] for name in names}


def names_in(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {
        alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }


FILES = [path for path in sorted(SRC.rglob("*.py")) if room(path) not in OUTSIDE]
TREES = [(path, room(path), ast.parse(path.read_text())) for path in FILES]


def test_only_scale_knows_ray():
    knowing = {here for _, here, tree in TREES if {"ray"} & imported_packages(tree)}
    named = {path.name for path in FILES if 'optional("ray"' in path.read_text()}
    assert (knowing, named) == (
        set(),
        {"scale.py"},
    )  # and it imports late, so that Ray may be absent


def test_every_room_is_on_the_map():
    assert {room(path) for path in FILES} == set(ORDER)


def test_the_map_names_every_room_and_the_files_of_the_engine():
    """A file of the engine that goes leaves the map, too."""
    drawn = (SRC.parents[1] / "CONTRIBUTING.md").read_text().split("```")[1]
    assert [name for name in ORDER if f"\n  {name}" not in drawn] == []
    engine = {path.name for path in (SRC / "auditing").glob("*.py")} - {"__init__.py"}
    begin, end = drawn.index("\n  auditing/"), drawn.index("\n  studies/")
    assert set(re.findall(r"\w+\.py", drawn[begin:end])) == engine
    kinds = {path.stem.partition("_")[0] for path in (SRC / "auditing" / "kinds").glob("[a-z]*.py")}
    assert [kind for kind in kinds if kind not in drawn[begin:end].split("kinds/")[1]] == []


def test_imports_point_up():
    wrong = [
        f"{path.relative_to(SRC)} imports {other}"
        for path, here, tree in TREES
        for other in imported_rooms(tree)
        if ORDER.index(other) > ORDER.index(here) or other in NEVER.get(here, set())
    ]
    assert not wrong


def test_only_victims_and_scoring_name_a_secret():
    wrong = [
        str(path.relative_to(SRC))
        for path, here, tree in TREES
        if here not in MAY_NAME_SECRET and "Secret" in names_in(tree)
    ]
    assert not wrong


def test_files_and_functions_can_be_read():
    wrong = [
        f"{path.relative_to(SRC)}: {lines} lines"
        for path in FILES
        if (lines := len(path.read_text().splitlines())) > 600
    ]
    wrong += [
        f"{path.relative_to(SRC)}: {node.name}, {lines} lines"
        for path, _, tree in TREES
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := node.end_lineno - node.lineno + 1) > 100
    ]
    assert not wrong


def test_the_engine_reads_top_to_bottom_in_one_file():
    assert len((SRC / "auditing" / "run.py").read_text().splitlines()) <= 500
