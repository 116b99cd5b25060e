"""What stands between the network and MLServer: a token, few doors, small messages, no waiting for the slow.

MLServer has no authentication, lets anybody unload models, unpacks gzip of any size and reads bodies of any
length. In front of REST this is an ASGI layer, in front of gRPC an interceptor. Both decide on the headers
alone whether a message is read, and take a place among those in work only once it is here.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from exhume.core.contract import ExhumeError
from exhume.integrations.raw_requests import BadRequest, many_fields, read_json
from exhume.integrations.serve_limits import Served, ServeLimits, Waiting, WorkPlaces

try:
    import grpc
    from google.protobuf.message import DecodeError
    from grpc import aio
except ImportError as missing:
    raise ExhumeError(
        f"MLServer is not installed ({missing}): pip install 'exhume[serve]'"
    ) from missing

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ASKED = "exhume.asked"  # where a scope holds the features of its message

_HEALTH = re.compile(r"/v2/health/(live|ready)")
_DOORS = re.compile(r"/v2(/models/(body\d{1,9})(/versions/(\d{1,20}))?(/ready|/infer)?)?")
_HEALTH_CALLS = ("ServerLive", "ServerReady")
_CALLS = ("ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")
_LARGE = 65536  # bytes that the event loop does not unpack itself
_BUSY = "too many requests are in work"


_CODES = {400: "INVALID_ARGUMENT", 408: "DEADLINE_EXCEEDED", 503: "RESOURCE_EXHAUSTED"}
"""Statuses of HTTP as gRPC has them."""


class _Refused(Exception):  # noqa: N818 - a status
    """With a status of HTTP and a sentence."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.status, self.why = status, why


