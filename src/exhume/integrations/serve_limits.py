"""What one server accepts, and who gives way when it is full.

A request is *awaited* until its last byte is here, then *in work*. In work are `at_once`; more are refused.
Awaited are so many too, but there the newcomer is let in and the longest awaited is sent away: a sender who
never ends holds a place only until somebody else comes. No address has more than half of them.
"""

from __future__ import annotations

import hmac
import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from exhume.core.contract import ExhumeError

MOST = 256  # records of one request
_AROUND = 16 * 1024  # bytes of a message besides its numbers
_TEXT = 26  # bytes of one number in JSON: sign, 17 digits, point, exponent, comma, blank
_FLOAT = 4
_LARGEST = 8  # messages of the largest size that may be in work together


@dataclass(frozen=True)
class ServeLimits:
    """What one server accepts."""

    token: str = ""  # without it nothing but health is answered; empty: everybody may ask
    bytes: int = 16 * 1024 * 1024  # of one message, where the features would allow more
    at_once: int = 64  # requests in work; more are refused, not queued
    seconds: float = 10.0  # to send a whole message

    def __post_init__(self) -> None:
        if self.bytes < 1024 or self.at_once < 1 or not self.seconds > 0:
            raise ExhumeError(f"limits: at least 1024 bytes, 1 at once and some seconds: {self}")

    @property
    def awaited(self) -> int:
        """Messages that have begun and are not here yet."""
        return max(64, self.at_once)

    @property
    def connections(self) -> int:
        """Open at once, over REST and over gRPC."""
        return 8 * self.awaited

    def admits(self, given: str) -> bool:
        """Compared in a time that does not depend on where they differ."""
        wanted = f"Bearer {self.token}"
        return not self.token or hmac.compare_digest(given.encode(), wanted.encode())


@dataclass(frozen=True)
class Served:
    """Which bodies a server holds: their versions, and the shape of the features each is sent."""

    versions: Mapping[str, str]
    features: Mapping[str, tuple[int, ...]]

    def has(self, name: str, version: str) -> bool:
        return name in self.versions and version in ("", self.versions[name])

    def binary_bytes(self, limits: ServeLimits) -> int:
        """Size of the largest message over gRPC."""
        return min(limits.bytes, _AROUND + _FLOAT * MOST * self._numbers)

    def text_bytes(self, limits: ServeLimits) -> int:
        """Size of the largest message over REST."""
        return min(limits.bytes, _AROUND + _TEXT * MOST * self._numbers)

    @property
    def _numbers(self) -> int:
        return max(math.prod(shape) for shape in self.features.values())


class WorkPlaces:
    """Requests in work: so many, and of so many bytes together."""

    def __init__(self, limits: ServeLimits) -> None:
        self._free, self._bytes = limits.at_once, _LARGEST * limits.bytes

    def take(self, size: int) -> bool:
        """Whether there was one for a message of this size."""
        if not self._free or size > self._bytes:
            return False
        self._free -= 1
        self._bytes -= size
        return True

    def give(self, size: int) -> None:
        self._free += 1
        self._bytes += size


class Waiting:
    """Those who are waited for, the longest first. Who comes is let in; who gives way is called so."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._from: dict[str, dict[object, Callable[[], object]]] = {}

    def enter(self, address: str, give_way: Callable[[], object]) -> object:
        """A ticket for `leave`. Too many of one address: its longest goes; of all: that of the largest."""
        mine = self._from.setdefault(address, {})
        if len(mine) >= max(1, self._most // 2):
            self._dismiss(address)
        elif sum(map(len, self._from.values())) >= self._most:
            self._dismiss(max(self._from, key=lambda one: len(self._from[one])))
        ticket = object()
        self._from.setdefault(address, {})[ticket] = give_way
        return ticket

    def leave(self, address: str, ticket: object) -> None:
        """Once, or again after having given way."""
        mine = self._from.get(address, {})
        mine.pop(ticket, None)
        if not mine:
            self._from.pop(address, None)

    def _dismiss(self, address: str) -> None:
        ticket, give_way = next(iter(self._from[address].items()))
        self.leave(address, ticket)
        give_way()


def private_bytes(path: Path, what: str) -> bytes:
    """A file that nobody but its owner can read or write; refused otherwise."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(2**20)
    except OSError as error:
        raise ExhumeError(f"{what}: {path} ({error.strerror})") from error
    if mode & 0o077:
        raise ExhumeError(f"{what}: others can read {path} (mode {mode:04o}); chmod 600 it first")
    return content
