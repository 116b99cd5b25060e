"""A setting is a dataclass field that knows its help, its range and how it is written on a command line.

Sections of such fields are checked, read from TOML and written to it here, and become rows of the docs'
tables and options of the commands. Nothing of this imports torch.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from exhume.core.errors import ExhumeError, nearest
from exhume.core.files import text_at

# Shared by all releases: None until the brief is resolved. Whoever is given a section has a resolved one, so
# that it is a plain value there.
if TYPE_CHECKING:
    SharedNumber = int
    SharedText = str
else:
    SharedNumber = int | None
    SharedText = str | None


_SPELT = {"optimizer": "optimiser"}  # keys that may also be written so
_LARGEST_FILE = 1 << 20  # bytes of a brief
_LARGEST_NUMBER = 10**9  # of steps, records, threads: more is a slip, and no machine could do it
_LONGEST = 80  # characters of a value in a sentence


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known of a field besides its type and its default."""

    help: str
    least: int | None = None
    above: int | None = None
    most: int | None = None
    below: int | None = None
    noun: str = "a finite number"  # what is needed, in an error message
    choices: tuple[str, ...] = ()  # the default is legal, too
    flag: str | None = None  # of its option, where the name alone will not do; "": it has none
    argument: bool = False  # of its command: the argument without a name
    file: bool = False  # names a file or folder, whose content decides the result
    shared: str = ""  # not said (None): the brief's value of this name
    example: Any = None  # for `exhume init`, where the default would not show what it is

    def check(self, name: str, value: Any, prefix: str) -> None:
        """Raise what is wrong with a value."""
        if self.choices and value not in self.choices:
            raise ExhumeError(f"{name}: {in_short(value)} is not one of {', '.join(self.choices)}")
        ends = (self.least, self.above, self.most, self.below)
        if not isinstance(value, int | float) or ends == (None,) * 4:
            return
        inside = (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )
        finite = isinstance(value, int) or math.isfinite(value)
        if inside and isinstance(value, int) and value > _LARGEST_NUMBER:
            raise ExhumeError(
                f"{prefix}{name}: {in_short(value)} given, at most {_LARGEST_NUMBER:,} are possible"
            )
        if not (inside and finite):
            raise ExhumeError(
                f"{prefix}{name}: {in_short(value)} given, {self._legal(finite)} needed"
            )

    @property
    def legal(self) -> str:
        """What a value must be, as a sentence; empty where anything of its type is legal."""
        if self.choices:
            return f"One of {', '.join(self.choices)}."
        needed = (self.least, self.above, self.most, self.below) != (None,) * 4
        return f"{self._legal(True).capitalize()}." if needed else ""

    def _legal(self, finite: bool) -> str:
        if self.least is not None and self.below is not None:
            return f"{self.least:g} or more and below {self.below:g}"
        if self.least is not None:
            return (
                f"at least {self.least:g}" if finite else f"{self.noun} of {self.least:g} or more"
            )
        upper = f" and up to {self.most:g}" if self.most is not None else ""
        return f"{self.noun} above {self.above:g}{upper}"


def setting(default: Any, says: str, **more: Any) -> Any:
    """A field of a section. says: its help; more: as the fields of `Setting`."""
    return field(default=default, metadata={"setting": Setting(help=says, **more)})


def settings_of(kind: Any) -> dict[str, tuple[Field[Any], Setting]]:
    """The fields of a section, or of its class, by name."""
    found = ((f, f.metadata.get("setting")) for f in fields(kind))
    return {f.name: (f, known) for f, known in found if known is not None}


def types_of(kind: type[Any]) -> dict[str, Any]:
    """The types of a section's fields, by name; of a shared one that of its value."""
    plain = {SharedNumber: int, SharedText: str}
    return {name: plain.get(hint, hint) for name, hint in get_type_hints(kind).items()}


class SettingsSection:
    """The base of all sections: values are checked when they are set."""

    prefix: ClassVar[str] = ""  # of names in error messages
    renamed: ClassVar[Mapping[str, str]] = {}  # keys of earlier versions

    def __post_init__(self) -> None:
        for name, (usual, known) in settings_of(self).items():
            value = getattr(self, name)
            if value is not None and not (known.choices and value == usual.default):
                known.check(name, value, self.prefix)


