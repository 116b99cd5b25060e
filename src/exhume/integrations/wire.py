"""One inference server as a client sees it: which bodies it holds, and their answers. gRPC or REST.

Both speak the Open Inference Protocol through `tritonclient`, so MLServer, Triton and KServe are the same.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

import numpy as np

from exhume.contract import ExhumeError

try:
    import aiohttp
    import tritonclient.grpc as triton_grpc
    import tritonclient.grpc.aio as triton_grpc_aio
    import tritonclient.http as triton_http
    import tritonclient.http.aio as triton_http_aio
    from tritonclient.utils import InferenceServerException
except (ImportError, TypeError) as missing:  # TypeError: MLServer is imported in this process too
    raise ExhumeError(
        f"tritonclient cannot be used here ({str(missing)[:80]}): pip install 'exhume[serve]', in a "
        "process that does not run MLServer"
    ) from missing

__all__ = ["Access", "Busy", "Refused", "Unreachable", "Wire", "wire_to"]

Array = np.ndarray[Any, np.dtype[np.float32]]

_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
]


class Unreachable(Exception):  # noqa: N818 - a state of the server
    """Nobody answers there now."""


class Busy(Unreachable):
    """It answers that it has too much to do."""


class Refused(Exception):  # noqa: N818
    """It answers that it will not; asking again does not help. Its status is in the text."""


@dataclass(frozen=True)
class Access:
    """How to get in."""

    token: str = ""
    authorities: Path | None = None  # certificates to trust; the system's own if not given

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}


@runtime_checkable
class Wire(Protocol):
    """A connection to one server."""

    async def version(self, body: int, seconds: float) -> str | None:
        """Of the body's weights on this server; None if it is not there."""
        ...

    async def answer(
        self, body: int, version: str, features: Array, request: str, seconds: float
    ) -> Array: ...
    async def close(self) -> None: ...


def wire_to(url: str, access: Access) -> Wire:
    """Begun inside the event loop that will use it. url: grpc://, grpcs://, http:// or https://HOST:PORT."""
    parts = urlsplit(url)
    if parts.scheme not in ("grpc", "grpcs", "http", "https") or not parts.hostname:
        raise ExhumeError(
            f"servers: {url!r} is not of the form grpc://HOST:PORT (or grpcs, http, https)"
        )
    secure = parts.scheme.endswith("s")
    if access.token and not secure and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ExhumeError(
            f"servers: a token must not go to {url} in the clear; use {parts.scheme}s"
        )
    kind = _Grpc if parts.scheme.startswith("grpc") else _Rest
    return kind(parts.netloc, access, secure)


class _Grpc:
    def __init__(self, place: str, access: Access, secure: bool) -> None:
        trusted = str(access.authorities) if access.authorities else None
        self.headers = access.headers or None
        self.client = triton_grpc_aio.InferenceServerClient(
            place, ssl=secure, root_certificates=trusted, channel_args=_RECONNECT
        )

    async def version(self, body: int, seconds: float) -> str | None:
        try:
            found = await self.client.get_model_metadata(
                f"body{body}", headers=self.headers, client_timeout=seconds
            )
        except InferenceServerException as error:
            if error.status() == "StatusCode.NOT_FOUND":
                return None
            raise _grpc_state(error) from error
        return str(found.versions[0]) if found.versions else ""

    async def answer(
        self, body: int, version: str, features: Array, request: str, seconds: float
    ) -> Array:
        given = triton_grpc.InferInput("features", list(features.shape), "FP32")
        given.set_data_from_numpy(features)
        try:
            result = await self.client.infer(
                f"body{body}",
                [given],
                model_version=version,
                request_id=request,
                headers=self.headers,
                client_timeout=seconds,
            )
        except InferenceServerException as error:
            raise _grpc_state(error) from error
        return _checked(result.get_response().id, request, result.as_numpy("answer"))

    async def close(self) -> None:
        await self.client.close()


class _Rest:
    def __init__(self, place: str, access: Access, secure: bool) -> None:
        trusted = str(access.authorities) if access.authorities else None
        context = ssl.create_default_context(cafile=trusted) if secure else None
        self.headers = access.headers or None
        self.client = triton_http_aio.InferenceServerClient(
            place, ssl=secure, ssl_context=context or True
        )

    async def version(self, body: int, seconds: float) -> str | None:
        try:
            found = await self.client.get_model_metadata(f"body{body}", headers=self.headers)
        except InferenceServerException as error:
            if error.status() == "404":
                return None
            raise _rest_state(error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(str(error)) from error
        versions = found.get("versions") or [""]
        return str(versions[0])

    async def answer(
        self, body: int, version: str, features: Array, request: str, seconds: float
    ) -> Array:
        given = triton_http.InferInput("features", list(features.shape), "FP32")
        given.set_data_from_numpy(features, binary_data=False)
        wanted = triton_http.InferRequestedOutput("answer", binary_data=False)
        try:
            result = await self.client.infer(
                f"body{body}",
                [given],
                model_version=version,
                outputs=[wanted],
                request_id=request,
                headers={**(self.headers or {}), "content-type": "application/json"},
            )
        except InferenceServerException as error:
            raise _rest_state(error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(str(error)) from error
        return _checked(str(result.get_response().get("id")), request, result.as_numpy("answer"))

    async def close(self) -> None:
        await self.client.close()


def _checked(given: str, request: str, answer: Array | None) -> Array:
    if given != request:
        raise Refused("the answer belongs to another request")
    if answer is None:
        raise Refused("the answer holds no output named answer")
    return np.asarray(answer, dtype=np.float32)


def _grpc_state(error: Any) -> Exception:
    code = str(error.status()).removeprefix("StatusCode.")
    if code == "RESOURCE_EXHAUSTED" and "larger than max" not in str(error.message()):
        return Busy(error.message())
    if code in ("UNAVAILABLE", "CANCELLED"):
        return Unreachable(error.message())
    if code == "DEADLINE_EXCEEDED":
        return TimeoutError()
    return Refused(f"{code}: {error.message()}")


def _rest_state(error: Any) -> Exception:
    code = str(error.status())
    if code in ("502", "503", "504", "429"):
        return Busy(code)
    return Refused(f"{code}: {error.message()}")
