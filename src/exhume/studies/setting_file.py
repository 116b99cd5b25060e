"""A study's `config.toml`: what was asked for and the real setting; another run than this one is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from exhume.core.contract import ExhumeError
from exhume.report.folder import RunFolder
from exhume.settings.schema import toml_at, toml_of
from exhume.store.shards import describe


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
    """Values of any depth as TOML. None is written "none"."""
    return toml_of(_told(content))


def _told(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _told(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    return "none" if value is None else value
