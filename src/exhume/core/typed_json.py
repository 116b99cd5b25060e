"""Frozen dataclasses to and from JSON. What does not fit is named in one sentence.

A field annotated with `FLAT` holds a dataclass whose fields stand beside the others. A key that is not
there is the field's default; one that no field has is passed over, so that a later version may add some.
A number that is not finite is null.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from exhume.core.contract import ExhumeError

T = TypeVar("T")
FLAT = "flat"
_KINDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


def to_json(value: Any) -> Any:
    """Plain values, lists and objects."""
    if is_dataclass(value) and not isinstance(value, type):
        plain: dict[str, Any] = {}
        for field in fields(value):
            inner = to_json(getattr(value, field.name))
            plain |= inner if _is_flat(type(value), field.name) else {field.name: inner}
        return plain
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_json(kind: type[T], value: Any, where: str) -> T:
    """The inverse of `to_json`. where: names the place in the error."""
    read: T = _read(kind, value, where)
    return read


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, inside = get_origin(kind), get_args(kind)
    read = value
    if origin in (Union, types.UnionType):
        read = _one_of(inside, value, where)
    elif origin is Literal:
        _check_one_of(inside, value, where)
    elif origin in (tuple, Sequence):
        items = enumerate(_of(list, value, where))
        read = tuple(_read(inside[0], item, f"{where}[{i}]") for i, item in items)
    elif origin in (dict, Mapping):
        items = _of(dict, value, where).items()
        read = {name: _read(inside[1], item, f"{where}.{name}") for name, item in items}
    elif is_dataclass(kind):
        read = _dataclass(kind, _of(dict, value, where), where)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        _check_one_of([one.value for one in kind], value, where)
        read = kind(value)
    elif kind is float and type(value) is int:
        read = _as_float(value, where)
    elif kind is float and value is None:
        read = math.nan
    elif kind is not Any and type(value) is not kind:
        raise ExhumeError(f"{where} must be {_KINDS[kind]}, not {type(value).__name__}")
    return read


def _as_float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ExhumeError(f"{where} is a number too large") from None


def _check_one_of(legal: Sequence[Any], value: Any, where: str) -> None:
    if value not in legal:
        raise ExhumeError(
            f"{where}: {str(value)[:80]!r} is not one of {', '.join(map(str, legal))}"
        )


def _one_of(kinds: Sequence[Any], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    exact = [kind for kind in rest if type(value) is kind]
    if exact or len(rest) == 1:
        return _read((exact or rest)[0], value, where)
    if float in rest and type(value) is int:
        return value
    names = " or ".join(_KINDS.get(kind, "an object") for kind in rest)
    raise ExhumeError(f"{where} must be {names}, not {type(value).__name__}")


def _of(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "an object"
        raise ExhumeError(f"{where} must be {wanted}, not {type(value).__name__}")
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _is_flat(kind: type, name: str) -> bool:
    return get_origin(_hints(kind)[name]) is Annotated


def _dataclass(kind: Any, value: Mapping[str, Any], where: str) -> Any:
    given: dict[str, Any] = {}
    for field in fields(kind):
        hint = _hints(kind)[field.name]
        if _is_flat(kind, field.name):
            given[field.name] = _dataclass(get_args(hint)[0], value, where)
        elif field.name in value and not (value[field.name] is None and _has_default(field)):
            given[field.name] = _read(hint, value[field.name], f"{where}.{field.name}")
        elif not _has_default(field):
            raise ExhumeError(f"{where}.{field.name} is missing")
    try:
        return kind(**given)
    except (TypeError, ValueError) as why:
        raise ExhumeError(f"{where}: {why}") from None


def _has_default(one: Field[Any]) -> bool:
    return one.default is not MISSING or one.default_factory is not MISSING