class RequestGuard:
    """In front of the REST app: the whole message is here, small and admitted, before MLServer sees it."""

    def __init__(self, app: App, limits: ServeLimits, served: Served, places: WorkPlaces) -> None:
        self.app, self.limits, self.served, self.places = app, limits, served, places
        self.most = served.text_bytes(limits)
        self.waiting = Waiting(limits.awaited)
        self.reader = ThreadPoolExecutor(1, "json")  # one at a time: it holds the interpreter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or _HEALTH.fullmatch(str(scope["path"])):
            await self.app(scope, receive, send)
            return
        try:
            body = self._door(scope)
            message = await self._message(scope, receive)
            size = len(message)
            if not self.places.take(size):
                raise _Refused(503, _BUSY)
            try:
                if body:
                    scope[ASKED] = await self._features(message, body)
                del message
                await self.app(scope, _replayed(receive), send)
            finally:
                self.places.give(size)
        except _Refused as refused:
            await _refuse(send, refused.status, refused.why)

    def _door(self, scope: Scope) -> str:
        """The body that is asked for its answer; "" for other questions."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        if not self.limits.admits(headers.get(b"authorization", b"").decode("latin-1")):
            raise _Refused(401, "a bearer token is needed")
        found = _DOORS.fullmatch(str(scope["path"]))
        if found is None:
            raise _Refused(404, "there is nothing here")
        name, version, what = found.group(2), found.group(4) or "", found.group(5)
        if name and not self.served.has(name, version):
            raise _Refused(404, "there is no such model")
        if scope["method"] != ("POST" if what == "/infer" else "GET"):
            raise _Refused(405, "not with this method")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise _Refused(415, "messages must not be compressed")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 12 or int(length) > self.most:
            raise _Refused(413, f"messages of at most {self.most} bytes are accepted")
        return str(name) if what == "/infer" else ""

    async def _message(self, scope: Scope, receive: Receive) -> bytes:
        address = str((scope.get("client") or ("", 0))[0])
        message = self._read(receive)
        return bytes(await _awaited(message, self.waiting, address, self.limits.seconds))

    async def _read(self, receive: Receive) -> bytearray:
        whole = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Refused(400, "the message has no end")
            whole += message.get("body", b"")
            if len(whole) > self.most:
                raise _Refused(413, f"messages of at most {self.most} bytes are accepted")
            if not message.get("more_body", False):
                return whole

    async def _features(self, message: bytes, body: str) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self.reader, read_json, message, self.served.features[body]
            )
        except BadRequest as error:
            raise _Refused(400, str(error)) from error


class MetricsGuard:
    """In front of the metrics: nothing else is there."""

    def __init__(self, app: App, path: str) -> None:
        self.app, self.path = app, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"], scope["method"]) != (self.path, "GET"):
            await _refuse(send, 404, "there is nothing here")
        elif scope["type"] != "websocket":
            await self.app(scope, receive, send)


async def _awaited(
    reading: Coroutine[Any, Any, Any],
    waiting: Waiting,
    address: str,
    seconds: float,
) -> Any:
    """What is read, unless its time is over or others need the place."""
    task = asyncio.ensure_future(reading)
    ticket = waiting.enter(address, task.cancel)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        waiting.leave(address, ticket)
        task.cancel()
    if not done:
        raise _Refused(408, f"the message took longer than {seconds:g} seconds")
    if task.cancelled():
        raise _Refused(503, "too many messages are awaited")
    return task.result()


def _replayed(receive: Receive) -> Receive:
    """An empty message: what was in it is in the scope."""
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": b"", "more_body": False}

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
    """In front of gRPC, where the size of messages is the channel's own limit.

    Every call is handled as one whose messages come in a stream, though only one comes: such a handler
    begins on the headers, while that of a single message begins when the message is here.
    """

    def __init__(self, limits: ServeLimits, places: WorkPlaces) -> None:
        self.limits, self.places = limits, places
        self.waiting = Waiting(limits.awaited)
        self.reader = ThreadPoolExecutor(1, "protobuf")

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if service != "inference.GRPCInferenceService" or method not in _HEALTH_CALLS + _CALLS:
            return _aborting(grpc.StatusCode.UNIMPLEMENTED, "there is nothing here")
        if method in _HEALTH_CALLS:
            return _on_headers(await continuation(handler_call_details))
        given = dict(handler_call_details.invocation_metadata or ())
        if not self.limits.admits(str(given.get("authorization", ""))):
            return _aborting(grpc.StatusCode.UNAUTHENTICATED, "a bearer token is needed")
        return self._guarded(await continuation(handler_call_details))

    def _guarded(self, handler: Any) -> Any:
        async def call(_: Any, context: Any) -> Any:
            try:
                raw = await self._message(context)
                size = len(raw)
                if not self.places.take(size):
                    raise _Refused(503, _BUSY)
                try:
                    request = await self._unpacked(handler, raw)
                    del raw
                    return await handler.unary_unary(request, context)
                finally:
                    self.places.give(size)
            except _Refused as refused:
                await context.abort(grpc.StatusCode[_CODES[refused.status]], refused.why)

        return _streamed(call, handler)

    async def _unpacked(self, handler: Any, raw: bytes) -> Any:
        if len(raw) <= _LARGE:
            return self._request(handler, raw)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.reader, self._request, handler, raw)

    async def _message(self, context: Any) -> bytes:
        address = str(context.peer()).rpartition(":")[0]
        message = await _awaited(context.read(), self.waiting, address, self.limits.seconds)
        if not isinstance(message, bytes):
            raise _Refused(400, "there is no message")
        return message

    def _request(self, handler: Any, raw: bytes) -> Any:
        """The message, unpacked; bytes that are none are the sender's fault, and are called so."""
        try:
            if not many_fields(raw):
                return handler.request_deserializer(raw)
        except DecodeError:
            pass
        raise _Refused(400, "the message cannot be read")


def _on_headers(handler: Any) -> Any:
    """Health is answered whatever the message: it says nothing."""

    async def call(_: Any, context: Any) -> Any:
        return await handler.unary_unary(handler.request_deserializer(b""), context)

    return _streamed(call, handler)


def _aborting(code: Any, why: str) -> Any:
    async def abort(_: Any, context: Any) -> None:
        await context.abort(code, why)

    return _streamed(abort, None)


def _streamed(call: Callable[[Any, Any], Awaitable[Any]], handler: Any) -> Any:
    return grpc.stream_unary_rpc_method_handler(
        call, response_serializer=handler.response_serializer if handler else None
    )
