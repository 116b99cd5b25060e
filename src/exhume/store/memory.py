"""More than the memory holds, said before anything is read rather than after being killed halfway.

What counts is what this process may use: a container's limit (cgroup v2 or v1, at any level), a limit of
its address space, and what nobody else has taken of the machine's memory.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from exhume.core.contract import ExhumeError
from exhume.core.notation import CEILING

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/meminfo")


_UNITS = {"MB": 1e6, "GB": 1e9}


def ceiling() -> float:
    """Bytes that the user allows at most."""
    text = os.environ.get(CEILING, "")
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([MG]B)", text.strip())
    if text and found is None:
        raise ExhumeError(f"{CEILING} (--ceiling): {text!r} is no size such as 500MB or 4GB")
    return float(found[1]) * _UNITS[found[2]] if found else float("inf")


def check_memory(needed: int, what: str) -> None:
    """needed: bytes. what: begins the sentence, such as `photos: 5 records of 1x8x8`."""
    memory = memory_free()
    if needed > memory:
        raise ExhumeError(
            f"{what} need {size_of(needed)} of memory, {size_of(memory)} are free; pass fewer or smaller ones"
        )


def size_of(count: int | float) -> str:
    """Bytes as people say them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def memory_here() -> float:
    """Bytes that this process may use at most."""
    if sys.platform == "win32":
        return float("inf")
    import resource

    machine = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [] if space == resource.RLIM_INFINITY else [float(space)]
    return min(machine, *limits, *_group_limits(_GROUPS, _OWN_GROUPS), ceiling())


def memory_free(machine: Path = _MACHINE) -> float:
    """Bytes that are not taken now, by anybody; where the system does not say, those allowed at most."""
    try:
        lines = machine.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):  # no such system
        return memory_here()
    free = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return min(memory_here(), *(1024.0 * int(kib) for kib in free))


def _group_limits(groups: Path, own_groups: Path) -> Iterator[float]:
    """Limits of the groups that this process is in, and of those above them.

    groups: where the system shows them; own_groups: a line for each, `number:kinds:/path`. A container may
    see its own group as the root, so that a path that is not there counts from the root.
    """
    try:
        lines = own_groups.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # no such system
        return
    for line in lines:
        _, kinds, place = line.split(":", 2)
        if not kinds:
            roots, name = [groups, groups / "unified"], "memory.max"
        elif "memory" in kinds.split(","):
            roots, name = [groups / "memory"], "memory.limit_in_bytes"
        else:
            continue
        path = PurePosixPath(place.lstrip("/"))
        for root in roots:
            for level in (path, *path.parents):
                yield from _number_in(root / level / name)


def _number_in(path: Path) -> Iterator[float]:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # the root has no limit of its own
        return
    if text.isdecimal():  # else "max"
        yield float(text)
