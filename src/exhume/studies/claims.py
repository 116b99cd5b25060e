"""Claims: what is claimed, what the paper says and what counts as holding, by the `claims.toml` of a family.

    [informed-start.claims.harder]
    claim = "Reconstruction is harder if the adversary first sees the model near convergence"
    paper = "harder from a model pre-trained to > 92%"
    measured = "MSE {before_0.mse:.4f} and {before_1000.mse:.4f}"
    holds = "[late_minus_fresh] > 0"

A claim that the paper does not make has no `paper`. `{name}` is a number, `[name]` its interval: where that
contains both sides of the bar the claim is undecided. So is a paper's claim that fails on fewer than three
draws of the victim (`draws` of the study: their number, or what its setting calls it). What rests on more
than metrics (two arms compared target by target) the study says:

    ssim = Comparison(lambda row: rows[row].each["ssim"], "SSIM", key)
    Outcome(metrics, said={"query_free": ssim("paper", "mean_image")})
"""

from __future__ import annotations

import ast
import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from numbers import Real
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

import torch
from torch import Tensor

from exhume.core.contract import Key
from exhume.core.results import Chart, Point
from exhume.score.intervals import bootstrap, clopper_pearson, clustered

X = TypeVar("X", bound=float | str)
N = TypeVar("N")
Stated = tuple[str, str, str, bool | None]
"""A claim: what is claimed, what the paper says, what was measured, whether it holds; None: undecided."""

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


def share_range(share: float, count: int) -> tuple[float, float]:
    """95% interval of a share of so many."""
    return clopper_pearson(round(share * count), count)


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

_DRAWS = 3  # with fewer, a paper's claim does not fail
_NAME = re.compile(r"\{([^{}:]+)(?::([^{}]+))?\}")
_PART = re.compile(r"<([^<> ]+)>")
_VALUE = re.compile(r"\{([^{}]+)\}|\[([^\[\]]+)\]")


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


@dataclass(frozen=True)
class Range:
    """An interval; a number is one without width."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Range:
        return Range(-self.high, -self.low)

    def __sub__(self, other: Range) -> Range:
        return self + -other

    def __mul__(self, other: Range) -> Range:
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Range(min(ends), max(ends))

    def __abs__(self) -> Range:
        if self.low <= 0 <= self.high:
            return Range(0.0, max(-self.low, self.high))
        return self if self.low > 0 else -self

    def compared(self, compare: Callable[[float, float], bool], other: Range) -> bool | None:
        """What holds of every pair of values; None: of some and not of others."""
        pairs = {compare(a, b) for a in (self.low, self.high) for b in (other.low, other.high)}
        return pairs.pop() if len(pairs) == 1 else None


@dataclass(frozen=True, eq=False)
class Words:
    """Fills what `claims.toml` says with the numbers of one run.

    {name:form}   a metric, or else a field of the setting (`data.fixed`), as Python formats it
    [name]        in `holds`: its interval, by `name_low` and `name_high`, or as the study says; a list: all
    <name>        the same inside a name: `{reconn.<data.shadows>.mse:.4f}`
    """

    setting: object
    values: Mapping[str, Any]  # metrics, and what else the study says

    @staticmethod
    def of(study: str, setting: object, values: Mapping[str, Any]) -> Words:
        """Of a study's own rows, which may also quote what the paper has `published`, and name `kinds`."""
        also = {name: said_of(study).get(name, {}) for name in ("published", "kinds")}
        return Words(setting, {**also, **values})

    def named(self, template: str) -> str:
        """A name whose parts in angle brackets are filled in."""
        return _PART.sub(lambda part: _short(self.value(part[1])), template)

    def value(self, name: str) -> Any:
        name = self.named(name)
        if name in self.values:
            return self.values[name]
        first, *rest = name.split(".")
        found: Any = self.values[first] if first in self.values else getattr(self.setting, first)
        for part in rest:
            found = found[part] if isinstance(found, Mapping) else getattr(found, part)
        return found

    def ranges(self, name: str) -> list[Range]:
        """The interval of a metric, or of one or several things that the study says."""
        name = self.named(name)
        found = self.values.get(name)
        if found is None or isinstance(found, Real):
            for low, high in ((f"{name}_low", f"{name}_high"), (f"{name}.low", f"{name}.high")):
                if low in self.values:
                    return [Range(float(self.values[low]), float(self.values[high]))]
            found = self.value(name)
        if isinstance(found, Real):
            raise ValueError(f"claims.toml: {name} is a number without an interval")
        return [_range(one) for one in (found if isinstance(found, list) else [found])]

    def has(self, name: str) -> bool:
        """Whether the run has this number; "": nothing is asked for."""
        try:
            return not name or self.value(name) is not None
        except (AttributeError, KeyError):
            return False

    def text(self, template: str) -> str:
        return _NAME.sub(lambda name: _formed(self.value(name[1]), name[2] or ""), template)

    def points(self, series: Mapping[str, Any]) -> list[Point]:
        """A metric of several arms, each at its place, with its interval unless it is `bare`.

        at: places, or what the study or its setting calls them, or a table of arms by their place; `<x>` in
        the metric is the arm.
        """
        places = self.value(series["at"]) if isinstance(series["at"], str) else series["at"]
        named = places if isinstance(places, Mapping) else {x: x for x in places}
        return [self._point(x, arm, series) for x, arm in named.items()]

    def _point(self, x: Any, arm: Any, series: Mapping[str, Any]) -> Point:
        own = replace(self, values={**self.values, "x": arm})
        name = own.named(series["metric"])
        ends = [
            None if "bare" in series else own.values.get(f"{name}{e}") for e in ("_low", "_high")
        ]
        return Point(x, own.value(name), *ends)

    def holds(self, condition: str) -> bool | None:
        """`[success] > 0.5 and {targets} >= 10`: comparisons of numbers, sums and products."""
        known: dict[str, list[Range]] = {}

        def numbered(name: re.Match[str]) -> str:
            kept = self.ranges(name[2]) if name[1] is None else [_range(self.value(name[1]))]
            called = f"v{len(known)}"
            known[called] = kept
            return called

        code = ast.parse(_VALUE.sub(numbered, condition), mode="eval").body
        return _judged(code, known)


