"""What an attack will cost, before it is run: from operation counts and a nominal speed.

Nothing is timed where it can be counted, so that the same settings give the same plan on every machine,
busy or idle. The speeds are those of one core of a common server, on the slow side. Only the user's own
training function has to be timed: once, in processor seconds, which are kept in the run folder.
"""

from __future__ import annotations

import time

import torch
from torch import nn

from exhume.attacks.gradient.text import TextAttack, pooling_of
from exhume.core.contract import Architecture, Key, Recipe, Records, Store
from exhume.models.own import fully_connected
from exhume.models.own_texts import LanguageModel, TextModel
from exhume.models.split.cost import multiply_adds
from exhume.store.shards import address, cached, digest
from exhume.store.workers import pinned
from exhume.train.fleet import GENERAL, forward_operations, seconds_per_model_of, stacked_seconds

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

_SEARCHED = 120e9  # a search for inputs of an MLP, counted as if it never ended early
_SWEEPS = 3  # over the places of a text, until its words no longer change
_EACH = 2e-5  # seconds of overhead a text


def network_seconds(network: nn.Module, shape: tuple[int, ...], threads: int) -> float:
    """Of one record's way through any network."""
    return seconds_of(2 * multiply_adds(network, shape), threads)


def seconds_of(operations: float, threads: int = 1) -> float:
    """At the nominal speed of any module but a stack of MLPs."""
    return operations / (GENERAL * threads)


def search_seconds(architecture: Architecture, records: int) -> float:
    """Of so many ways through the network and back, in a search for inputs."""
    speed = GENERAL if fully_connected(architecture) is None else _SEARCHED
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
    """Of training one model on so many records and one more, where so many are trained at once."""
    counted = seconds_per_model_of(recipe, len(fixed), threads)
    return _timed(recipe, fixed, initial, key, store) / threads if counted is None else counted


def _timed(recipe: Recipe, fixed: Records, initial: torch.Tensor, key: Key, store: Store) -> float:
    """Processor seconds of one training in one thread: what else the machine does is not counted."""
    place = address("processor seconds per model", recipe, (digest(fixed), digest(initial)), key, 0)

    def timed() -> dict[str, torch.Tensor]:
        with pinned(1):
            started = time.process_time()
            recipe.fit(initial, fixed, fixed.none_for(1), key)
            seconds = time.process_time() - started
        return {"seconds": torch.tensor(seconds, dtype=torch.float64)}

    return float(cached(store, place, timed)["seconds"])
