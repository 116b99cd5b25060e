"""Gives hostile files to the command line, in a process whose memory is limited, and says how it ended.

    python run_hostile.py FOLDER SOUND KIND:FIRST:COUNT...

One line of JSON for each case; the last one says what memory all of them took at most, in MiB.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import sys
import warnings
from pathlib import Path

import torch
from hostile_files import KINDS
from typer.testing import CliRunner

from exhume.cli import app

SPACE = 3 << 30  # bytes of address space beyond what the process has once everything is imported


def answer(content: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(content)}\n")
    sys.stdout.flush()


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + SPACE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def run(kind: str, case: int, folder: Path, sound: Path) -> dict[str, object]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    chance = random.Random(f"{kind} {case}")
    if kind in KINDS:
        arguments = KINDS[kind](chance, folder)
    else:
        from hostile_runs import RUNS

        arguments = RUNS[kind](chance, folder, sound)
    result = CliRunner().invoke(app, arguments, catch_exceptions=True)
    raised = result.exception
    return {
        "case": f"{kind}:{case}",
        "code": result.exit_code,
        "output": result.output[-3000:],
        "raised": "" if isinstance(raised, SystemExit | None) else repr(raised),
        "peak": peak(),
    }


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder, sound = Path(sys.argv[1]), Path(sys.argv[2])
    for kind in ("csv", "folders", "hub", "pt", "skops"):  # everything imported, before the limit
        run(kind, -1, folder, sound)
    limit()
    before = peak()
    for part in sys.argv[3:]:
        kind, first, count = part.split(":")
        for case in range(int(first), int(first) + int(count)):
            answer(run(kind, case, folder, sound))
    answer({"grown": peak() - before, "before": before})


main()