# Reading


def toml_at(path: Path) -> dict[str, Any]:
    """What a TOML file says."""
    text = text_at(path, most=_LARGEST_FILE)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ExhumeError(f"{path} is not a TOML file of ours: brackets within brackets") from None
    except ValueError as error:  # also a number of more digits than Python reads
        raise ExhumeError(f"{path} is not a TOML file: {str(error)[:300]}") from error


def in_short(value: object) -> str:
    """A value in a sentence; one of another's choosing may have no end."""
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:
        return f"a number of more than {_LONGEST} digits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def filled(default: Any, content: Mapping[str, Any], where: str) -> Any:
    """`default` with the values of `content`; every key must exist and every value must fit its type."""
    said = {f.name: getattr(default, f.name) for f in fields(default)}
    return made_of(type(default), content, where, **said)


def made_of(kind: type[Any], content: Mapping[str, Any], where: str, **said: Any) -> Any:
    """A section from `content`; what that leaves open is as `said`, else as usual."""
    usual = {
        f.name: f.default if f.default is not MISSING else f.default_factory()  # type: ignore[operator]
        for f in fields(kind)
    }
    hints = types_of(kind)
    values = {}
    for written, value in content.items():
        name = _SPELT.get(written, written)
        if name not in usual:
            raise ExhumeError(f"{where}: {_unknown(name, kind, list(usual))}")
        if is_dataclass(hints[name]):
            if not isinstance(value, Mapping):
                raise ExhumeError(
                    f"{where}: {name}: a section is needed here, got {in_short(value)}"
                )
            values[name] = filled({**usual, **said}[name], value, f"{where}: {name}")
        else:
            values[name] = _fitting(hints[name], value, f"{where}: {name}")
    return kind(**{**said, **values})


def _unknown(name: str, kind: type[Any], known: list[str]) -> str:
    renamed = getattr(kind, "renamed", {})
    if name in renamed:
        return f"the key {name!r} is now called {renamed[name]!r}"
    return f"unknown key {in_short(name)}; {nearest(name, known)}"


_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _fitting(kind: Any, value: Any, where: str) -> Any:
    if kind == tuple[str, ...]:
        several = (value,) if isinstance(value, str) else value
        if not isinstance(several, list | tuple) or not all(isinstance(i, str) for i in several):
            raise ExhumeError(
                f"{where}: a text or a list of texts is needed, got {in_short(value)}"
            )
        return tuple(several)
    if kind == tuple[int, ...]:
        if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
            raise ExhumeError(f"{where}: a list of whole numbers is needed, got {in_short(value)}")
        return tuple(value)
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise ExhumeError(f"{where}: {in_short(value)} is too large") from None
    if type(value) is not kind:
        raise ExhumeError(f"{where}: {_WORDS[kind]} is needed, got {in_short(value)}")
    return value


# Writing


def toml_of(content: Mapping[str, Any]) -> str:
    """Plain values, then sections of them, as TOML; deeper values as `descent.steps = 40`.

    None is left out.
    """
    said = {name: value for name, value in content.items() if value is not None}
    plain = {name: value for name, value in said.items() if not isinstance(value, Mapping)}
    lines = list(_rows((), plain))
    for name, value in said.items():
        if name not in plain:
            lines += ["", f"[{_key(name)}]", *_rows((), value)]
    return "\n".join(lines) + "\n"


def _rows(path: tuple[str, ...], content: Mapping[str, Any]) -> Iterator[str]:
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _rows((*path, name), value)
        elif value is not None:
            yield f"{'.'.join(map(_key, (*path, name)))} = {toml_value(value)}"


def _key(name: str) -> str:
    bare = name.replace("_", "").replace("-", "")
    return name if bare.isalnum() and bare.isascii() else toml_value(name)


def toml_value(value: object) -> str:
    if isinstance(value, Mapping):
        return (
            f"{{{', '.join(f'{_key(name)} = {toml_value(item)}' for name, item in value.items())}}}"
        )
    if isinstance(value, tuple | list):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, str):
        escaped = "".join(
            f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c
            for c in value.replace("\\", "\\\\").replace('"', '\\"')
        )
        return f'"{escaped}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
