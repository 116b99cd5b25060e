"""What training costs before it is done: operations, and seconds at a nominal speed.

The same recipe costs the same on every machine, busy or idle. The speeds are those of one core of a common
server, on the slow side.
"""

from __future__ import annotations

from math import prod

from exhume.core.contract import Architecture, Recipe
from exhume.models.own.architecture import fully_connected
from exhume.models.split.cost import multiply_adds
from exhume.train.batch_norm import mixes_batches
from exhume.train.recipe import FullBatch, MiniBatch

__all__ = [
    "GENERAL",
    "forward_operations",
    "seconds_per_model_of",
    "stacked_seconds",
    "training_operations",
]

_STACKED = 40e9  # operations a second and thread: MLPs, trained side by side
GENERAL = 15e9  # any other module
_LAYER = 6e-4  # seconds of overhead a step and layer, where models are trained one after another
_PRIVATE = 3.0  # times as long with clipping


def forward_operations(architecture: Architecture) -> float:
    """Floating-point operations of one record's way through the network."""
    mlp = fully_connected(architecture)
    if mlp is not None:
        return 2.0 * sum(prod(s) for s in mlp.layout.shapes if len(s) > 1)
    return 2 * multiply_adds(architecture.build(), architecture.input_shape)


def training_operations(recipe: Recipe, known: int) -> float | None:
    """Of training one model on so many records and one more; None: it is the user's own training."""
    if not isinstance(recipe, FullBatch | MiniBatch):
        return None
    return 3 * _rows(recipe, known) * recipe.descent.steps * forward_operations(recipe.architecture)


def _rows(recipe: FullBatch | MiniBatch, known: int) -> int:
    """Records that a step sees."""
    return min(known + 1, recipe.order.size) if isinstance(recipe, MiniBatch) else known + 1


def stacked_seconds(architecture: Architecture, records: int) -> float:
    """Of so many ways of a record through the network and back, in training."""
    speed = GENERAL if fully_connected(architecture) is None else _STACKED
    return 3 * records * forward_operations(architecture) / speed


def seconds_per_model_of(recipe: Recipe, known: int, threads: int) -> float | None:
    """Of training one model on so many records and one more; None: it has to be timed."""
    if not isinstance(recipe, FullBatch | MiniBatch):
        return None
    net, steps, rows = recipe.architecture, recipe.descent.steps, _rows(recipe, known)
    clipped = isinstance(recipe, FullBatch) and recipe.privacy.clips
    seconds = stacked_seconds(net, rows * steps) / threads * (_PRIVATE if clipped else 1)
    if mixes_batches(net):
        layers = [m for m in net.build().modules() if any(True for _ in m.parameters(False))]
        seconds += _LAYER * len(layers) * steps
    return seconds
