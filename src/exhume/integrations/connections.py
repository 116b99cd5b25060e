"""Connections before they are requests: not too many of them, not too many from one place, none for ever.

HTTP: uvicorn times out a connection that is idle after an answer, but not one that never sends a whole
header, and counts all alike. Here a connection that is not being answered may be hung up when others need
its place.

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

from exhume.core.contract import ExhumeError
from exhume.integrations.serve_limits import ServeLimits, Waiting

try:
    import h11
    from uvicorn import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as missing:
    raise ExhumeError(
        f"MLServer is not installed ({missing}): pip install 'exhume[serve]'"
    ) from missing

_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_FILES = Path("/dev/fd")
_EVERY = 0.5  # seconds between two looks

Peer = tuple[str, int]


# HTTP


def guard_connections(config: Config, limits: ServeLimits) -> None:
    """Have a server of uvicorn take its connections through our door, and no websockets.

    h11 rather than httptools: it is always there, and refuses headers of more than 16 kB.
    """

    class Door(_Door):
        waiting = Waiting(limits.connections)
        seconds = limits.seconds

    config.http = Door
    config.ws = "none"
    config.proxy_headers = False  # anybody can write them
    config.limit_concurrency = None
    config.timeout_keep_alive = int(limits.seconds) + 1


class _Door(H11Protocol):
    waiting: Waiting
    seconds: float
    _ticket: object | None = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._settle(begun=True)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._settle(begun=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._settle(begun=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # and not wait for somebody who does not read

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # nobody is to answer there any more
            self.cycle.message_event.set()
            self.transport.abort()
        elif self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def _settle(self, *, begun: bool) -> None:
        """Waiting for a header, for a while; or with the application, which has limits of its own."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._leave()
            return
        if self._ticket is None:
            self._ticket = self.waiting.enter(self._address, self.transport.abort)
        if begun and self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._late)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ticket is not None:
            self.waiting.leave(self._address, self._ticket)
            self._ticket = None

    def _late(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_LATE)
            self.transport.close()


# gRPC


async def keep_few_connections(port: int, most: int) -> None:
    """Until cancelled: at most so many to a port of this process, half of them from one address."""
    waiting, tickets = Waiting(most), dict[Peer, object]()
    while True:
        descriptors = _connected(port)
        for peer in tickets.keys() - descriptors.keys():
            waiting.leave(peer[0], tickets.pop(peer))
        for peer in descriptors.keys() - tickets.keys():
            give_way = partial(_hang_up, descriptors[peer], peer, port)
            tickets[peer] = waiting.enter(peer[0], give_way)
        await asyncio.sleep(_EVERY)


def _connected(port: int) -> dict[Peer, int]:
    """Everybody who is connected there, and the number of the open file."""
    descriptors = {}
    for name in _FILES.iterdir():
        with (
            suppress(OSError),
            _copy_of(int(name.name)) as listener,
        ):  # no socket, or closed meanwhile
            if (peer := _peer(listener, port)) is not None:
                descriptors[peer] = int(name.name)
    return descriptors


def _hang_up(number: int, peer: Peer, port: int) -> None:
    with suppress(OSError), _copy_of(number) as listener:
        if _peer(listener, port) == peer:  # and nobody else, who got the number since
            listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def _copy_of(number: int) -> Iterator[socket.socket]:
    """The socket behind an open file, which nobody closes meanwhile."""
    copy = os.dup(number)
    try:
        listener = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with listener:
        yield listener


def _peer(listener: socket.socket, port: int) -> Peer | None:
    """Who is at the other end, if this end is our port."""
    if (
        listener.family not in (socket.AF_INET, socket.AF_INET6)
        or listener.getsockname()[1] != port
    ):
        return None
    address, number = listener.getpeername()[:2]
    return str(address), int(number)
