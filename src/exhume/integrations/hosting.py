"""Start MLServer with some bodies of an exported server folder, behind a guard."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exhume.core.contract import ExhumeError
from exhume.integrations.connections import guard_connections, keep_few_connections
from exhume.integrations.exporting import RUNTIME
from exhume.integrations.mlserver_guard import ASKED, CallGuard, MetricsGuard, RequestGuard
from exhume.integrations.raw_requests import BadRequest, FeatureRequest, features_in
from exhume.integrations.serve_limits import Served, ServeLimits, WorkPlaces, private_bytes
from exhume.models.split.parts import bodies_in, load_bodies

try:
    import grpc
    from grpc import aio
    from mlserver import MLServer, ModelSettings, Settings
    from mlserver.errors import MLServerError
    from mlserver.grpc import GRPCServer
    from mlserver.grpc.converters import ModelInferResponseConverter
    from mlserver.grpc.dataplane_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
    from mlserver.grpc.servicers import InferenceServicer
    from mlserver.metrics import MetricsServer
    from mlserver.rest import RESTServer
    from mlserver.rest.responses import Response
    from mlserver.types import InferenceRequest, RequestInput
    from starlette.requests import Request
    from starlette.routing import Route
except ImportError as missing:
    raise ExhumeError(
        f"MLServer is not installed ({missing}): pip install 'exhume[serve]'"
    ) from missing

_AGE = 600_000  # milliseconds until a gRPC connection is opened anew; clients do so by themselves
_IDLE = 60_000
_TURN = 0.001  # seconds that a thread which unpacks a message keeps the interpreter from the others
_FILES = 65536  # connections and files that may be open, if the system allows so many


@dataclass(frozen=True)
class Hosting:
    """Where and how a server listens. gRPC is at the next port, metrics at the one after."""

    port: int = 8080
    address: str = "127.0.0.1"
    limits: ServeLimits = ServeLimits()
    certificate: Path | None = None
    private_key: Path | None = None
    threads: int = 1  # of the processor, for each request
    insecure: bool = False  # listen beyond this machine without token or TLS

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65533:
            raise ExhumeError(f"port: {self.port} given, legal is 1 to 65533 (three are used)")
        if (self.certificate is None) != (self.private_key is None):
            raise ExhumeError("TLS: a certificate and its key belong together")
        for path in filter(None, (self.certificate, self.private_key)):
            if not path.is_file():
                raise ExhumeError(f"TLS: there is no file {path}")
        if self.private_key is not None:
            private_bytes(self.private_key, "TLS")
        lacking = [
            what
            for what, there in (("a token", self.limits.token), ("TLS", self.certificate))
            if not there
        ]
        if lacking and not self.insecure and not _here(self.address):
            raise ExhumeError(
                f"host: {self.address} is reached from other machines, and there is not "
                f"{' nor '.join(lacking)}; give --token-file, --certificate and --private-key, or "
                "--insecure if something in front sees to it"
            )


def _here(address: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def host(server: Path, hosting: Hosting, *, only: Sequence[int] | None = None) -> None:
    """Serve until stopped. Bodies are checked before a port is opened."""
    if only is not None and not only:
        raise ExhumeError("only: no body is named")
    indices = _bodies(server, only)
    models = [_settings_of(server / f"body{index}") for index in indices]
    served = _served(server, indices, models)
    _allow_files()
    torch.set_num_threads(hosting.threads)
    sys.setswitchinterval(_TURN)
    settings = Settings(
        debug=False,
        host=hosting.address,
        http_port=hosting.port,
        grpc_port=hosting.port + 1,
        metrics_port=hosting.port + 2,
        parallel_workers=0,
        model_repository_root=str(server),
        load_models_at_startup=False,
        server_name="exhume",
        gzip_enabled=False,
    )
    with asyncio.Runner(loop_factory=lambda: _Loop(hosting.limits.seconds)) as runner:
        runner.run(_run(settings, hosting, served, models))


async def _run(
    settings: Settings, hosting: Hosting, served: Served, models: list[ModelSettings]
) -> None:
    await _Guarded(settings, hosting, served).start(models)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers give up a TLS handshake in time; uvicorn has no setting for it."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def create_server(self, *given: Any, ssl: Any = None, **more: Any) -> asyncio.Server:
        if ssl is not None:
            more["ssl_handshake_timeout"] = self._seconds
        return await super().create_server(*given, ssl=ssl, **more)


def _served(server: Path, indices: Sequence[int], models: Sequence[ModelSettings]) -> Served:
    """What the models are, read from their checked weights."""
    features = {}
    for index, model in zip(indices, models, strict=True):
        factory = (model.parameters.extra or {}).get("factory", "")
        (kept,) = load_bodies(server, only=[index], factory=factory)
        features[model.name] = kept.feature
    return Served({model.name: str(model.parameters.version) for model in models}, features)


def _allow_files() -> None:
    """As many open connections as the system lets this process have, up to a limit."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now != resource.RLIM_INFINITY and now < _FILES:
        allowed = _FILES if most == resource.RLIM_INFINITY else min(_FILES, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def _bodies(server: Path, only: Sequence[int] | None) -> list[int]:
    found = bodies_in(server)
    if not found:
        raise ExhumeError(f"server: {server} holds no body; export one there first")
    missing = sorted(set(only or ()) - set(found))
    if missing:
        raise ExhumeError(f"server: {server} has no body{missing[0]}; there are {found}")
    return found if only is None else sorted(set(only))


def _settings_of(folder: Path) -> ModelSettings:
    path = folder / "model-settings.json"
    if not path.is_file():
        raise ExhumeError(f"server: {path} is missing; write the folder with exhume export")
    settings = ModelSettings.parse_file(str(path))
    if settings.implementation_ != RUNTIME:
        raise ExhumeError(f"server: {path} names another runtime than {RUNTIME}")
    if settings.name != folder.name:
        raise ExhumeError(f"server: {path} names another model than {folder.name}")
    return settings


class _Guarded(MLServer):
    """MLServer with our guard in front of each of its doors."""

    def __init__(self, settings: Settings, hosting: Hosting, served: Served) -> None:
        self.hosting, self.served = hosting, served
        super().__init__(settings)

    def _create_servers(self) -> None:
        parts = (self._settings, self._data_plane, self._model_repository_handlers)
        places = WorkPlaces(self.hosting.limits)  # of both doors together
        self._rest_server = _Rest(*parts)
        self._grpc_server = _Grpc(*parts)
        for one in (self._rest_server, self._grpc_server):
            one.hosting, one.served, one.places = self.hosting, self.served, places
        self._metrics_server = _Metrics(self._settings)
        self._metrics_server.limits = self.hosting.limits
        self._kafka_server = None


class _Rest(RESTServer):
    hosting: Hosting
    served: Served
    places: WorkPlaces

    def _get_config(self) -> Any:
        for place in ("", "/versions/{model_version}"):  # found before MLServer's own
            path = f"/v2/models/{{model_name}}{place}/infer"
            self._app.router.routes.insert(0, Route(path, self._infer, methods=["POST"]))
        config = super()._get_config()
        guard_connections(config, self.hosting.limits)
        config.app = RequestGuard(config.app, self.hosting.limits, self.served, self.places)
        if self.hosting.certificate is not None:
            config.ssl_certfile = str(self.hosting.certificate)
            config.ssl_keyfile = str(self.hosting.private_key)
        return config

    async def _infer(self, request: Request) -> Response:
        """MLServer's own unpacks the message; here the guard has done so already."""
        named = request.path_params
        payload = _payload(request.scope[ASKED])
        found = await self._data_plane.infer(
            payload, named["model_name"], named.get("model_version")
        )
        return Response(found.model_dump(exclude_none=True))


class _Metrics(MetricsServer):
    limits: ServeLimits

    def _get_config(self) -> Any:
        config = super()._get_config()
        guard_connections(config, self.limits)
        config.app = MetricsGuard(config.app, self._settings.metrics_endpoint)
        return config


class _Grpc(GRPCServer):
    hosting: Hosting
    served: Served
    places: WorkPlaces

    async def start(self) -> None:
        port, most = self._settings.grpc_port, self.hosting.limits.connections
        limited = asyncio.create_task(keep_few_connections(port, most))
        try:
            await super().start()
        finally:
            limited.cancel()

    def _create_server(self) -> Any:
        limits = self.hosting.limits
        self._server = aio.server(
            ThreadPoolExecutor(max_workers=1),
            interceptors=[CallGuard(limits, self.places)],
            options=self._get_options(),
        )
        servicer = _Servicer(self._data_plane, self._model_repository_handlers)
        servicer.served = self.served
        add_GRPCInferenceServiceServicer_to_server(servicer, self._server)
        place = f"{self._settings.host}:{self._settings.grpc_port}"
        if self.hosting.certificate is None or self.hosting.private_key is None:
            bound = self._server.add_insecure_port(place)
        else:
            key = private_bytes(self.hosting.private_key, "TLS")
            pair = (key, self.hosting.certificate.read_bytes())
            bound = self._server.add_secure_port(place, grpc.ssl_server_credentials([pair]))
        if not bound:
            raise ExhumeError(f"port: {place} cannot be opened")
        return self._server

    def _get_options(self) -> list[tuple[str, Any]]:
        """The size is that of messages received; compressed ones would be unpacked to any size."""
        limits = self.hosting.limits
        patience = int(1000 * limits.seconds)
        return [
            ("grpc.max_receive_message_length", self.served.binary_bytes(limits)),
            ("grpc.max_send_message_length", -1),
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.per_message_decompression", 0),
            ("grpc.max_concurrent_streams", 4 * limits.awaited),
            ("grpc.server_handshake_timeout_ms", patience),
            ("grpc.max_connection_idle_ms", _IDLE),
            ("grpc.max_connection_age_ms", _AGE),
            ("grpc.max_connection_age_grace_ms", 2 * patience),
            ("grpc.so_reuseport", 0),
        ]


class _Servicer(InferenceServicer):
    """Models that are not here and messages that do not fit are the sender's fault, and are called so."""

    served: Served

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802 - MLServer's names
        await self._known(request.name, request.version, context)
        return await super().ModelReady(request, context)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._known(request.name, request.version, context)
        return await super().ModelMetadata(request, context)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        name, version = request.model_name, request.model_version
        await self._known(name, version, context)
        try:
            asked = await asyncio.to_thread(features_in, request, self.served.features[name])
            found = await self._data_plane.infer(_payload(asked), name, version)
        except (BadRequest, MLServerError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return ModelInferResponseConverter.from_types(
            found, use_raw=bool(request.raw_input_contents)
        )

    async def _known(self, name: str, version: str, context: Any) -> None:
        if not self.served.has(name, version):
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such model")


def _payload(asked: FeatureRequest) -> InferenceRequest:
    """For MLServer, around the array itself: its own lists of numbers are slow and large."""
    given = RequestInput.model_construct(
        name="features",
        shape=list(asked.features.shape),
        datatype="FP32",
        parameters=None,
        data=asked.features,
    )
    return InferenceRequest.model_construct(
        id=asked.id, parameters=None, inputs=[given], outputs=None
    )
