"""A run folder keeps to the brief it began with: the same run goes on, another one is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exhume.core.contract import ExhumeError
from exhume.report.folder import RunFolder
from exhume.settings import Brief
from exhume.settings.schema import settings_of, toml_at

__all__ = ["refuse_inside_data", "resume_or_refuse"]


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
        for place in filter(None, (source, source.rpartition(":")[0])):
            try:
                inside = Path(place).is_dir() and out.resolve().is_relative_to(
                    Path(place).resolve()
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
        f"{section}_{name}": _digest(Path(getattr(values, name)))
        for section, values in sections.items()
        for name, (_, known) in settings_of(values).items()
        if known.file and getattr(values, name) and Path(getattr(values, name)).exists()
    }


def _digest(path: Path) -> str:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path)} {file.stat().st_size} ".encode())
        with file.open("rb") as opened:
            while piece := opened.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()[:16]
