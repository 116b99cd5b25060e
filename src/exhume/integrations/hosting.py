"""Start MLServer with some bodies of an exported server folder, behind a guard."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exhume.contract import ExhumeError
from exhume.integrations.exporting import RUNTIME
from exhume.integrations.mlserver_guard import CallGuard, Limits, RequestGuard
from exhume.models.split.parts import bodies_in, load_bodies

try:
    import grpc
    from grpc import aio
    from mlserver import MLServer, ModelSettings, Settings
    from mlserver.errors import InferenceError
    from mlserver.grpc import GRPCServer
    from mlserver.grpc.dataplane_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
    from mlserver.grpc.servicers import InferenceServicer
    from mlserver.rest import RESTServer
except ImportError as missing:
    raise ExhumeError(
        f"MLServer is not installed ({missing}): pip install 'exhume[serve]'"
    ) from missing

__all__ = ["Hosting", "host"]


@dataclass(frozen=True)
class Hosting:
    """Where and how a server listens. gRPC is at the next port, metrics at the one after."""

    port: int = 8080
    address: str = "127.0.0.1"
    limits: Limits = Limits()
    certificate: Path | None = None
    private_key: Path | None = None
    threads: int = 1  # of the processor, for each request

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65533:
            raise ExhumeError(f"port: {self.port} given, legal is 1 to 65533 (three are used)")
        if (self.certificate is None) != (self.private_key is None):
            raise ExhumeError("TLS: a certificate and its key belong together")
        for path in filter(None, (self.certificate, self.private_key)):
            if not path.is_file():
                raise ExhumeError(f"TLS: there is no file {path}")


def host(server: Path, hosting: Hosting, *, only: Sequence[int] | None = None) -> None:
    """Serve until stopped. Bodies are checked before a port is opened."""
    if only is not None and not only:
        raise ExhumeError("only: no body is named")
    indices = _bodies(server, only)
    models = [_settings_of(server / f"body{index}") for index in indices]
    factories = {(m.parameters.extra or {}).get("factory", "") for m in models}
    for factory in factories:
        load_bodies(server, only=indices, factory=factory)
    torch.set_num_threads(hosting.threads)
    settings = Settings(
        debug=False,
        host=hosting.address,
        http_port=hosting.port,
        grpc_port=hosting.port + 1,
        metrics_port=hosting.port + 2,
        grpc_max_message_length=hosting.limits.bytes,
        parallel_workers=0,
        model_repository_root=str(server),
        load_models_at_startup=False,
        server_name="exhume",
        gzip_enabled=False,
    )
    asyncio.run(_run(settings, hosting, models))


async def _run(settings: Settings, hosting: Hosting, models: list[ModelSettings]) -> None:
    await _Guarded(settings, hosting).start(models)


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
    return settings


class _Guarded(MLServer):
    """MLServer with our guard in front of both of its doors."""

    def __init__(self, settings: Settings, hosting: Hosting) -> None:
        self.hosting = hosting
        super().__init__(settings)

    def _create_servers(self) -> None:
        parts = (self._settings, self._data_plane, self._model_repository_handlers)
        self._rest_server = _Rest(*parts)
        self._rest_server.hosting = self.hosting
        self._grpc_server = _Grpc(*parts)
        self._grpc_server.hosting = self.hosting
        self._kafka_server = None


class _Rest(RESTServer):
    hosting: Hosting

    def _get_config(self) -> Any:
        config = super()._get_config()
        limits = self.hosting.limits
        config.app = RequestGuard(config.app, limits)
        config.limit_concurrency = limits.at_once
        config.timeout_keep_alive = int(limits.seconds) + 1
        if self.hosting.certificate is not None:
            config.ssl_certfile = str(self.hosting.certificate)
            config.ssl_keyfile = str(self.hosting.private_key)
        return config


class _Grpc(GRPCServer):
    hosting: Hosting

    def _create_server(self) -> Any:
        limits = self.hosting.limits
        self._server = aio.server(
            ThreadPoolExecutor(max_workers=1),
            interceptors=[CallGuard(limits)],
            options=[*self._get_options(), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=limits.at_once,
        )
        servicer = _Servicer(self._data_plane, self._model_repository_handlers)
        add_GRPCInferenceServiceServicer_to_server(servicer, self._server)
        place = f"{self._settings.host}:{self._settings.grpc_port}"
        if self.hosting.certificate is None or self.hosting.private_key is None:
            bound = self._server.add_insecure_port(place)
        else:
            pair = (self.hosting.private_key.read_bytes(), self.hosting.certificate.read_bytes())
            bound = self._server.add_secure_port(place, grpc.ssl_server_credentials([pair]))
        if not bound:
            raise ExhumeError(f"port: {place} cannot be opened")
        return self._server


class _Servicer(InferenceServicer):
    """Tensors that do not fit their own shape are the sender's fault, and are called so."""

    def _InsertHeaders(self, request: Any, context: Any) -> Any:  # noqa: N802 - MLServer's name
        try:
            return super()._InsertHeaders(request, context)
        except (struct.error, ValueError, KeyError, IndexError, OverflowError) as error:
            raise InferenceError(f"the request cannot be read ({error})") from error
