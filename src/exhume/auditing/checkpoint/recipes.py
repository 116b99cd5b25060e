"""Ways of training that end where an attack on weights can read them, for controls."""

from __future__ import annotations

from dataclasses import replace

from exhume.core.contract import Architecture
from exhume.models.heads import Head
from exhume.models.homogeneous import HomogeneousMLP
from exhume.models.matrices import Dense
from exhume.train.margin import MarginDescent
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

__all__ = ["decayed", "recipe_like"]

_EPOCHS = 20_000
_DECAY = 2e-3
_CONVOLVED = Descent(5000, 0.05, 0.9, 0.01)  # as the study `margin-ordinary` trains its network


def recipe_like(network: Dense, head: Head, *, spans: bool) -> MarginDescent:
    """A training that ends where the attack can read it. spans: by weight decay; else by a small start.

    A small start is there for homogeneous networks only: the others need decay.
    """
    if isinstance(network, HomogeneousMLP) and not spans:
        small = replace(network, first_scale=1e-4)
        return MarginDescent(small, head, growing_steps=0.003, epochs=_EPOCHS)
    return MarginDescent(network, head, weight_decay=_DECAY, stop_loss=0.0, epochs=_EPOCHS)


def decayed(network: Architecture) -> FullBatch:
    """The same of any network: weight decay until the start is gone."""
    return FullBatch(network, _CONVOLVED)
