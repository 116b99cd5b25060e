"""The client of a deployed split network: it asks all N bodies, waits for all, reads P of the answers.

    with Client(Path("client"), ["grpcs://one:8081", "grpcs://two:8081"], token=token) as client:
        logits = client(images)

What the servers see does not depend on the selector: for every request all bodies are asked, in the same
order, with the same bytes; the client waits for all answers before it reads any, and fails if one is missing,
whether it would have read that one or not.

Servers speak the Open Inference Protocol over gRPC, as MLServer, Triton and KServe do. What comes back is not
trusted: nothing is unpacked, nothing larger than the expected answer is read, and it must have its shape.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from exhume.core.contract import ExhumeError
from exhume.integrations.exporting import MOST, version_of
from exhume.models.split.parts import KeptClient, load_client

try:
    import grpc
    from google.protobuf.message import DecodeError
    from tritonclient.grpc import service_pb2
except (ImportError, TypeError) as missing:  # TypeError: MLServer is imported in this process too
    raise ExhumeError(
        f"tritonclient cannot be used here ({str(missing)[:80]}): pip install 'exhume[serve]', in a "
        "process that does not run MLServer"
    ) from missing

Array = np.ndarray[Any, np.dtype[np.float32]]
_BYTES = 2 * 1024 * 1024  # of features in one message; as text 13 MB, below the 16 of a server
_ROWS = MOST
_PAUSE = 0.05  # seconds before the first repetition; doubled each time
_AROUND = 16 * 1024  # bytes of an answer besides its numbers
_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_send_message_length", -1),
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
]
T = TypeVar("T")


@dataclass(frozen=True)
class Server:
    """One inference server. Where bodies are named it is not asked which it holds (Triton, KServe)."""

    url: str
    bodies: tuple[int, ...] | None = None


class Client:
    """Head, selector and tail here; bodies elsewhere. Safe to call from several threads."""

    def __init__(
        self,
        folder: Path,
        servers: Sequence[str | Server],
        *,
        token: str = "",
        authorities: Path | None = None,  # certificates to trust
        deadline: float = 10.0,  # seconds for one call, repetitions included
        repeats: int = 3,  # times that a body is asked again, at the next server that holds it
        apart: bool = False,  # refuse servers that hold all bodies
        factory: str = "",  # allows the network of this factory
    ) -> None:
        if not servers:
            raise ExhumeError("servers: none is named")
        if not deadline > 0 or repeats < 0:
            raise ExhumeError(
                f"deadline, repeats: {deadline} and {repeats} given, more than 0 seconds and at least "
                "0 repetitions needed"
            )
        self._kept: KeptClient = load_client(folder, factory=factory)
        self._servers = [s if isinstance(s, Server) else Server(s) for s in servers]
        self._versions = [version_of(sha256) for sha256 in self._kept.bodies]
        self._deadline, self._repeats, self._apart = deadline, repeats, apart
        self._held: dict[str, tuple[int, ...]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._wires: dict[str, _Wire] = self._wait(self._connect(token, authorities))
        except BaseException:
            self.close()
            raise

    def __call__(self, inputs: Tensor) -> Tensor:
        """(n, *shape) to logits (n, c)."""
        return self._wait(self._predict(inputs))

    async def predict(self, inputs: Tensor) -> Tensor:
        """(n, *shape) to logits (n, c), to be awaited in any event loop; several may be under way."""
        return await asyncio.wrap_future(self._begin(self._predict(inputs)))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        for wire in getattr(self, "_wires", {}).values():
            self._wait(wire.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # In the client's own event loop

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._begin(work).result()

    async def _connect(self, token: str, authorities: Path | None) -> dict[str, _Wire]:
        numbers = _ROWS * math.prod(self._kept.answer)
        return {s.url: _Wire(s.url, token, authorities, numbers) for s in self._servers}

    async def _predict(self, inputs: Tensor) -> Tensor:
        until = time.monotonic() + self._deadline
        wanted = self._kept.blueprint.network.input_shape
        if not len(inputs) or tuple(inputs.shape[1:]) != wanted:
            raise ExhumeError(
                f"inputs: of shape {tuple(inputs.shape)}, (n, {', '.join(map(str, wanted))}) is needed"
            )
        features = await asyncio.to_thread(self._send, inputs)
        await self._survey(until)
        rows = max(1, min(_ROWS, _BYTES // max(1, features[0].nbytes)))
        pieces = [await self._ask_all(part, until) for part in torch.split(features, rows)]
        answers = [torch.from_numpy(np.concatenate(body)) for body in zip(*pieces, strict=True)]
        return await asyncio.to_thread(self._finish, answers)

    @torch.inference_mode()
    def _send(self, inputs: Tensor) -> Tensor:
        return self._kept.client.send(inputs)

    @torch.inference_mode()
    def _finish(self, answers: list[Tensor]) -> Tensor:
        return self._kept.client.finish(answers)

    async def _survey(self, until: float) -> None:
        """Ask every server which bodies it holds, once; those that are silent are asked again next time."""
        silent: dict[str, str] = {}
        for server in self._servers:
            if server.url in self._held:
                continue
            if server.bodies is not None:
                self._held[server.url] = server.bodies
                continue
            try:
                self._held[server.url] = await self._bodies_at(server.url, until)
            except (Unreachable, TimeoutError) as error:
                silent[server.url] = _short(error) or "no answer in time"
        places = set().union(*self._held.values()) if self._held else set()
        missing = [i for i in range(len(self._versions)) if i not in places]
        if missing:
            quiet = "".join(f"; {url} does not answer ({why})" for url, why in silent.items())
            absent = ", ".join(f"body{i}" for i in missing)
            raise ExhumeError(f"servers: nobody holds {absent}{quiet}")
        if self._apart:
            for url, bodies in self._held.items():
                if len(set(bodies)) >= len(self._versions):
                    raise ExhumeError(f"servers: {url} holds all bodies, and none may")

    async def _bodies_at(self, url: str, until: float) -> tuple[int, ...]:
        held = []
        for body, wanted in enumerate(self._versions):
            left = until - time.monotonic()
            try:
                version = await asyncio.wait_for(self._wires[url].version(body, left), left)
            except Refused as error:
                raise ExhumeError(f"servers: {url} refuses ({_short(error)})") from error
            if version is None:
                continue
            if version != wanted:
                raise ExhumeError(
                    f"servers: body{body} at {url} is not the one that this client was trained with"
                )
            held.append(body)
        return tuple(held)

    async def _ask_all(self, features: Tensor, until: float) -> list[Array]:
        """All bodies at once, and all are waited for, whatever happens to one."""
        array = np.ascontiguousarray(features.numpy(), dtype=np.float32)
        asked = [self._ask(body, array, until) for body in range(len(self._versions))]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for outcome in answers:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in answers if not isinstance(outcome, BaseException)]

    async def _ask(self, body: int, features: Array, until: float) -> Array:
        """One body, again and at the next server where one does not answer. Nothing is changed by asking."""
        places = [s.url for s in self._servers if body in self._held.get(s.url, ())]
        why = ""
        for attempt in range(self._repeats + 1):
            url, left = places[attempt % len(places)], until - time.monotonic()
            if left <= 0:
                break
            shape = (len(features), *self._kept.answer)
            asked = BodyQuestion(body, self._versions[body], features, secrets.token_hex(8), shape)
            try:
                answer = await asyncio.wait_for(self._wires[url].answer(asked, left), left)
            except Unreachable as error:
                why = f"{url} does not answer ({_short(error)})"
                pause = _PAUSE * 2**attempt if attempt + 1 >= len(places) else 0.0
                pause *= 0.5 + secrets.randbelow(1000) / 1000  # so that many do not return together
                await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
            except TimeoutError:
                why = f"{url} gave no answer"
                break
            except Refused as error:
                raise ExhumeError(f"servers: {url} refuses body{body} ({_short(error)})") from error
            else:
                return self._finite(answer, body, url)
        if until - time.monotonic() <= 0:
            raise ExhumeError(
                f"servers: no answer of body{body} within {self._deadline:g} seconds; {why}"
            )
        raise ExhumeError(f"servers: no answer of body{body}; {why}")

    def _finite(self, answer: Array, body: int, url: str) -> Array:
        if not bool(np.isfinite(answer).all()):
            raise ExhumeError(f"servers: body{body} at {url} answered numbers that are not finite")
        return answer


def _short(error: Exception) -> str:
    """The first line, without what a terminal would obey."""
    line = (str(error).splitlines() or [""])[0][:160]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


# One server, over gRPC


class Unreachable(Exception):  # noqa: N818 - a state of the server
    """Nobody answers there now, or it has too much to do."""


class Refused(Exception):  # noqa: N818
    """It answers that it will not; asking again does not help. Its status is in the text."""


class _Missing(Refused):
    """There is no such model."""


@dataclass(frozen=True, eq=False)
class BodyQuestion:
    """Features for one body, and the shape of the answer that they must get."""

    body: int
    version: str
    features: Array  # (n, *shape)
    request: str  # a name of its own
    shape: tuple[int, ...]


class _Wire:
    """A connection to one server. Bytes there and back: what is no message is ours to say, not the log's."""

    def __init__(self, url: str, token: str, authorities: Path | None, numbers: int) -> None:
        """url: grpc://HOST:PORT or grpcs://; numbers: of the largest answer that will be asked for."""
        parts = urlsplit(url)
        if parts.scheme not in ("grpc", "grpcs") or not parts.hostname:
            raise ExhumeError(f"servers: {url!r} is not of the form grpc://HOST:PORT (or grpcs)")
        secure, here = parts.scheme == "grpcs", ("localhost", "127.0.0.1", "::1")
        if token and not secure and parts.hostname not in here:
            raise ExhumeError(f"servers: a token must not go to {url} in the clear; use grpcs")
        options = [*_RECONNECT, ("grpc.max_receive_message_length", _AROUND + 4 * numbers)]
        self.headers = (("authorization", f"Bearer {token}"),) if token else ()
        if secure:
            trusted = authorities.read_bytes() if authorities else None
            credentials = grpc.ssl_channel_credentials(trusted)
            self.channel = grpc.aio.secure_channel(parts.netloc, credentials, options)
        else:
            self.channel = grpc.aio.insecure_channel(parts.netloc, options)

    async def version(self, body: int, seconds: float) -> str | None:
        """The version of the body's weights on this server; None if it is not there."""
        asked = service_pb2.ModelMetadataRequest(name=f"body{body}")
        try:
            raw = await self._call("ModelMetadata", asked, seconds)
        except _Missing:
            return None
        versions = _message(service_pb2.ModelMetadataResponse, raw).versions
        return str(versions[0]) if versions else ""

    async def answer(self, asked: BodyQuestion, seconds: float) -> Array:
        given = {"name": "features", "datatype": "FP32", "shape": asked.features.shape}
        message = service_pb2.ModelInferRequest(
            model_name=f"body{asked.body}",
            model_version=asked.version,
            id=asked.request,
            inputs=[given],
            raw_input_contents=[asked.features.astype("<f4").tobytes()],
        )
        content = await self._call("ModelInfer", message, seconds)
        return _answer_in(_message(service_pb2.ModelInferResponse, content), asked)

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


