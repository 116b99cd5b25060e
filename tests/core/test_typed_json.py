from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exhume.core.contract import ExhumeError
from exhume.core.evidence import Epsilon, Extent, GroupRow, Premise
from exhume.core.results import ReleaseRow
from exhume.core.typed_json import FLAT, from_json, to_json


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    id: str
    size: int = 1


@dataclass(frozen=True)
class Whole:
    inner: Annotated[Inner, FLAT]
    rate: float
    colour: Colour = Colour.RED
    word: Literal["yes", "no"] = "yes"
    names: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    other: Inner | None = None
    mixed: tuple[dict[str, str | float], ...] = ()


WHOLE = Whole(
    Inner("a", 3),
    0.5,
    names=("x", "y"),
    metrics={"m": 1.0},
    other=Inner("b"),
    mixed=({"k": "v", "w": 2.0},),
)


def test_there_and_back():
    plain = to_json(WHOLE)
    assert plain["id"] == "a"
    assert plain["size"] == 3
    assert "inner" not in plain
    assert from_json(Whole, plain, "file") == WHOLE


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(), st.integers())
def test_any_values_come_back(rate, name, size):
    whole = Whole(Inner(name, size), rate, names=(name,), metrics={name: rate})
    assert from_json(Whole, to_json(whole), "file") == whole


def test_a_number_that_is_not_finite_is_null():
    plain = to_json(Whole(Inner("a"), 1.0, metrics={"m": math.inf, "n": math.nan}))
    assert plain["metrics"] == {"m": None, "n": None}
    assert math.isnan(from_json(Whole, plain, "file").metrics["m"])


def test_later_keys_are_passed_over_and_lacking_ones_are_defaults():
    assert from_json(Whole, {"id": "a", "rate": 1, "later": [1]}, "f") == Whole(Inner("a"), 1.0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rate": "fast"}, "f.rate must be a number, not str"),
        ({"rate": True}, "f.rate must be a number, not bool"),
        ({"names": "x"}, "f.names must be a list, not str"),
        ({"names": [1]}, r"f.names\[0\] must be a text, not int"),
        ({"metrics": []}, "f.metrics must be an object, not list"),
        ({"word": "maybe"}, "f.word: 'maybe' is not one of yes, no"),
        ({"colour": "blue"}, "f.colour: 'blue' is not one of red"),
        ({"other": 3}, "f.other must be an object, not int"),
        ({"mixed": [{"k": []}]}, r"f.mixed\[0\].k must be a text or a number, not list"),
        ({"id": None}, "f.id must be a text, not NoneType"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], sentence: str):
    with pytest.raises(ExhumeError, match=sentence):
        from_json(Whole, {**to_json(WHOLE), **changes}, "f")


def test_what_is_missing_is_named():
    with pytest.raises(ExhumeError, match="f.rate is missing"):
        from_json(Whole, {"id": "a"}, "f")
    with pytest.raises(ExhumeError, match="f must be an object, not list"):
        from_json(Whole, [], "f")


def test_how_far_a_verdict_goes_stands_beside_it():
    silent = to_json(ReleaseRow("update", "an update", "leaks", "", ""))
    assert [silent[name] for name in ("strength", "distance", "epsilon", "groups")] == [None] * 4
    extent = Extent(
        "recognised",
        0.4,
        8,
        Epsilon(1.5, 4.0),
        (GroupRow("seven", 3, 9, 0.1, 0.7),),
        Premise("distance of the weights", 0.1, 0.2, holds=True),
    )
    row = ReleaseRow("update", "an update", "leaks", "", "", extent=extent)
    plain = to_json(row)
    assert plain["epsilon"]["at_least"] == 1.5
    assert plain["groups"][0]["name"] == "seven"
    assert from_json(ReleaseRow, plain, "file") == row
    assert Extent(distance=2).with_missing(extent) == Extent(**{**vars(extent), "distance": 2})
