"""Claims, and how they are decided: the text of what was measured and whether it holds, from one comparison.

ssim = Comparison(lambda row: rows[row].each["ssim"], "SSIM", key)
{"query-free": ("Without a query …", "SSIM 0.4363", *ssim("paper", "mean_image").above())}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

from torch import Tensor

from exhume.core.contract import Key
from exhume.core.results import Point
from exhume.score.intervals import bootstrap, clustered

__all__ = [
    "Comparison",
    "Decided",
    "Paired",
    "clustered_pair",
    "fewer",
    "flattened",
    "line",
    "mean_of",
    "more",
    "paired",
    "point_of",
    "prefixed",
    "ranged",
    "spread",
]

X = TypeVar("X", bound=float | str)
Decided = tuple[str, bool]
"""What was measured, in words, and whether the claim holds."""


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
