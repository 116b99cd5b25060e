"""One inference server as a client sees it: which bodies it holds, and their answers. gRPC or REST.

Both speak the Open Inference Protocol, so MLServer, Triton and KServe are the same. What comes back is not
trusted: nothing is unpacked, nothing larger than the expected answer is read, and it must have its shape.
"""

from __future__ import annotations

import json
import math
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

import numpy as np

from exhume.core.contract import ExhumeError

try:
    import aiohttp
    import grpc
    from google.protobuf.message import DecodeError
    from tritonclient.grpc import service_pb2
except (ImportError, TypeError) as missing:  # TypeError: MLServer is imported in this process too
    raise ExhumeError(
        f"tritonclient cannot be used here ({str(missing)[:80]}): pip install 'exhume[serve]', in a "
        "process that does not run MLServer"
    ) from missing

Array = np.ndarray[Any, np.dtype[np.float32]]

_AROUND = 16 * 1024  # bytes of an answer besides its numbers
_TEXT = 32  # bytes of one number in JSON, at most
_SENTENCE = 4096  # bytes of an error that are read
_IDLE = 5.0  # seconds that a connection is kept for the next request, fewer than servers keep it
_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_send_message_length", -1),
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
]


class Unreachable(Exception):  # noqa: N818 - a state of the server
    """Nobody answers there now."""


class Busy(Unreachable):
    """It answers that it has too much to do."""


class Refused(Exception):  # noqa: N818
    """It answers that it will not; asking again does not help. Its status is in the text."""


class _Missing(Refused):
    """There is no such model."""


@dataclass(frozen=True)
class Access:
    """How to get in."""

    token: str = ""
    authorities: Path | None = None  # certificates to trust; the system's own if not given

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}


@dataclass(frozen=True, eq=False)
class BodyQuestion:
    """Features for one body, and the shape of the answer that they must get."""

    body: int
    version: str
    features: Array  # (n, *shape)
    request: str  # a name of its own
    shape: tuple[int, ...]


@runtime_checkable
class Wire(Protocol):
    """A connection to one server."""

    async def version(self, body: int, seconds: float) -> str | None:
        """The version of the body's weights on this server; None if it is not there."""
        ...

    async def answer(self, asked: BodyQuestion, seconds: float) -> Array: ...
    async def close(self) -> None: ...


def wire_to(url: str, access: Access, numbers: int) -> Wire:
    """Begun inside the event loop that will use it. url: grpc://, grpcs://, http:// or https://HOST:PORT.

    numbers: of the largest answer that will be asked for.
    """
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
    return kind(parts.netloc, access, secure, numbers)


class _Grpc:
    """Bytes there and back: what is no message is ours to say, not the log's."""

    def __init__(self, place: str, access: Access, secure: bool, numbers: int) -> None:
        options = [*_RECONNECT, ("grpc.max_receive_message_length", _AROUND + 4 * numbers)]
        self.headers = tuple(access.headers.items())
        if secure:
            trusted = access.authorities.read_bytes() if access.authorities else None
            credentials = grpc.ssl_channel_credentials(trusted)
            self.channel = grpc.aio.secure_channel(place, credentials, options)
        else:
            self.channel = grpc.aio.insecure_channel(place, options)

    async def version(self, body: int, seconds: float) -> str | None:
        asked = service_pb2.ModelMetadataRequest(name=f"body{body}")
        try:
            raw = await self._call("ModelMetadata", asked, seconds)
        except _Missing:
            return None
        found = _message(service_pb2.ModelMetadataResponse, raw)
        return str(found.versions[0]) if found.versions else ""

    async def answer(self, asked: BodyQuestion, seconds: float) -> Array:
        given = {"name": "features", "datatype": "FP32", "shape": asked.features.shape}
        message = service_pb2.ModelInferRequest(
            model_name=f"body{asked.body}",
            model_version=asked.version,
            id=asked.request,
            inputs=[given],
            raw_input_contents=[asked.features.astype("<f4").tobytes()],
        )
        found = _message(
            service_pb2.ModelInferResponse, await self._call("ModelInfer", message, seconds)
        )
        if len(found.outputs) != 1:
            raise Refused("the answer holds no output named answer")
        said = found.outputs[0]
        _check(asked, found.id, said.name, said.datatype, list(said.shape))
        count, raw = math.prod(asked.shape), found.raw_output_contents
        if len(raw) == 1 and len(raw[0]) == 4 * count:
            return np.frombuffer(raw[0], "<f4").astype(np.float32).reshape(asked.shape)
        if not raw and len(said.contents.fp32_contents) == count:
            return np.fromiter(said.contents.fp32_contents, np.float32, count).reshape(asked.shape)
        raise Refused(f"the answer does not hold the {count} numbers of its shape")

    async def _call(self, method: str, message: Any, seconds: float) -> bytes:
        call = self.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        try:
            return bytes(
                await call(message.SerializeToString(), timeout=seconds, metadata=self.headers)
            )
        except grpc.aio.AioRpcError as error:
            raise _grpc_state(error.code().name, str(error.details())) from error

    async def close(self) -> None:
        await self.channel.close()


