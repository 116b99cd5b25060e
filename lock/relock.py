"""Writes the files beside it: all that `make demo`, `make test` and `make docs` install, with hashes.

    make lock                            keeps every version that still fits
    rm lock/*.txt && make lock           takes the newest that constraints.txt allows

uv resolves once for every platform and every Python from 3.11, and lists each file of a release. The files
are layers: `test.txt` has what `demo.txt` lacks, `serve.txt` what both lack; `build.txt` is there before
`test.txt`, so that what comes as source is built with nothing unchecked. torch stands apart, since it has
more than one source: `torch-cpu.txt` is a build without GPUs, which `make` tries first; `torch.txt` is that
of the index, with what it needs. The build that pip takes on this machine joins the hashes of `torch-
cpu.txt`. No file names an index.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
TORCH = re.compile(
    r"(nvidia|cuda)-|(triton|torch)$"
)  # torch, and what only its builds for GPUs need
BACKENDS = ["setuptools", "wheel", "cython"]  # of what comes as source (riskcal), with numpy
Locked = dict[str, tuple[str, ...]]  # "name==1.0 ; marker" and its hashes


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    build = [*project["build-system"]["requires"], "editables"]  # the latter for `pip install -e`
    core = [*project["project"]["dependencies"], *build]
    files = ("demo", "torch", "torch-cpu", "build", "test", "serve", "docs")
    before = {name: read(HERE / f"{name}.txt") for name in files}

    old = before["demo"] | before["torch"] | before["build"] | before["test"]
    whole = resolved([*core, *BACKENDS, *flat(extras, "test")], prefer=old)
    demo = resolved(core, prefer=whole)
    build = resolved(BACKENDS, prefer=whole)
    serve = resolved([*core, *flat(extras, "serve")], prefer=whole | before["serve"])
    layers = {
        "demo": {line: hashes for line, hashes in demo.items() if not TORCH.match(name_of(line))},
        "torch": {line: hashes for line, hashes in demo.items() if TORCH.match(name_of(line))},
        "torch-cpu": other_torch(demo, before["torch-cpu"]),
        "build": {line: hashes for line, hashes in build.items() if line not in demo},
        "test": {line: hashes for line, hashes in whole.items() if line not in demo | build},
        "serve": {line: hashes for line, hashes in serve.items() if line not in whole},
        "docs": resolved(flat(extras, "docs"), prefer=before["docs"], python="3.11.5"),
    }
    for name, locked in layers.items():
        (HERE / f"{name}.txt").write_text(written(locked))


def flat(extras: dict[str, list[str]], name: str) -> list[str]:
    """Requirements of an extra, those of the extras that it names in their place."""
    found = []
    for requirement in extras[name]:
        own = re.fullmatch(r"exhume\[(.*)\]", requirement)
        parts = own[1].split(",") if own else []
        found += [line for part in parts for line in flat(extras, part)] or [requirement]
    return found


def resolved(requirements: list[str], *, prefer: Locked, python: str = "3.11") -> Locked:
    """The closure of requirements within constraints.txt, with versions of `prefer` where they fit."""
    scratch = HERE / ".resolved.txt"
    scratch.write_text(written(prefer))
    options = f"--universal --python-version {python} --generate-hashes --quiet"
    shape = "--no-config --no-header --no-annotate --no-strip-extras"
    uv = [Path(sys.executable).with_name("uv"), "pip", "compile", *options.split(), *shape.split()]
    lines = "\n".join(requirements)
    files = ["-c", ROOT / "constraints.txt", "-o", scratch, "-"]
    try:
        subprocess.run([*uv, *files], input=lines, text=True, check=True, cwd=ROOT)
        return read(scratch)
    finally:
        scratch.unlink(missing_ok=True)


def other_torch(demo: Locked, before: Locked) -> Locked:
    """torch as this machine gets it, where that is another build than the index has; else as `before`."""
    (line,) = (line for line in demo if name_of(line) == "torch")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
    ask = [*pip, "--ignore-installed", "--report", "-", line]
    said = subprocess.run(ask, stdout=subprocess.PIPE, text=True, check=True)
    (taken,) = json.loads(said.stdout)["install"]
    build = f"torch=={taken['metadata']['version']}"
    if build == line:
        return {other: hashes for other, hashes in before.items() if other.startswith(f"{line}+")}
    digest = taken["download_info"]["archive_info"]["hashes"]["sha256"]
    return {build: tuple(sorted({*before.get(build, ()), f"sha256:{digest}"}))}


def name_of(line: str) -> str:
    return re.split(r"[\[=]", line)[0]


def read(path: Path) -> Locked:
    """Requirements of a lock file and their hashes."""
    if not path.exists():
        return {}
    entries = path.read_text().replace("\\\n", " ").splitlines()
    split = (entry.split("--hash=") for entry in entries if entry and not entry.startswith("#"))
    return {line.strip(): tuple(part.strip() for part in hashes) for line, *hashes in split}


def written(locked: Locked) -> str:
    entries = (
        " \\\n    ".join([line, *(f"--hash={one}" for one in hashes)])
        for line, hashes in locked.items()
    )
    return "# made by `make lock`\n" + "".join(f"{entry}\n" for entry in entries)


if __name__ == "__main__":
    main()
