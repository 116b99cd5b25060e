"""Claims: what is claimed, what the paper says and what decides, by the `claims.toml` of each family.

    [informed-init.claims.shared]
    claim = "With one initialisation, losses with and without the record separate"
    paper = "perfectly separable"
    measured = "AUC {auc_shared:.3f}"
    holds = "{auc_shared} >= 0.95"

Where more than metrics decide (two arms target by target), the row has neither of the last two, and the study
says them:

    ssim = Comparison(lambda row: rows[row].each["ssim"], "SSIM", key)
    {"query-free": ssim("paper", "mean_image").above()}
"""

from __future__ import annotations

import ast
import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

import torch
from torch import Tensor

from exhume.core.contract import Key
from exhume.core.results import Point
from exhume.score.intervals import bootstrap, clustered

X = TypeVar("X", bound=float | str)
N = TypeVar("N")
Decided = tuple[str, bool]
"""What was measured, in words, and whether the claim holds."""

Stated = tuple[str, str, str, bool]
"""A claim: what is claimed, what the paper says, what was measured, whether it holds."""

Claims = dict[str, Stated]
"""Claims by id."""


@dataclass(frozen=True)
class Paired:
    """Two arms on the same targets: their means, and the mean difference's interval, 95%."""

    one: float
    other: float
    low: float
    high: float
    what: str = ""
    digits: int = 3

    def __str__(self) -> str:
        d = self.digits
        return f"{self.what} {self.one:.{d}f} against {self.other:.{d}f}, {self.apart}"

    @property
    def apart(self) -> str:
        """The difference in words."""
        return f"paired difference {self.low:.{self.digits}f} to {self.high:.{self.digits}f}"

    def above(self) -> Decided:
        """The first is larger, for certain."""
        return str(self), self.low > 0

    def below(self) -> Decided:
        return str(self), self.high < 0

    def not_above(self) -> Decided:
        """The first is not larger for certain."""
        return str(self), self.low <= 0


def paired(one: Tensor, other: Tensor, key: Key, what: str = "", digits: int = 3) -> Paired:
    """(t,) and (t,) of the same targets; no difference at all has no width."""
    apart = one - other
    low, high = bootstrap(apart, key) if bool(apart.any()) else (0.0, 0.0)
    return Paired(float(one.mean()), float(other.mean()), low, high, what, digits)


def clustered_pair(one: Tensor, other: Tensor, key: Key, what: str = "") -> Paired:
    """(clients, shadows, images) twice, same clients and images; clients that only one has are left out."""
    count = min(len(one), len(other))
    one, other = one[:count], other[:count]
    low, high = clustered(one, key, other)
    return Paired(float(one.mean()), float(other.mean()), low, high, what)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Arms by name, compared two at a time; the key of two is folded with their names."""

    values: Callable[[str], Tensor]  # (t,) of an arm
    what: str
    key: Key
    digits: int = 3

    def __call__(self, one: str, other: str) -> Paired:
        key = self.key.fold(one, other)
        return paired(self.values(one), self.values(other), key, self.what, self.digits)


def more(one: float, other: float, form: str = "g") -> Decided:
    """The first number is larger."""
    return f"{one:{form}} against {other:{form}}", one > other


def fewer(one: float, other: float, form: str = "g", *, share: float = 1.0) -> Decided:
    """The first number is smaller than so large a share of the other."""
    return f"{one:{form}} against {other:{form}}", one < share * other


# Metrics by name


def prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}.{name}": value for name, value in metrics.items()}


def flattened(arms: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The metrics of all arms, each named after its arm."""
    return {name: value for arm in arms for name, value in prefixed(arm, arms[arm]).items()}


def mean_of(runs: Iterable[Mapping[str, float]], spread: Iterable[str] = ()) -> dict[str, float]:
    """The mean of every metric over runs that all have it; of those in `spread` also the deviation."""
    several = list(runs)
    means = {name: fmean(run[name] for run in several) for name in several[0]}
    if len(several) > 1:
        means |= {f"{name}_std": stdev(run[name] for run in several) for name in spread}
    return means


def by_row(found: Mapping[str, N]) -> dict[str, list[N]]:
    """What was found, by row: a job is called by its row, a space and the number of its repeat."""
    rows: dict[str, list[N]] = {}
    for job, numbers in found.items():
        rows.setdefault(job.split(" ")[0], []).append(numbers)
    return rows


def row_means(
    rows: Mapping[str, Sequence[Mapping[str, Tensor]]], numbers: Iterable[str] = ()
) -> dict[str, float]:
    """The mean of every number of a row, over its repeats and what each of them has. numbers: else all."""
    return {
        f"{row}.{number}": float(torch.cat([one[number].reshape(-1) for one in several]).mean())
        for row, several in rows.items()
        for number in numbers or several[0]
    }


def spread(name: str, values: Tensor, key: Key) -> dict[str, float]:
    """Mean of (t,) values and its interval over targets, as three metrics; equal values have no width."""
    low = high = float(values[0])
    if bool((values != values[0]).any()):
        low, high = bootstrap(values, key.fold(name))
    return {name: float(values.mean()), f"{name}_low": low, f"{name}_high": high}


