"""Named sets: what each is, where it comes from, what its content must be; and fetching one into the cache.

Sources are tried in order: the canonical one, then a package by name. The digest is of the parsed
content, so it is the same for every source; that of MNIST and CIFAR-10 agrees with the published
checksums of the canonical files.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from exhume.core.contract import ExhumeError, Progress, silent
from exhume.readers.image_sets import (
    CIFAR10,
    CIFAR100,
    faces_wheel,
    from_strips,
    idx_folder,
    mnist_wheel,
    read_cifar,
    sklearn_digits,
)
from exhume.readers.images import Pixels
from exhume.readers.sentences import TextPairs, tabbed_zip
from exhume.settings.sources import NAMED_SETS, unknown_source
from exhume.store import cache as shelf
from exhume.store.cache import Content, Damaged
from exhume.store.download import (
    File,
    Nothing,
    Npm,
    Origin,
    Pip,
    SourceUnreachable,
    Web,
    tar_members,
)


@dataclass(frozen=True)
class Route:
    """One way to a set: a source, and the reader of what it brings into a folder."""

    origin: Origin
    parse: Callable[[Path], Content]


@dataclass(frozen=True)
class Named:
    """A set that can be asked for by name: one section of `settings/sets.toml`."""

    name: str
    description: str
    kind: str  # "images" or "sentence pairs"
    records: int
    shape: tuple[int, ...]  # of one record; () for sentence pairs
    source: str
    download_mb: int  # of the larger route; 0: nothing to download
    by_hand: str  # what to do where no route works
    routes: tuple[Route, ...]
    digest: str | None = None  # of the parsed content; None: not known, the recorded one counts
    cached: bool = False  # known where the cache has been looked at


def _english_french(sdist: Path) -> TextPairs:
    member = "nmt-0.0.6/data/fra-eng.zip"
    archive = tar_members(sdist, member.__eq__)[member]
    return tabbed_zip(io.BytesIO(archive), "fra-eng.zip", ("en", "fr"))


_READERS: Mapping[str, Mapping[str, Callable[[Path], Pixels | TextPairs]]] = {
    "mnist": {"web": lambda file: idx_folder(file.parent, classes=10), "pip": mnist_wheel},
    "cifar10": {"web": lambda file: read_cifar(file, CIFAR10), "npm": from_strips},
    "faces": {"pip": faces_wheel},
    "cifar100": {"web": lambda file: read_cifar(file, CIFAR100)},
    "en-fr": {"pip": _english_french},
}  # of the first file that a source brings


def _route(name: str, way: str) -> Route:
    said = NAMED_SETS[name][way]
    files = tuple(File(file, sha256) for file, sha256 in said["files"].items())
    origin: Origin = Npm(said.get("package", ""), files[0])
    if way == "web":
        origin = Web(said["base"], files)
    elif way == "pip":
        origin = Pip(said["package"], files[0], "build" not in said, said.get("build", ""))
    read = _READERS[name][way]
    return Route(origin, lambda folder: read(folder / files[0].name).content())


def _named(name: str) -> Named:
    said = NAMED_SETS[name]
    plain = {field.name: said[field.name] for field in fields(Named) if field.name in said}
    routes = tuple(_route(name, way) for way in ("web", "pip", "npm") if way in said)
    if name == "digits":
        routes = (Route(Nothing(), lambda _: sklearn_digits().content()),)
    return Named(**{**plain, "name": name, "shape": tuple(said["shape"]), "routes": routes})


SETS = {name: _named(name) for name in NAMED_SETS}


# Fetching


def catalogue() -> tuple[Named, ...]:
    """Every named set."""
    return tuple(replace(known, cached=_place(known).is_file()) for known in SETS.values())


def fetch(name: str, *, progress: Progress = silent) -> Path:
    """The cache file of a named set, brought there if it is absent, replaced if it is damaged."""
    try:
        content_of(name, progress=progress)
    except Damaged:  # what is brought now takes its place
        _bring(SETS[name], _place(SETS[name]), progress)
    return _place(SETS[name])


def content_of(name: str, *, progress: Progress) -> Content:
    """What a named set holds; a damaged cache file is refused."""
    if name not in SETS:
        raise unknown_source(name, SETS, "no other name")
    known, path = SETS[name], _place(SETS[name])
    return shelf.read(path, known.digest) if path.is_file() else _bring(known, path, progress)


def _place(known: Named) -> Path:
    return shelf.folder() / f"{known.name}.safetensors"


def _bring(known: Named, path: Path, progress: Progress) -> Content:
    """Try each route in turn; what does not answer is skipped, what is wrong ends the search."""
    failures = []
    for route in known.routes:
        try:
            content = _travel(known, route, progress)
        except SourceUnreachable as error:
            failures.append(str(error))
            continue
        shelf.write(path, content)
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
