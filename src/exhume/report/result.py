"""The plain files of a run folder as the page reads them, and a sentence for what is wrong."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exhume.contract import ExhumeError

__all__ = ["checked", "read_json", "read_toml"]


def read_json(path: Path, *, needed: bool = True) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not needed:
            return {}
        raise ExhumeError(f"{path}: missing, so there is no finished run to draw here") from None
    except (OSError, ValueError, RecursionError) as damage:
        raise ExhumeError(f"{path}: not readable as JSON ({damage})") from None
    if not isinstance(value, dict):
        raise ExhumeError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as damage:
        raise ExhumeError(f"{path}: not readable as TOML ({damage})") from None


def checked(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """The result with every field the page reads, of the type it reads; absent ones are empty."""
    if result.get("schema") != 1:
        raise ExhumeError(f"{path}: schema is {result.get('schema')!r}, this version reads 1")
    kind = result.get("kind", "study" if "study" in result else None)
    if kind not in ("audit", "study"):
        raise ExhumeError(f"{path}: kind is {kind!r}, legal are 'audit' and 'study'")
    empty = {
        **dict.fromkeys(
            ("attacks", "claims", "charts", "classes", "deviations", "plan", "fixes", "releases"),
            list,
        ),
        **dict.fromkeys(("verdict", "victim", "metrics", "environment"), dict),
    }
    whole = {"title": kind.capitalize(), "kind": kind, **_typed(result, empty, path, "")}
    whole["classes"] = [str(name) for name in whole["classes"]]
    of_attack = {
        **dict.fromkeys(("knows", "baselines", "notes"), list),
        **dict.fromkeys(("status", "metrics", "cost"), dict),
    }
    for name in ("attacks", "claims", "charts", "plan", "fixes", "releases"):
        for place, item in enumerate(whole[name]):
            if not isinstance(item, dict):
                raise ExhumeError(f"{path}: {name}[{place}] must be an object")
    for planned in whole["plan"]:
        planned["run"] = planned.get("run") is True
    whole["attacks"] = [
        {
            "name": f"Attack {i}",
            "paper": "",
            "sees": "",
            **_typed(a, of_attack, path, f"attacks[{i}]."),
        }
        for i, a in enumerate(whole["attacks"], start=1)
    ]
    return whole


def _typed(
    given: dict[str, Any], empty: Mapping[str, type], path: Path, where: str
) -> dict[str, Any]:
    whole = dict(given)
    for name, kind in empty.items():
        value = given.get(name)
        whole[name] = kind() if value is None else value
        if not isinstance(whole[name], kind):
            wanted = "a list" if kind is list else "an object"
            raise ExhumeError(f"{path}: {where}{name} must be {wanted}, not {type(value).__name__}")
    return whole