def _answer_in(message: Any, asked: BodyQuestion) -> Array:
    """The numbers of a `ModelInferResponse`, if they are an answer to this question."""
    if len(message.outputs) == 1 and message.id != asked.request:
        raise Refused("the answer belongs to another request")
    if len(message.outputs) != 1 or message.outputs[0].name != "answer":
        raise Refused("the answer holds no output named answer")
    output, count, raw = message.outputs[0], math.prod(asked.shape), message.raw_output_contents
    if output.datatype != "FP32" or list(output.shape) != list(asked.shape):
        raise Refused(
            f"the answer is {output.datatype[:20]} of shape {str(list(output.shape))[:60]}, and "
            f"FP32 of {list(asked.shape)} was expected"
        )
    if len(raw) == 1 and len(raw[0]) == 4 * count:
        return np.frombuffer(raw[0], "<f4").astype(np.float32).reshape(asked.shape)
    if not raw and len(output.contents.fp32_contents) == count:
        return np.fromiter(output.contents.fp32_contents, np.float32, count).reshape(asked.shape)
    raise Refused(f"the answer does not hold the {count} numbers of its shape")


def _message(kind: Any, raw: bytes) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise Refused("the answer cannot be read") from error


def _grpc_state(code: str, why: str) -> Exception:
    busy = code == "RESOURCE_EXHAUSTED" and "larger than max" not in why
    if busy or code in ("UNAVAILABLE", "CANCELLED"):
        return Unreachable(why)
    if code == "DEADLINE_EXCEEDED":
        return TimeoutError()
    return (_Missing if code == "NOT_FOUND" else Refused)(f"{code}: {why}")