def _range(found: Any) -> Range:
    """The two ends of a number, of a pair, or of anything that has them."""
    if isinstance(found, tuple):
        return Range(*found)
    if isinstance(found, Real):
        return Range(float(found), float(found))
    return Range(float(found.low), float(found.high))


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _formed(value: object, form: str) -> str:
    if isinstance(value, list):
        return "; ".join(_formed(one, form) for one in value)
    return format(value, form)


_ARITHMETIC: dict[type, Callable[[Range, Range], Range]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_COMPARISONS: dict[type, Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}


def _judged(node: ast.AST, known: Mapping[str, Sequence[Range]]) -> bool | None:
    """Whether a condition holds; None: its numbers do not decide."""
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return _all(_judged(part, known) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=rest):
            ends = [_several(end, known) for end in (left, *rest)]
            pairs = zip(ops, ends, ends[1:], strict=False)
            return _all(
                a.compared(_COMPARISONS[type(op)], b)
                for op, one, other in pairs
                for a in one
                for b in other
            )
    raise ValueError(f"claims.toml: {ast.unparse(node)} is no comparison of numbers")


def _all(parts: Iterable[bool | None]) -> bool | None:
    said = set(parts)
    return False if False in said else None if None in said else True


def _several(node: ast.AST, known: Mapping[str, Sequence[Range]]) -> list[Range]:
    match node:
        case ast.Constant(value=value):
            return [_range(value)]
        case ast.Name(id=name):
            return list(known[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return [-one for one in _several(operand, known)]
        case ast.BinOp(left=left, op=op, right=right):
            both = product(_several(left, known), _several(right, known))
            return [_ARITHMETIC[type(op)](*pair) for pair in both]
        case ast.Call(func=ast.Name(id="abs"), args=[inside]):
            return [abs(one) for one in _several(inside, known)]
    raise ValueError(f"claims.toml: {ast.unparse(node)} is no number")


def claims_of(study: str, words: Words) -> Claims:
    """A study's claims in the order of its file.

    A row whose numbers (`needs`, if it names one) are not there was not run. A row with `each` stands for one
    claim of every name in a list of its own, or of one that the study or its setting has.
    """
    claims: Claims = {}
    draws = said_of(study).get("draws", _DRAWS)
    if isinstance(draws, str):
        draws = words.value(draws) if words.has(draws) else _DRAWS
    for template, row in said_of(study).get("claims", {}).items():
        for name, more in _each(template, row, words):
            own = replace(words, values={**words.values, **more})
            if own.has(row.get("needs", "")):
                said = own.text(row["claim"]), own.text(row.get("paper", ""))
                holds = own.holds(row["holds"])
                decided = None if draws < _DRAWS and said[1] and holds is False else holds
                claims[name] = (*said, own.text(row["measured"]), decided)
    return claims


def charts_of(study: str, words: Words) -> list[Chart]:
    """A study's charts whose points are metrics, as its file describes them."""
    charts = []
    for row in said_of(study).get("charts", []):
        for _, more in _each("", row, words):
            own = replace(words, values={**words.values, **more})
            series = {
                own.text(one["name"]): own.points(one)
                for one in row["series"]
                if own.has(one.get("needs", ""))
            }
            scales = row.get("x_scale", "linear"), row.get("y_scale", "linear")
            charts.append(Chart(own.text(row["title"]), row["x"], row["y"], series, *scales))
    return charts


def papers_of(study: str) -> dict[str, str]:
    """What the paper says, by the id of the claim that it makes; `*` stands for a name that a run gives."""
    words, found = Words.of(study, None, {}), dict[str, str]()
    for template, row in said_of(study).get("claims", {}).items():
        if isinstance(row.get("each", {}), dict) and all(
            isinstance(several, str) for several in row.get("each", {}).values()
        ):
            found[_PART.sub("*", template)] = words.text(row.get("paper", ""))
            continue
        for name, more in _each(template, row, words):
            own = replace(words, values={**words.values, **more})
            found[name] = own.text(row.get("paper", ""))
    return {name: said for name, said in found.items() if said}


def _each(
    template: str, row: Mapping[str, Any], words: Words
) -> Iterator[tuple[str, dict[str, Any]]]:
    if "each" not in row:
        yield template, {}
        return
    ((name, several),) = row["each"].items()
    for value in words.value(several) if isinstance(several, str) else several:
        more = value if isinstance(value, dict) else {name: value}
        yield Words(None, more).named(template), more
