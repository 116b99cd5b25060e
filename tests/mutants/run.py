"""`make mutants`: plants mistakes, counts those that a test notices, prints the share of each room.

    python tests/mutants/run.py --out FOLDER [--seed 0] [--tree DIR] [--record DIR]

1. The tests run once, recorded (`recording.py`): which lines each executes, how long it takes.
2. For each mutant, in a copy of the tree, the tests that execute its line run, fastest first, until one
   fails; of very many only the fastest: see `SECONDS`. A mutant whose tests do not end is noticed, too.
Finished mutants are kept in FOLDER/mutants.jsonl: the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

import coverage
from planting import ROOMS, Mutant, plant

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 25.0  # of tests a mutant, by the time that they take unchanged
PATIENCE = 4.0  # times as long may they take, and a minute more, before they count as endless
NOTICED = {1: "failed", 2: "failed", 3: "failed", 4: "failed"}  # pytest's exit codes
RECORD_TESTS = (
    "not (slow or hostile or ray or serve or flower or browser or network)"  # what is near
)


def main() -> None:
    options = arguments()
    tree, out = options.tree.resolve(), options.out.resolve()
    record = (options.record or out / "record").resolve()
    if not list(record.glob("tests.*.jsonl")):
        record_tests(tree, record, options.select, options.processes)
    tests = Tests(record, tree / "src" / "exhume")
    mutants = plant(tree / "src" / "exhume", options.seed)
    kept = out / "mutants.jsonl"
    done = {row["name"]: row for row in rows_of([kept])} if kept.exists() else {}
    left = [m for m in mutants if m.name not in done]
    copies: SimpleQueue[Path] = SimpleQueue()
    for index in range(options.processes):
        copies.put(copy_of(tree, out / f"tree{index}"))

    def one(mutant: Mutant) -> dict[str, object]:
        copy = copies.get()
        try:
            return {**asdict(mutant), "name": mutant.name, **meet(mutant, tests, copy)}
        finally:
            copies.put(copy)

    began = time.monotonic()
    with ThreadPoolExecutor(options.processes) as pool, kept.open("a") as file:
        for count, row in enumerate(pool.map(one, left), 1):
            file.write(json.dumps(row) + "\n")
            file.flush()
            done[str(row["name"])] = row
            ahead = (time.monotonic() - began) / count * (len(left) - count) / 60
            print(
                f"{count}/{len(left)} {row['name']}: {row['end']}, {ahead:.0f} min left", flush=True
            )
    page = summary([done[m.name] for m in mutants])
    (out / "summary.md").write_text(page)
    print(page)
    if options.keep:
        (HERE / "survivors.md").write_text(page)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutants")
    parser.add_argument(
        "--tree", type=Path, default=ROOT, help="the checkout whose tests are tried"
    )
    parser.add_argument("--record", type=Path, help="a recorded run of these tests")
    parser.add_argument("--select", default=RECORD_TESTS, help="pytest's -m of the recorded run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="write survivors.md")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def record_tests(tree: Path, record: Path, select: str, processes: int) -> None:
    """Run the tests once and note what each executes."""
    command = [sys.executable, "-m", "pytest", "-p", "recording", "-m", select]
    command += ["-n", str(processes), "--dist", "loadgroup"]
    paths = f"{tree / 'src'}{os.pathsep}{HERE}"
    environment = {"PYTHONPATH": paths, "EXHUME_RECORD": str(record), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tree, env={**os.environ, **environment}, check=False)
    if ended.returncode:
        shutil.rmtree(record, ignore_errors=True)
        sys.exit("mutants: the tests must pass before anything is planted")


class Tests:
    """The recorded tests: what each takes, and which execute a line."""

    def __init__(self, record: Path, source: Path) -> None:
        rows = list(rows_of(sorted(record.glob("tests.*.jsonl"))))
        shared = {row["fixture"]: float(row["seconds"]) for row in rows if "fixture" in row}
        rows = [row for row in rows if "test" in row]
        self.seconds = {  # as if it ran alone
            row["test"]: float(row["seconds"]) + sum(shared.get(f, 0.0) for f in row["fixtures"])
            for row in rows
        }
        self.of_fixture: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            for fixture in row["fixtures"]:
                self.of_fixture[fixture].add(row["test"])
        self.by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.by_file: dict[str, set[str]] = defaultdict(set)
        for path in record.glob("coverage.*"):
            data = coverage.CoverageData(str(path))
            data.read()
            for file in data.measured_files():
                where = file.split("/src/exhume/")[-1]
                for line, contexts in data.contexts_by_lineno(file).items():
                    named = set().union(*(self._tests(one) for one in contexts))
                    self.by_line[where, line] |= named
                    self.by_file[where] |= named
        assert source.exists()

    def _tests(self, context: str) -> set[str]:
        if context.startswith("fixture "):
            return self.of_fixture.get(context, set())
        return {context} if context in self.seconds else set()

    def that_execute(self, mutant: Mutant) -> list[str]:
        """The tests to run, fastest first: those of the line; of its file, if it runs at import alone."""
        named = self.by_line[mutant.file, mutant.line] or self.by_file[mutant.file]
        chosen, total = [], 0.0
        for test in sorted(named, key=lambda one: self.seconds[one]):
            total += self.seconds[test]
            if chosen and total > SECONDS:
                break
            chosen.append(test)
        return chosen


def meet(mutant: Mutant, tests: Tests, copy: Path) -> dict[str, object]:
    """Change the line in a copy of the tree, run the tests, change it back."""
    chosen = tests.that_execute(mutant)
    if not chosen:
        return {"end": "no test", "tests": 0, "seconds": 0.0}
    path = copy / "src" / "exhume" / mutant.file
    original = path.read_text()
    lines = original.splitlines(keepends=True)
    lines[mutant.line - 1] = lines[mutant.line - 1].replace(mutant.before, mutant.after)
    path.write_text("".join(lines))
    listed = copy / "chosen.txt"
    listed.write_text("\n".join(chosen))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", ""]
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    began = time.monotonic()
    limit = int(60 + PATIENCE * sum(tests.seconds[test] for test in chosen))
    try:
        ended = subprocess.run(
            [*command, f"@{listed}"],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=20 * limit,  # a busy machine gives it little
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
            check=False,
        )
        end = NOTICED.get(ended.returncode, "survived")
        by = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))][
            :1
        ]
        if ended.returncode in {-signal.SIGXCPU, -signal.SIGKILL}:
            end = "endless"
        if ended.returncode == 4 and "not found" in ended.stderr:
            sys.exit(f"mutants: a recorded test is not there: {ended.stderr[-500:]}")
    except subprocess.TimeoutExpired:
        end, by = "endless", []
    finally:
        path.write_text(original)
    seconds = round(time.monotonic() - began, 1)
    return {"end": end, "tests": len(chosen), "seconds": seconds, "by": " ".join(by)[:200]}


def copy_of(tree: Path, copy: Path) -> Path:
    """The files that git knows or would, without the rest."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=tree, capture_output=True, text=True, check=True)
    shutil.rmtree(copy, ignore_errors=True)
    for name in files.stdout.splitlines():
        if (tree / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree / name, copy / name)
    return copy


def rows_of(paths: Iterable[Path]) -> Iterable[dict[str, object]]:
    for path in paths:
        yield from (json.loads(line) for line in path.read_text().splitlines())


def summary(rows: list[dict[str, object]]) -> str:
    """The share noticed in each room, then what nobody noticed."""
    lines = ["| room | planted | noticed | share |", "|---|---|---|---|"]
    for room in (*ROOMS, "all"):
        here = [row for row in rows if room in (row["room"], "all")]
        noticed = sum(row["end"] in {"failed", "endless"} for row in here)
        lines.append(f"| {room} | {len(here)} | {noticed} | {noticed / max(1, len(here)):.2f} |")
    lines += ["", "Survivors:", ""]
    for row in rows:
        if row["end"] not in {"failed", "endless"}:
            lines.append(f"- {row['name']} ({row['end']}, {row['tests']} tests)")
            lines.append(f"  `{row['before']}` → `{row['after']}`")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
