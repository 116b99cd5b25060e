"""Named sets: what there is, and fetching one into the cache."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from exhume.core.contract import ExhumeError, Progress, silent
from exhume.data import cache as store
from exhume.data.cache import Content, Damaged
from exhume.data.download import Unreachable
from exhume.data.sets import SETS, Named, Route
from exhume.settings.sources import unknown_source

__all__ = ["catalogue", "content_of", "fetch"]


def catalogue(*, cache: Path | None = None) -> tuple[Named, ...]:
    """Every named set."""
    return tuple(replace(known, cached=_place(known, cache).is_file()) for known in SETS.values())


def fetch(name: str, *, cache: Path | None = None, progress: Progress = silent) -> Path:
    """The cache file of a named set, brought there if it is absent, replaced if it is damaged."""
    known = _find(name)
    path = _place(known, cache)
    if path.is_file():
        try:
            store.read(path, known.digest)
        except Damaged:
            pass  # what is brought now takes its place
        else:
            return path
    _bring(known, path, progress)
    return path


def content_of(name: str, *, cache: Path | None, progress: Progress) -> Content:
    """What a named set holds; a damaged cache file is refused."""
    known = _find(name)
    path = _place(known, cache)
    return store.read(path, known.digest) if path.is_file() else _bring(known, path, progress)


def _find(name: str) -> Named:
    if name not in SETS:
        raise unknown_source(name, SETS, "no other name")
    return SETS[name]


def _place(known: Named, cache: Path | None) -> Path:
    return store.folder(cache) / f"{known.name}.safetensors"


def _bring(known: Named, path: Path, progress: Progress) -> Content:
    """Try each route in turn; what does not answer is skipped, what is wrong ends the search."""
    failures = []
    for route in known.routes:
        try:
            content = _travel(known, route, progress)
        except Unreachable as error:
            failures.append(str(error))
            continue
        store.write(path, content)
        return content
    tried = f" ({'; '.join(failures)})" if failures else ""
    raise ExhumeError(f"{known.name}: no source can be reached{tried}; {known.by_hand}")


def _travel(known: Named, route: Route, progress: Progress) -> Content:
    with tempfile.TemporaryDirectory(prefix="exhume-") as name:
        route.origin.bring(Path(name), progress)
        stage = f"read {known.name}"
        progress(stage, 0, 1)
        content = route.parse(Path(name))
    if known.digest is not None and content.digest() != known.digest:
        raise ExhumeError(
            f"{known.name}: the content read from {known.source} is not the pinned one and was "
            f"thrown away; {known.by_hand}"
        )
    progress(stage, 1, 1)
    return content
