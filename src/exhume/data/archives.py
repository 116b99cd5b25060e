"""Members of zip and tar archives, read in memory: nothing is extracted, so no path can escape."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from exhume.core.contract import ExhumeError

__all__ = ["LARGEST", "readable", "tar_members", "zip_members"]

LARGEST = 1 << 28
"""Bytes a member may unpack to; the largest real one is the 154 MB training file of CIFAR-100."""


def tar_members(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Regular files of a tar archive, compressed or not, whose name is wanted."""
    found = {}
    with readable(path.name), tarfile.open(path) as archive:
        for member in archive:
            if not (member.isfile() and wanted(member.name)):
                continue
            _refuse_bomb(path.name, member.name, member.size)
            stream = archive.extractfile(member)
            assert stream is not None  # it is a regular file
            found[member.name] = stream.read()
    return found


def zip_members(
    file: Path | IO[bytes], name: str, wanted: Callable[[str], bool]
) -> dict[str, bytes]:
    """Members of a zip archive, called `name` in messages, whose own name is wanted."""
    found = {}
    with readable(name), zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if wanted(member.filename):
                _refuse_bomb(name, member.filename, member.file_size)
                found[member.filename] = archive.read(member)
    return found


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turns what the archive readers raise on a damaged file into one sentence."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise ExhumeError(f"{name}: truncated or damaged archive ({error})") from error
    except (NotImplementedError, RuntimeError) as error:  # an unknown method, or encrypted
        raise ExhumeError(f"{name}: this archive cannot be read ({error})") from error


def _refuse_bomb(archive: str, member: str, size: int) -> None:
    if size > LARGEST:
        raise ExhumeError(
            f"{archive}: member {member} unpacks to {size:,} bytes, {LARGEST:,} are allowed"
        )
