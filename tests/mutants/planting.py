"""One-line mistakes that a person could make, drawn by seed from the code whose results must be right."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = {  # how many mistakes each gets, and where
    "score": (44, ("score/*.py",)),
    "contract": (10, ("core/contract.py",)),
    "store": (10, ("store/shards.py",)),
    "bounds": (18, ("bounds/*.py",)),
    "judging": (10, ("auditing/judge.py",)),
    "controls": (8, ("auditing/controls.py",)),
    "attacks": (
        22,
        (
            "attacks/informed/closed_form.py",
            "attacks/informed/ridge.py",
            "attacks/informed/glm.py",
            "attacks/gradient/analytic.py",
            "attacks/gradient/moments.py",
            "attacks/gradient/piecewise.py",
            "attacks/gradient/span.py",
            "attacks/margin/stationarity.py",
            "attacks/split/inversion.py",
        ),
    ),
}

COMPARED = {
    ast.Lt: ("<=", ">"),
    ast.LtE: ("<", ">="),
    ast.Gt: (">=", "<"),
    ast.GtE: (">", "<="),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
CALCULATED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Pow: "*"}
TWINS = {"min": "max", "max": "min", "all": "any", "any": "all", "sum": "mean", "mean": "sum"}
TWINS |= {"minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin"}


@dataclass(frozen=True)
class Mutant:
    room: str
    file: str  # below src/exhume
    line: int
    kind: str
    before: str  # the line as it is
    after: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.kind}"


def plant(source: Path, seed: int = 0) -> list[Mutant]:
    """The mutants of a tree: the same seed and the same code give the same ones."""
    planted = []
    for room, (count, patterns) in ROOMS.items():
        files = sorted({path for pattern in patterns for path in source.glob(pattern)})
        possible = [m for path in files for m in mutants_of(room, source, path)]
        random.Random(f"{seed} {room}").shuffle(possible)
        lines: set[tuple[str, int]] = set()
        for mutant in taking_turns(possible):  # one a line, so that no line counts twice
            if (mutant.file, mutant.line) not in lines and len(lines) < count:
                lines.add((mutant.file, mutant.line))
                planted.append(mutant)
    return planted


def taking_turns(mutants: list[Mutant]) -> list[Mutant]:
    """First one of each kind, then the second ones: an index is off by one in every other line."""
    turns: Counter[str] = Counter()
    placed = []
    for mutant in mutants:
        placed.append((turns[mutant.kind], mutant))
        turns[mutant.kind] += 1
    return [mutant for _, mutant in sorted(placed, key=lambda pair: pair[0])]


def mutants_of(room: str, source: Path, path: Path) -> Iterator[Mutant]:
    """Every mistake that one file has room for."""
    lines = path.read_text().splitlines()
    for node, kind, start, end, text in edits(ast.parse(path.read_text())):
        before = lines[node.lineno - 1]
        raw = before.encode()
        after = (raw[:start] + text.encode() + raw[end:]).decode()
        if after == before:
            continue
        changed = [*lines[: node.lineno - 1], after, *lines[node.lineno :]]
        try:
            ast.parse("\n".join(changed))
        except SyntaxError:
            continue
        where = str(path.relative_to(source))
        yield Mutant(room, where, node.lineno, kind, before.strip(), after.strip())


Edit = tuple[
    ast.AST, str, int, int, str
]  # the node, what is done to it, from byte, to byte, new text


def edits(tree: ast.Module) -> Iterator[Edit]:
    """What can be changed within one line, annotations, messages and definitions left alone."""
    for node in code(tree):
        if getattr(node, "lineno", None) is None or node.lineno != node.end_lineno:
            continue
        yield from edits_of(node)


def code(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute: no annotation, no message of an error, no decorator."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        if isinstance(tree, ast.Raise) or (isinstance(tree, ast.Assert) and name == "msg"):
            continue
        for node in value if isinstance(value, list) else [value]:
            skipped = ast.Import | ast.ImportFrom | ast.JoinedStr
            if isinstance(node, ast.AST) and not isinstance(node, skipped):
                yield node
                yield from code(node)


def edits_of(node: ast.AST) -> Iterator[Edit]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
            kinds = ("bound shifted", "comparison turned")
            twins = COMPARED[type(op)]
            for kind, twin in zip(kinds[-len(twins) :], twins, strict=True):
                yield node, kind, left.end_col_offset, right.col_offset, f" {twin} "
        case ast.BinOp(left=left, op=op, right=right) if type(op) in CALCULATED:
            if isinstance(left, ast.Constant) and isinstance(left.value, str):
                return
            kind = "sign" if isinstance(op, ast.Add | ast.Sub) else "operator"
            gap = (left.end_col_offset, right.col_offset)
            yield node, kind, *gap, f" {CALCULATED[type(op)]} "
            if isinstance(op, ast.Add | ast.Sub):
                yield node, "dropped term", left.end_col_offset, right.end_col_offset, ""
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=inner):
            yield node, "sign", node.col_offset, inner.col_offset, ""
        case ast.BoolOp(values=[first, *_, last]):
            yield node, "dropped term", first.end_col_offset, last.end_col_offset, ""
        case ast.Constant(value=bool() as value):
            yield node, "constant", node.col_offset, node.end_col_offset, str(not value)
        case ast.Constant(value=int() as value):
            yield node, "off by one", node.col_offset, node.end_col_offset, str(value + 1)
        case ast.Constant(value=float() as value):
            twin = repr(value * 1.5 if value else 0.1)
            yield node, "constant", node.col_offset, node.end_col_offset, twin
        case ast.If(test=test) | ast.IfExp(test=test) if test.lineno == test.end_lineno:
            yield test, "skipped branch", test.col_offset, test.end_col_offset, "False"
        case ast.Call(func=ast.Attribute(attr=name) as function) if name in TWINS:
            end = function.end_col_offset
            if function.end_lineno == function.lineno:
                yield function, "twin function", end - len(name), end, TWINS[name]
        case ast.Call(func=ast.Name(id=name) as function) if name in TWINS:
            yield (
                function,
                "twin function",
                function.col_offset,
                function.end_col_offset,
                TWINS[name],
            )
