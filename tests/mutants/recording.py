"""What each test executes, how long it takes and how much memory: a plugin, `pytest -p recording`.

Environment: EXHUME_RECORD is the folder to write to. Each process leaves `coverage.NAME` (lines by test, a
shared fixture as a context of its own) and `tests.NAME.jsonl`: a row a test (its own seconds, CPU seconds
with those of its processes, the peak of this process's memory, the shared fixtures that it used) and a row a
set-up of such a fixture.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

FOLDER = Path(os.environ["EXHUME_RECORD"]).resolve()
WORKER = os.environ.get("PYTEST_XDIST_WORKER", f"main{os.getpid()}")
SOURCE = Path(os.environ.get("EXHUME_SOURCE", "src/exhume")).resolve()
BEFORE = "between tests"

FOLDER.mkdir(parents=True, exist_ok=True)
_lines = coverage.Coverage(
    data_file=str(FOLDER / f"coverage.{WORKER}"), config_file=False, include=[f"{SOURCE}/*"]
)
_lines.start()
_contexts = [BEFORE]
_set_up: dict[pytest.FixtureDef[Any], str] = {}
_number = itertools.count()
_shared = [0.0]  # seconds of all set-ups of shared fixtures
_USED = pytest.StashKey[list[str]]()


def _enter(context: str) -> None:
    _contexts.append(context)
    _lines.switch_context(context)


def _leave() -> None:
    _contexts.pop()
    _lines.switch_context(_contexts[-1])


def _processor_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def _name(item: pytest.Item) -> str:
    """The test's name without the group that xdist appends to it."""
    group = item.get_closest_marker("xdist_group")
    if group is None:
        return item.nodeid
    return item.nodeid.removesuffix(f"@{group.args[0] if group.args else group.kwargs['name']}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    began, worked, before = time.perf_counter(), _processor_seconds(), _shared[0]
    _enter(name := _name(item))
    result = yield
    _leave()
    row = {
        "test": name,
        "seconds": time.perf_counter() - began - (_shared[0] - before),
        "cpu": _processor_seconds() - worked,
        "peak": _peak_bytes(),
        "fixtures": item.stash.get(_USED, []),
    }
    _write(row)
    return result


def _write(row: dict[str, Any]) -> None:
    with (FOLDER / f"tests.{WORKER}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    """The set-up of a shared fixture is a context of its own: every test that uses it executes its lines."""
    if fixturedef.scope == "function":
        return (yield)
    name = f"fixture {fixturedef.baseid}::{fixturedef.argname} {WORKER} {next(_number)}"
    _set_up[fixturedef] = name
    _enter(name)
    began, before = time.perf_counter(), _shared[0]
    try:
        return (yield)
    finally:
        _leave()
        own = time.perf_counter() - began - (_shared[0] - before)
        _shared[0] += own
        _write({"fixture": name, "seconds": own})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """By now the item has all its fixtures, those asked for by name at run time included."""
    used = getattr(getattr(item, "_request", None), "_fixture_defs", {}).values()
    item.stash[_USED] = sorted({_set_up[one] for one in used if one in _set_up})
    return (yield)


def pytest_unconfigure() -> None:
    _lines.stop()
    _lines.save()
