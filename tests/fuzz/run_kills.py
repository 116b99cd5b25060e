"""Kills runs at every kind of write, goes on with them, and says whether the end is the same.

    python run_kills.py FOLDER WORK:FIRST:COUNT...        WORK: audit, or the name of a study

A process that has imported everything forks one child for each run. A child counts its own writes to the run
folder and kills itself, without a word to Python, at the one that the case draws. One line of JSON a case.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from typer.testing import CliRunner

from exhume.cli import app
from exhume.report.folder import version_now

SMALL = "--data digits --fixed 10 --targets 8 --shadows 10 --steps 3 --hidden 4 --threads 1".split()
POINTS = tuple(
    f"{when} {what}"
    for what in ("open", "write", "fsync", "replace", "mkdir", "chmod", "unlink")
    for when in ("before", "after")
)
IMPORTED_LATE = (  # during an audit, and otherwise in every child anew
    "exhume.auditing.kinds",
    "exhume.auditing.attack",
    "torch.fx.experimental.symbolic_shapes",
)
MOST = 12  # calls of one kind, about as many as a small run makes


def answer(content: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(content)}\n")
    sys.stdout.flush()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Counted:
    """The writes below a folder, counted; at the n-th of one kind the process is gone."""

    def __init__(self, folder: Path, point: str, nth: int) -> None:
        self.folder, self.point, self.nth = str(folder), point, nth

    def tick(self, point: str) -> None:
        if point == self.point:
            self.nth -= 1
            if self.nth == 0:
                die()

    def around(self, what: str, real: Callable[..., Any], *, anywhere: bool = False) -> Any:
        def call(first: Any, *given: Any, **more: Any) -> Any:
            ours = anywhere or str(first).startswith(self.folder)
            if what == "open":  # only what is made anew
                ours = ours and bool(given and given[0] & os.O_CREAT)
            if not ours:
                return real(first, *given, **more)
            self.tick(f"before {what}")
            result = real(first, *given, **more)
            self.tick(f"after {what}")
            return result

        return call

    def opened(self, descriptor: int, mode: str = "r", *given: Any) -> Any:
        counted = self

        class Writer(io.BufferedWriter):
            """Killed `before`, it has written half."""

            def write(self, content: Any) -> int:
                if counted.point == "before write" and counted.nth == 1:
                    super().write(content[: len(content) // 2])
                    self.flush()
                counted.tick("before write")
                count = super().write(content)
                counted.tick("after write")
                return count

        return Writer(io.FileIO(descriptor, "wb")) if mode == "wb" else FDOPEN(descriptor, mode)

    def watch(self) -> None:
        os.open = self.around("open", os.open)
        os.fsync = self.around("fsync", os.fsync, anywhere=True)
        os.replace = self.around("replace", os.replace)
        os.mkdir = self.around("mkdir", os.mkdir)
        os.chmod = self.around("chmod", os.chmod)
        os.unlink = self.around("unlink", os.unlink)
        os.fdopen = self.opened


FDOPEN = os.fdopen


def command(work: str, out: Path) -> list[str]:
    if work == "audit":
        return ["audit", *SMALL, "--out", str(out)]
    return ["study", "run", work, "--scale", "smoke", "--out", str(out)]


def child(work: str, out: Path, kill: tuple[str, int] | None) -> int:
    """Run it in a fork: its exit code, negative where it was killed."""
    pid = os.fork()
    if pid == 0:
        if kill is not None:
            Counted(out, *kill).watch()
        result = CliRunner().invoke(app, command(work, out))
        if result.exit_code:
            (out.parent / "said").write_text(result.output)
        os._exit(result.exit_code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {n: without_times(v) for n, v in value.items() if not n.endswith("seconds")}
    if isinstance(value, str):
        return re.sub(r"\d+\.\d+ s\b", "- s", value)  # a claim that says how long it took
    return [without_times(item) for item in value] if isinstance(value, list) else value


def timeless(path: Path) -> str:
    """The bytes of a shard; if it keeps how long it took, those of its other tensors."""
    with safe_open(path, "numpy") as shard:
        names = list(shard.keys())
        if "seconds" not in names:
            return path.read_bytes().hex()
        kept = [name for name in names if name != "seconds"]
        return str(
            [(n, shard.get_tensor(n).dtype, shard.get_tensor(n).tobytes().hex()) for n in kept]
        )


def content(out: Path) -> dict[str, str]:
    """Everything that a run leaves; of its result, shards and page, all but how long it took."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir() or path.suffix == ".html":
            found[name] = "there"
        elif path.name == "result.json":
            found[name] = json.dumps(without_times(json.loads(path.read_text())))
        elif path.parent.name == "shards":
            found[name] = timeless(path)
        else:
            found[name] = path.read_bytes().hex()
    return found


def readable(out: Path) -> list[str]:
    """What others could read or list."""
    if not out.exists():
        return []
    inside = [out, *out.rglob("*")]
    return [str(p.relative_to(out)) for p in inside if p.stat().st_mode & 0o077]


def kill_and_go_on(work: str, case: int, out: Path, whole: dict[str, str]) -> dict[str, object]:
    shutil.rmtree(out, ignore_errors=True)
    chance = random.Random(f"kill {work} {case}")
    kills, open_to_others = 0, []
    for point, nth in drawn(case, chance):
        kills += child(work, out, (point, nth)) == -signal.SIGKILL
        open_to_others += readable(out)
    code = child(work, out, None)
    after = content(out)
    differ = sorted(n for n in {*whole, *after} if whole.get(n) != after.get(n))
    return {
        "case": f"{work}:{case}",
        "kills": kills,
        "code": code,
        "differ": differ,
        "readable": open_to_others + readable(out),
    }


def drawn(case: int, chance: random.Random) -> list[tuple[str, int]]:
    """Where this case is killed: every kind of write in turn, half of them twice.

    The first call of a kind always comes; another one may not, and then that run ends by itself.
    """
    point = POINTS[case % len(POINTS)]
    if "unlink" in point:  # nothing is removed before something was left
        return [("before replace", chance.randint(1, 6)), (point, 1)]
    often = point.split()[1] in ("open", "write", "fsync", "replace")
    first = (point, chance.randint(1, 6) if often else 1)
    return [first, *[(chance.choice(POINTS), chance.randint(1, MOST))] * chance.randint(0, 1)]


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    audits_only = all(part.startswith("audit:") for part in sys.argv[2:])
    os.umask(0)  # so that only what is asked for protects a file
    for name in IMPORTED_LATE if audits_only else ("exhume.studies",):
        import_module(name)
    version_now()  # of the code as it is now, whoever edits it meanwhile
    folder = Path(sys.argv[1])
    for part in sys.argv[2:]:
        work, first, count = part.split(":")
        code = child(work, folder / f"whole {work}", None)
        whole = content(folder / f"whole {work}")
        answer({"work": work, "code": code, "files": sorted(whole)})
        for case in range(int(first), int(first) + int(count)):
            answer(kill_and_go_on(work, case, folder / "killed", whole))


main()
