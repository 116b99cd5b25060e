"""A study's `config.toml`: what was asked for and the real setting; another run than this one is refused."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from exhume.core.contract import ExhumeError
from exhume.report.folder import RunFolder
from exhume.settings import toml_at
from exhume.store.shards import describe

__all__ = ["plain", "taken_up", "to_toml"]


def taken_up(folder: RunFolder, asking: Mapping[str, Any], threads: int) -> int:
    """Write the setting down; return the threads: those of the same run in this folder, or as given.

    Threads decide the bits, so a resumed study keeps them whatever machine it goes on with.
    """
    text = to_toml({**asking, "machine": {"threads": threads}})
    if folder.config.exists():
        wanted, earlier = tomllib.loads(text), toml_at(folder.config)
        machine = earlier.get("machine", {})
        if {**wanted, "machine": machine} == earlier:
            return int(machine["threads"])
        if folder.has_work():
            raise ExhumeError(
                f"{folder.path} holds a run with other settings (see its config.toml): "
                "choose another --out, or delete it"
            )
    folder.write_config(text)
    return threads


def plain(setting: object) -> Any:
    """A setting as plain data. An attack or a network says what it is; a group of sizes need not."""
    return _unnamed(describe(setting))


def _unnamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_unnamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    name = str(value.get("type", ""))
    group = name.startswith("_") or name.endswith(("Setting", "Settings", "Sizes"))
    return {n: _unnamed(v) for n, v in value.items() if not (group and n == "type")}


def to_toml(content: Mapping[str, Any]) -> str:
    """Values of any depth as TOML, one line each: `attack.descent.steps = 40`. None is written "none"."""
    return "".join(f"{line}\n" for line in _lines((), content))


def _lines(path: tuple[str, ...], value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _lines((*path, name), item)
    else:
        yield f"{'.'.join(map(_key, path))} = {_literal(value)}"


def _key(name: str) -> str:
    bare = name.replace("_", "").replace("-", "")
    return name if bare.isalnum() and bare.isascii() else json.dumps(name)


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(n)} = {_literal(v)}" for n, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, float):
        return repr(value)  # also inf and nan, which JSON spells differently
    return json.dumps("none" if value is None else value, ensure_ascii=False).replace(
        "\x7f", "\\u007f"
    )