class _Rest:
    def __init__(self, place: str, access: Access, secure: bool, numbers: int) -> None:
        trusted = str(access.authorities) if access.authorities else None
        context = ssl.create_default_context(cafile=trusted) if secure else True
        self.place = f"{'https' if secure else 'http'}://{place}/v2/models"
        self.most = _AROUND + _TEXT * numbers
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, keepalive_timeout=_IDLE),
            headers={**access.headers, "accept-encoding": "identity"},
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),  # the caller's deadline holds
        )

    async def version(self, body: int, seconds: float) -> str | None:
        status, content = await self._ask("GET", f"body{body}", None)
        if status == 404:
            return None
        versions = _object(status, content).get("versions") or [""]
        return str(versions[0]) if isinstance(versions, list) else ""

    async def answer(self, asked: BodyQuestion, seconds: float) -> Array:
        given = {
            "name": "features",
            "shape": list(asked.features.shape),
            "datatype": "FP32",
            "data": asked.features.ravel().tolist(),
        }
        message = {"id": asked.request, "inputs": [given], "outputs": [{"name": "answer"}]}
        path = f"body{asked.body}/versions/{asked.version}/infer"
        found = _object(
            *await self._ask("POST", path, json.dumps(message, separators=(",", ":")).encode())
        )
        outputs = found.get("outputs")
        if not isinstance(outputs, list) or len(outputs) != 1 or not isinstance(outputs[0], dict):
            raise Refused("the answer holds no output named answer")
        said = outputs[0]
        _check(asked, found.get("id"), said.get("name"), said.get("datatype"), said.get("shape"))
        try:
            with np.errstate(over="ignore"):  # not finite then, which the client refuses
                values = np.asarray(said.get("data"), dtype=np.float32).reshape(-1)
        except (ValueError, TypeError, OverflowError) as error:
            raise Refused("the answer holds no numbers") from error
        if values.size != math.prod(asked.shape):
            raise Refused(f"the answer holds {values.size} numbers for shape {asked.shape}")
        return values.reshape(asked.shape)

    async def _ask(self, method: str, path: str, content: bytes | None) -> tuple[int, bytes]:
        """Status and content, of which no more is read than an answer has."""
        headers = {"content-type": "application/json"} if content else {}
        try:
            async with self.session.request(
                method, f"{self.place}/{path}", data=content, headers=headers, allow_redirects=False
            ) as response:
                if response.headers.get("content-encoding", "identity").lower() != "identity":
                    raise Refused("the answer is compressed, and none of that is unpacked")
                most = self.most if response.status == 200 else _SENTENCE
                content_read = bytearray()
                async for part in response.content.iter_any():
                    content_read += part
                    if len(content_read) > most:
                        response.close()
                        raise Refused(f"the answer is larger than the {most} bytes expected")
                return response.status, bytes(content_read)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(str(error)) from error

    async def close(self) -> None:
        await self.session.close()


def _object(status: int, content: bytes) -> dict[str, Any]:
    """The JSON object of an answer."""
    if status in (429, 502, 503, 504):
        raise Busy(str(status))
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{status}: the answer is no JSON") from error
    if status != 200:
        raise Refused(f"{status}: {found.get('error', '') if isinstance(found, dict) else ''}")
    if not isinstance(found, dict):
        raise Refused("the answer is no JSON object")
    return found


def _check(
    asked: BodyQuestion, request: object, name: object, datatype: object, shape: object
) -> None:
    if request != asked.request:
        raise Refused("the answer belongs to another request")
    if name != "answer":
        raise Refused("the answer holds no output named answer")
    if datatype != "FP32" or shape != list(asked.shape):
        raise Refused(
            f"the answer is {str(datatype)[:20]} of shape {str(shape)[:60]}, and "
            f"FP32 of {list(asked.shape)} was expected"
        )


def _message(kind: Any, raw: bytes) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise Refused("the answer cannot be read") from error


def _grpc_state(code: str, why: str) -> Exception:
    if code == "RESOURCE_EXHAUSTED" and "larger than max" not in why:
        return Busy(why)
    if code in ("UNAVAILABLE", "CANCELLED"):
        return Unreachable(why)
    if code == "DEADLINE_EXCEEDED":
        return TimeoutError()
    return (_Missing if code == "NOT_FOUND" else Refused)(f"{code}: {why}")
