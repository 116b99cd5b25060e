"""Bodies of a split network on MLServer as it is: one of them as a model, and a server that holds some.

`exhume export` writes the `model-settings.json` that names `Body`, which knows nothing but its weights. What
a request may hold is checked before it reaches the network: one input of the right type and shape, not too
many records, finite. Limits, tokens and TLS are nginx's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from exhume.core.contract import ExhumeError
from exhume.integrations.exporting import MOST, RUNTIME
from exhume.models.split.parts import KeptBody, bodies_in, load_bodies, load_body

try:
    from mlserver import MLModel, MLServer, ModelSettings, Settings
    from mlserver.errors import InferenceError
    from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput
    from mlserver.utils import get_model_uri
except ImportError as missing:
    raise ExhumeError(
        f"MLServer is not installed ({missing}): pip install 'exhume[serve]'"
    ) from missing

_AROUND = 16 * 1024  # bytes of a message besides its numbers


class Body(MLModel):
    """Loaded once, computes in a thread, so that the server goes on answering."""

    kept: KeptBody

    async def load(self) -> bool:
        weights = await get_model_uri(self.settings)
        extra = (self.settings.parameters and self.settings.parameters.extra) or {}
        self.kept = load_body(Path(weights).parent, factory=str(extra.get("factory", "")))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        answer = await asyncio.to_thread(self._answer, payload)
        output = ResponseOutput(
            name="answer",
            shape=list(answer.shape),
            datatype="FP32",
            data=answer.ravel().tolist(),
        )
        return InferenceResponse(
            id=payload.id, model_name=self.name, model_version=self.version, outputs=[output]
        )

    def _answer(self, payload: InferenceRequest) -> Any:
        features = features_of(payload, self.kept.feature)
        with torch.inference_mode():
            return self.kept.module(torch.from_numpy(features)).numpy()


def features_of(
    payload: InferenceRequest, shape: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """(n, *shape) of a request, or an error that names what is wrong with it."""
    if len(payload.inputs) != 1 or payload.inputs[0].name != "features":
        raise InferenceError("one input named features is needed")
    given = payload.inputs[0]
    if given.datatype != "FP32":
        raise InferenceError(f"features: datatype FP32 is needed, {str(given.datatype)[:20]} given")
    stated = tuple(given.shape)
    if stated[1:] != shape or not 1 <= stated[0] <= MOST:
        raise InferenceError(
            f"features: shape (n, {', '.join(map(str, shape))}) with n from 1 to {MOST} is needed, "
            f"{str(stated)[:60]} given"
        )
    try:
        with np.errstate(over="ignore"):  # infinite then, which is refused below
            values = np.asarray(given.data.root, dtype=np.float32).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise InferenceError("features: the data are no numbers in one array") from error
    if values.size != math.prod(stated):
        raise InferenceError(f"features: {values.size} numbers given for shape {stated}")
    if not bool(np.isfinite(values).all()):
        raise InferenceError("features: NaN or infinite values")
    return values.reshape(stated)


# A server of some of them


@dataclass(frozen=True)
class Hosting:
    """Where a server listens. gRPC is at the next port, metrics at the one after."""

    port: int = 8080
    address: str = "127.0.0.1"
    threads: int = 1  # of the processor, for each request
    insecure: bool = False  # listen beyond this machine

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65533:
            raise ExhumeError(f"port: {self.port} given, legal is 1 to 65533 (three are used)")
        if not self.insecure and not _here(self.address):
            raise ExhumeError(
                f"host: {self.address} is reached from other machines, and the server has neither a token "
                "nor TLS nor limits: put nginx in front (docs/serve.md), or give --insecure if "
                "something else sees to it"
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
    models = [_settings_of(server / f"body{index}") for index in _bodies(server, only)]
    torch.set_num_threads(hosting.threads)
    settings = Settings(
        debug=False,
        host=hosting.address,
        http_port=hosting.port,
        grpc_port=hosting.port + 1,
        metrics_port=hosting.port + 2,
        grpc_max_message_length=_AROUND + 4 * MOST * max(_numbers(model) for model in models),
        parallel_workers=0,
        model_repository_root=str(server),
        load_models_at_startup=False,
        server_name="exhume",
        gzip_enabled=False,
    )
    asyncio.run(_run(settings, models))


async def _run(settings: Settings, models: list[ModelSettings]) -> None:
    logging.getLogger("mlserver.grpc").addFilter(_in_one_line)
    await MLServer(settings).start(models)


def _in_one_line(record: logging.LogRecord) -> bool:
    """MLServer logs a traceback for every request that is refused; its sentence is enough."""
    record.exc_info = None
    return True


def _numbers(model: ModelSettings) -> int:
    """Numbers of one record, sent or answered."""
    return max(math.prod(map(int, t.shape[1:])) for t in (*model.inputs, *model.outputs))


def _bodies(server: Path, only: Sequence[int] | None) -> list[int]:
    indices = bodies_in(server)
    if not indices:
        raise ExhumeError(f"server: {server} holds no body; export one there first")
    missing = sorted(set(only or ()) - set(indices))
    if missing:
        raise ExhumeError(f"server: {server} has no body{missing[0]}; there are {indices}")
    return indices if only is None else sorted(set(only))


def _settings_of(folder: Path) -> ModelSettings:
    """What MLServer is to load; its weights are read once to see that they are whole."""
    path = folder / "model-settings.json"
    if not path.is_file():
        raise ExhumeError(f"server: {path} is missing; write the folder with exhume export")
    settings = ModelSettings.parse_file(str(path))
    if settings.implementation_ != RUNTIME:
        raise ExhumeError(f"server: {path} names another runtime than {RUNTIME}")
    if settings.name != folder.name:
        raise ExhumeError(f"server: {path} names another model than {folder.name}")
    factory = (settings.parameters.extra or {}).get("factory", "")
    load_bodies(folder.parent, only=[int(folder.name.removeprefix("body"))], factory=factory)
    return settings
