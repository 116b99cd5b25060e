"""One body of a split network as an MLServer model: features in, its answer out. It knows nothing else.

`exhume export` writes the `model-settings.json` that names this class. What a request may hold is checked
before it reaches the network: one input of the right type and shape, not too many records, finite.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from exhume.core.contract import ExhumeError
from exhume.integrations.exporting import MOST
from exhume.models.split.parts import KeptBody, load_body

try:
    from mlserver import MLModel
    from mlserver.errors import InferenceError
    from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput
    from mlserver.utils import get_model_uri
except ImportError as missing:
    raise ExhumeError(
        f"MLServer is not installed ({missing}): pip install 'exhume[serve]'"
    ) from missing


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