def line(arms: Mapping[X, str], measure: str, metrics: Mapping[str, float]) -> list[Point]:
    """A metric of several arms, each at its place; where there is one, with its interval."""
    names = {x: f"{arm}.{measure}" for x, arm in arms.items()}
    return [
        Point(x, metrics[name], metrics.get(f"{name}_low"), metrics.get(f"{name}_high"))
        for x, name in names.items()
    ]


def point_of(x: float | str, values: Tensor, key: Key) -> Point:
    """The mean of (t,) values with its interval, at x."""
    low, high = bootstrap(values, key)
    return Point(x, float(values.mean()), low, high)


def ranged(name: str, metrics: Mapping[str, float], form: str = ".3f") -> str:
    """The interval of a metric in words."""
    return f"{metrics[f'{name}_low']:{form}} to {metrics[f'{name}_high']:{form}}"


# Claims as data: `claims.toml` of each family

_NAME = re.compile(r"\{([^{}:]+)(?::([^{}]+))?\}")
_PART = re.compile(r"<([^<>]+)>")


@cache
def said_of(study: str) -> Mapping[str, Any]:
    """What the family's file says of a study: title, paper, claims, and how it deviates from the paper.

    `like` names another study, which says what this one does not.
    """
    for path in sorted(Path(__file__).parent.glob("*/claims.toml")):
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        if study in content:
            found: dict[str, Any] = content[study]
            return {**said_of(found.get("like", "")), **found}
    return {}


@dataclass(frozen=True, eq=False)
class Words:
    """Fills what `claims.toml` says with the numbers of one run.

    {name:form}   a metric, or else a field of the setting (`data.fixed`), as Python formats it
    <name>        the same inside a name: `{reconn.<data.shadows>.mse:.4f}`
    """

    setting: object
    values: Mapping[str, Any]  # metrics, and what else the study tells

    def value(self, name: str) -> Any:
        name = _PART.sub(lambda part: _short(self.value(part[1])), name)
        if name in self.values:
            return self.values[name]
        found: Any = self.setting
        for part in name.split("."):
            found = found[part] if isinstance(found, Mapping) else getattr(found, part)
        return found

    def has(self, name: str) -> bool:
        """Whether the run has this number; "": nothing is asked for."""
        try:
            return not name or self.value(name) is not None
        except (AttributeError, KeyError):
            return False

    def text(self, template: str) -> str:
        said = _PART.sub(lambda part: _short(self.value(part[1])), template)
        return _NAME.sub(lambda name: format(self.value(name[1]), name[2] or ""), said)

    def holds(self, condition: str) -> bool:
        """`{success_low} > 0.5 and {targets} >= 10`: comparisons of numbers, sums and products."""
        names = list(dict.fromkeys(name[1] for name in _NAME.finditer(condition)))
        known = {f"v{place}": float(self.value(name)) for place, name in enumerate(names)}
        code = _NAME.sub(lambda name: f"v{names.index(name[1])}", condition)
        return bool(_evaluated(ast.parse(code, mode="eval").body, known))


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}


def _evaluated(node: ast.AST, known: Mapping[str, float]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return known[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluated(left, known), _evaluated(right, known))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_evaluated(value, known) for value in values)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_evaluated(value, known) for value in args))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            ends = [_evaluated(value, known) for value in (left, *rest)]
            pairs = zip(ops, ends, ends[1:], strict=False)
            return all(_OPERATORS[type(op)](one, other) for op, one, other in pairs)
    raise ValueError(f"claims.toml: {ast.unparse(node)} is no comparison of numbers")


def claims_of(
    study: str,
    setting: object,
    values: Mapping[str, Any],
    decided: Mapping[str, Decided] | None = None,
) -> Claims:
    """A study's claims in the order of its file.

    A row decides itself by `measured` and `holds`, unless the numbers that it `needs` are not there. A row
    without them is decided by the study; where the study says nothing it was not run. A row with `each`
    stands for one claim of every name in a list of its own, or of the setting's.
    """
    rows = {
        name: (Words(setting, {**values, **more}), row)
        for template, row in said_of(study).get("claims", {}).items()
        for name, more in _each(template, row, Words(setting, values))
    }
    claims: Claims = {}
    given = dict(decided or {})
    for name, (words, row) in rows.items():
        if name in given:
            verdict = given.pop(name)
        elif "holds" in row and words.has(row.get("needs", "")):
            verdict = words.text(row["measured"]), words.holds(row["holds"])
        else:
            continue
        claims[name] = (words.text(row["claim"]), words.text(row["paper"]), *verdict)
    assert not given, f"{study}: no row of claims.toml is called {', '.join(given)}"
    return claims


def _each(
    template: str, row: Mapping[str, Any], words: Words
) -> Iterator[tuple[str, dict[str, Any]]]:
    if "each" not in row:
        yield template, {}
        return
    ((name, several),) = row["each"].items()
    for value in words.value(several) if isinstance(several, str) else several:
        more = value if isinstance(value, dict) else {name: value}
        yield Words(None, more).text(template), more
