"""The run folder: settings, environment, result, tensors and shards of one run, for its owner's eyes only.

It says which version did the work in it: the package, torch, and the code that decides bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Progress, silent
from exhume.core.results import Findings
from exhume.settings import Brief
from exhume.settings.schema import settings_of, toml_at
from exhume.store.scale import place
from exhume.store.shards import (
    FolderStore,
    leftover_of,
    remove_leftovers,
    write_atomically,
    write_shard,
)

MARKER = ".exhume-run"
LOCK = ".lock"
MIXED = "mixed with "
_DECIDE = ("train", "models", "attacks")  # folders whose code decides what a stored piece holds


@dataclass(frozen=True)
class RunFolder:
    path: Path
    resumed_from: str = ""  # the other version whose work is gone on with

    @staticmethod
    @contextmanager
    def claimed(
        path: Path, *, resume_anyway: bool = False, progress: Progress = silent
    ) -> Iterator[RunFolder]:
        """The folder, for this process alone: a second one waits, then finds the first one's work done."""
        _make(path)
        with _private(path / LOCK) as lock:
            _lock(lock.fileno(), f"waiting for another process that works in {path}", progress)
            remove_leftovers(path, below=True)
            yield RunFolder.create(path, resume_anyway=resume_anyway)

    @staticmethod
    def create(path: Path, *, resume_anyway: bool = False) -> RunFolder:
        """Make the folder, or take up an earlier run in it; only its owner can read it.

        A folder that holds anything else is left as it is, and so is the work of another version, unless
        that is asked for.
        """
        begun = _make(path)
        folder = RunFolder(path)
        before = other_version(path / MARKER) if begun and folder.has_work() else ""
        if before and not resume_anyway and not before.startswith(MIXED):
            raise ExhumeError(
                f"{path} holds the work of another version ({before}; this is {version_now()}), and mixing "
                "the two gives numbers of neither: choose another --out, or go on with --resume-anyway"
            )
        before = before.removeprefix(MIXED)
        note = "A run folder of exhume. It holds private records."
        content = {"note": note, "version": version_now(), "before": before}
        write_atomically(path / MARKER, f"{json.dumps(content)}\n".encode())
        return replace(folder, resumed_from=before)

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    def has_work(self) -> bool:
        """Whether a run got as far as leaving anything worth keeping."""
        return (self.path / "result.json").exists() or any(self.path.glob("shards/*.safetensors"))

    def store(self) -> FolderStore:
        return FolderStore(self.path / "shards")

    def write_config(self, text: str) -> None:
        write_atomically(self.config, text.encode())

    def write_text(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
        write_atomically(self.path / name, f"{text}\n".encode())

    def keep(self, findings: Findings) -> Findings:
        """Write the records behind a finding; its section says where they are."""
        if not findings.evidence:
            return findings
        name = f"{findings.section.spec.id}.safetensors"
        self.write_tensors(name, findings.evidence)
        return replace(findings, section=replace(findings.section, evidence=name))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        write_shard(self.path / name, tensors)


def _make(path: Path) -> bool:
    """Make the folder, for its owner alone; whether an earlier run is in it. Other folders are refused."""
    if path.is_symlink():  # what it leads to is not ours to close to others
        raise ExhumeError(
            f"cannot use {path} as run folder: it is a link; name the folder that it leads to"
        )
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        ours = (path / MARKER).exists()
        if not ours and not all(_begun(inside) for inside in path.iterdir()):
            raise ExhumeError(
                f"cannot use {path} as run folder: it holds other files; choose a new or empty one"
            )
        path.chmod(0o700)
    except OSError as error:
        raise ExhumeError(f"cannot use {path} as run folder: {error.strerror or error}") from error
    if not os.access(path, os.W_OK):
        raise ExhumeError(f"cannot use {path} as run folder: it is read-only")
    return ours


def _begun(path: Path) -> bool:
    """What a run leaves that was killed before its marker was there."""
    return leftover_of(path) == MARKER or (path.name == LOCK and path.stat().st_size == 0)


def _private(path: Path) -> IO[str]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        path.chmod(0o600)
    except OSError as error:
        raise ExhumeError(f"cannot write {path}: {error.strerror or error}") from error
    return os.fdopen(descriptor, "w")


def _lock(descriptor: int, waiting: str, progress: Progress) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress(waiting, 0, 1)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        progress(waiting, 1, 1)


@cache
def version_now() -> str:
    """In words; the same words, the same bits may be expected."""
    source = Path(__file__).parents[1]
    state = hashlib.sha256()
    for path in sorted(p for room in _DECIDE for p in (source / room).rglob("*.py")):
        state.update(f"{path.relative_to(source)}\n".encode() + path.read_bytes())
    return f"exhume {version('exhume')}, torch {torch.__version__}, code {state.hexdigest()[:12]}"


def other_version(marker: Path) -> str:
    """The version that a marker names, if it is another one; what this version has gone on from is marked."""
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
        found, before = str(content["version"]), str(content.get("before", ""))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return "an earlier one that left no name"
    if found == version_now():
        return f"{MIXED}{before}" if before else ""
    return found if not before else f"{found}, itself mixed with {before}"


def environment() -> dict[str, str | int]:
    """Where a run took place: enough to know which bits can be expected again."""
    return {
        "exhume": version("exhume"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        **place(),
    }


def _cpu() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


# The brief that it holds


def resume_or_refuse(
    folder: RunFolder, brief: Brief, digests: Mapping[str, str] | None = None
) -> Brief:
    """The brief of the run that this folder holds, if it is the same; else this one, written down.

    brief: resolved. digests: of what is no file but decides the result, such as a model in memory; files
    that the brief names are digested here. Threads and chunk decide the bits: an earlier run keeps its own.
    """
    digests = {**_files_of(brief), **(digests or {})}
    if folder.config.exists():
        content = toml_at(folder.config)
        earlier = Brief.from_mapping(content, where=str(folder.config))
        same = _without_machine(brief) == _without_machine(earlier)
        if same and content.get("digests", {}) == digests:
            return earlier
        if folder.has_work():
            raise ExhumeError(
                f"{folder.path} holds a run with other settings (see its config.toml): "
                "choose another --out, or delete it"
            )
    folder.write_config(brief.toml(digests))
    return brief


def refuse_inside_data(out: Path, brief: Brief) -> None:
    """A run folder inside the data would become data at the next run. brief: resolved."""
    named = ("data", "trained_on", "decoys")
    sections = brief.releases().values()
    own = [getattr(section, name, "") for section in sections for name in named]
    for source in filter(None, (brief.settings.data.source, *own)):
        for named_path in filter(None, (source, source.rpartition(":")[0])):
            try:
                inside = Path(named_path).is_dir() and out.resolve().is_relative_to(
                    Path(named_path).resolve()
                )
            except (
                OSError,
                ValueError,
            ):  # a name that no file can have is refused where it is read
                continue
            if inside:
                raise ExhumeError(
                    f"--out: {out} lies inside the data, {source}; choose another place"
                )


def _without_machine(brief: Brief) -> str:
    """As a file, but for what an earlier run decides."""
    settings = replace(brief.settings, machine=type(brief.settings.machine)())
    releases: dict[str, Any] = dict(brief.releases())
    sections = {
        name: replace(section, threads=0) if "threads" in settings_of(section) else section
        for name, section in releases.items()
    }
    return replace(brief, settings=settings).with_releases(sections).toml()


def _files_of(brief: Brief) -> dict[str, str]:
    """Digests of the files and folders of weights that the brief names, where they exist."""
    sections = {"victim": brief.settings.victim, **brief.releases()}
    return {
        f"{section}_{name}": _digest_of_files(Path(getattr(values, name)))
        for section, values in sections.items()
        for name, (_, known) in settings_of(values).items()
        if known.file and getattr(values, name) and Path(getattr(values, name)).exists()
    }


def _digest_of_files(path: Path) -> str:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path)} {file.stat().st_size} ".encode())
        with file.open("rb") as opened:
            while piece := opened.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()[:16]
