"""Connections to the gRPC port: not too many of them, and not too many from one place.

gRPC accepts whoever comes and tells nobody. But its sockets are open files of this process: a look at these
shows who is connected. Whoever has too many loses the one that was seen first.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from exhume.integrations.serve_limits import Waiting

_FILES = Path("/dev/fd")
_EVERY = 0.5  # seconds between two looks

Peer = tuple[str, int]


async def keep_few_connections(port: int, most: int) -> None:
    """Until cancelled: at most so many to a port of this process, half of them from one address."""
    waiting, tickets = Waiting(most), dict[Peer, object]()
    while True:
        found = _connected(port)
        for peer in tickets.keys() - found.keys():
            waiting.leave(peer[0], tickets.pop(peer))
        for peer in found.keys() - tickets.keys():
            give_way = partial(_hang_up, found[peer], peer, port)
            tickets[peer] = waiting.enter(peer[0], give_way)
        await asyncio.sleep(_EVERY)


def _connected(port: int) -> dict[Peer, int]:
    """Everybody who is connected there, and the number of the open file."""
    found = {}
    for name in _FILES.iterdir():
        with suppress(OSError), _copy_of(int(name.name)) as one:  # no socket, or closed meanwhile
            if (peer := _peer(one, port)) is not None:
                found[peer] = int(name.name)
    return found


def _hang_up(number: int, peer: Peer, port: int) -> None:
    with suppress(OSError), _copy_of(number) as one:
        if _peer(one, port) == peer:  # and nobody else, who got the number since
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def _copy_of(number: int) -> Iterator[socket.socket]:
    """The socket behind an open file, which nobody closes meanwhile."""
    copy = os.dup(number)
    try:
        one = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with one:
        yield one


def _peer(one: socket.socket, port: int) -> Peer | None:
    """Who is at the other end, if this end is our port."""
    if one.family not in (socket.AF_INET, socket.AF_INET6) or one.getsockname()[1] != port:
        return None
    address, number = one.getpeername()[:2]
    return str(address), int(number)
