"""What stands between the network and MLServer: a token, few doors, small messages, no waiting for the slow.

MLServer has no authentication, lets anybody unload models, unpacks gzip of any size and reads bodies of any
length. In front of REST this is an ASGI layer, in front of gRPC an interceptor.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from exhume.contract import ExhumeError

try:
    import grpc
    from google.protobuf.message import DecodeError
    from grpc import aio
except ImportError as missing:
    raise ExhumeError(
        f"MLServer is not installed ({missing}): pip install 'exhume[serve]'"
    ) from missing

__all__ = ["CallGuard", "Limits", "RequestGuard"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_HEALTH = re.compile(r"/v2/health/(live|ready)")
_DOORS = re.compile(r"/v2(/models/body\d+(/versions/\d+)?(/ready|/infer)?)?")
_CALLS = "ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelInfer"


@dataclass(frozen=True)
class Limits:
    """What one server accepts."""

    token: str = ""  # without it nothing but health is answered; empty: everybody may ask
    bytes: int = 16 * 1024 * 1024  # of one message
    at_once: int = 64  # requests in work; more are refused, not queued
    seconds: float = 10.0  # to send a whole message

    def __post_init__(self) -> None:
        if self.bytes < 1024 or self.at_once < 1 or not self.seconds > 0:
            raise ExhumeError(f"limits: at least 1024 bytes, 1 at once and some seconds: {self}")

    def admits(self, given: str) -> bool:
        """Compared in a time that does not depend on where they differ."""
        wanted = f"Bearer {self.token}"
        return not self.token or hmac.compare_digest(given.encode(), wanted.encode())


class RequestGuard:
    """In front of the REST app: the whole message is here, small and admitted, before MLServer sees it."""

    def __init__(self, app: App, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        refused = self._refusal(str(scope["path"]), headers)
        if refused is None:
            try:
                body = await asyncio.wait_for(self._read(receive), self.limits.seconds)
            except TimeoutError:
                refused = (408, f"the message took longer than {self.limits.seconds:g} seconds")
            else:
                if body is None:
                    refused = (413, f"messages of at most {self.limits.bytes} bytes are accepted")
        if refused is not None:
            await _refuse(send, *refused)
            return
        await self.app(scope, _replayed(body or b"", receive), send)

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        if _HEALTH.fullmatch(path):
            return None
        if not self.limits.admits(headers.get(b"authorization", b"").decode("latin-1")):
            return 401, "a bearer token is needed"
        if not _DOORS.fullmatch(path):
            return 404, "there is nothing here"
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            return 415, "messages must not be compressed"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.limits.bytes:
            return 413, f"messages of at most {self.limits.bytes} bytes are accepted"
        return None

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole message; None if it is too large."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.limits.bytes:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, status: int, why: str) -> None:
    content = json.dumps({"error": why}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


class CallGuard(aio.ServerInterceptor):
    """The same for gRPC. The size of messages is the channel's own limit."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if service != "inference.GRPCInferenceService" or method not in _CALLS.split():
            return _aborting(grpc.StatusCode.UNIMPLEMENTED, "there is nothing here")
        if method not in ("ServerLive", "ServerReady"):
            given = dict(handler_call_details.invocation_metadata or ())
            if not self.limits.admits(str(given.get("authorization", ""))):
                return _aborting(grpc.StatusCode.UNAUTHENTICATED, "a bearer token is needed")
        return _reading(await continuation(handler_call_details))


def _reading(handler: Any) -> Any:
    """The same handler; bytes that are no message are the sender's fault, and are called so."""

    async def read(raw: bytes, context: Any) -> Any:
        try:
            request = handler.request_deserializer(raw)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the message cannot be read")
        return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(
        read, response_serializer=handler.response_serializer
    )


def _aborting(code: Any, why: str) -> Any:
    async def abort(_: bytes, context: Any) -> None:
        await context.abort(code, why)

    return grpc.unary_unary_rpc_method_handler(abort)
