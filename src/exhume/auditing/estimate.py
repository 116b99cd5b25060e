"""What an attack will cost, before it is run: from operation counts and a nominal speed.

Nothing is timed where it can be counted, so that the same settings give the same plan on every machine,
busy or idle. The speeds are those of one core of a common server, on the slow side. Only the user's own
training function has to be timed: once, and the time is kept in the run folder.
"""

from __future__ import annotations

import time
from math import prod

import torch
from torch import nn

from exhume.attacks.gradient.text.attack import TextAttack
from exhume.attacks.gradient.text.pooling import pooling_of
from exhume.contract import Architecture, Key, Recipe, Records, Store
from exhume.models.own.architecture import fully_connected
from exhume.models.own.language import LanguageModel
from exhume.models.own.text import TextModel
from exhume.models.split.cost import multiply_adds
from exhume.store import address, cached, digest
from exhume.train.batch_norm import mixes_batches
from exhume.train.recipe import FullBatch, MiniBatch

__all__ = [
    "forward_operations",
    "language_seconds",
    "network_seconds",
    "search_seconds",
    "seconds_of",
    "seconds_per_model",
    "seconds_per_model_of",
    "stacked_seconds",
    "text_seconds",
]

_STACKED = 40e9  # operations a second and thread: MLPs, trained side by side
_GENERAL = 15e9  # any other module
_SEARCHED = 120e9  # a search for inputs of an MLP, counted as if it never ended early
_LAYER = 6e-4  # seconds of overhead a step and layer, where models are trained one after another
_PRIVATE = 3.0  # times as long with clipping
_SWEEPS = 3  # over the places of a text, until its words no longer change
_EACH = 2e-5  # seconds of overhead a text


def forward_operations(architecture: Architecture) -> float:
    """Floating-point operations of one record's way through the network."""
    mlp = fully_connected(architecture)
    if mlp is not None:
        return 2.0 * sum(prod(s) for s in mlp.layout.shapes if len(s) > 1)
    return 2 * multiply_adds(architecture.build(), architecture.input_shape)


def network_seconds(network: nn.Module, shape: tuple[int, ...], threads: int) -> float:
    """Of one record's way through any network."""
    return seconds_of(2 * multiply_adds(network, shape), threads)


def seconds_of(operations: float, threads: int = 1) -> float:
    """At the nominal speed of any module but a stack of MLPs."""
    return operations / (_GENERAL * threads)


def stacked_seconds(architecture: Architecture, records: int) -> float:
    """Of so many ways of a record through the network and back, in training."""
    speed = _GENERAL if fully_connected(architecture) is None else _STACKED
    return 3 * records * forward_operations(architecture) / speed


def search_seconds(architecture: Architecture, records: int) -> float:
    """Of so many ways through the network and back, in a search for inputs."""
    speed = _GENERAL if fully_connected(architecture) is None else _SEARCHED
    return 3 * records * forward_operations(architecture) / speed


def language_seconds(net: LanguageModel, batch: int) -> float:
    """Of one update of a language model: each token after each beginning, through its first layers."""
    tried = (batch * net.length) ** 2 / 32
    return seconds_of(forward_operations(net) * (tried + 3 * batch)) + 2.0


def text_seconds(net: TextModel, batch: int) -> float:
    """Of one update of a text model: some sweeps over places and tokens, where it is searched."""
    kind = pooling_of(net, net.initial(Key.from_seed(0))).kind if net.head else "other"
    if kind != "other":
        return 2.0 + 0.1 * batch
    usual = TextAttack()
    options = min(usual.options, batch * net.length)
    sentences = batch * _SWEEPS * usual.starts * options * net.length + usual.largest
    return 2.0 + seconds_of(sentences * forward_operations(net)) + _EACH * sentences


def seconds_per_model(
    recipe: Recipe, fixed: Records, *, threads: int, initial: torch.Tensor, key: Key, store: Store
) -> float:
    """Of training one model on so many records and one more."""
    counted = seconds_per_model_of(recipe, len(fixed), threads)
    return _timed(recipe, fixed, initial, key, store) if counted is None else counted


def seconds_per_model_of(recipe: Recipe, known: int, threads: int) -> float | None:
    """Of training one model on so many records and one more; None: it has to be timed."""
    if not isinstance(recipe, FullBatch | MiniBatch):
        return None
    net, steps, rows = recipe.architecture, recipe.descent.steps, known + 1
    if isinstance(recipe, MiniBatch):
        rows = min(rows, recipe.order.size)
    clipped = isinstance(recipe, FullBatch) and recipe.privacy.clips
    seconds = stacked_seconds(net, rows * steps) / threads * (_PRIVATE if clipped else 1)
    if mixes_batches(net):
        layers = [m for m in net.build().modules() if any(True for _ in m.parameters(False))]
        seconds += _LAYER * len(layers) * steps
    return seconds


def _timed(recipe: Recipe, fixed: Records, initial: torch.Tensor, key: Key, store: Store) -> float:
    place = address("seconds per model", recipe, (digest(fixed), digest(initial)), key, 0)

    def timed() -> dict[str, torch.Tensor]:
        started = time.perf_counter()
        recipe.fit(initial, fixed, fixed.none_for(1), key)
        return {"seconds": torch.tensor(time.perf_counter() - started, dtype=torch.float64)}

    return float(cached(store, place, timed)["seconds"])
