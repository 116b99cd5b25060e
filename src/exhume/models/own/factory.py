"""The user's model by name: `package.module:factory`, or `file.py:factory`, called without arguments."""

from __future__ import annotations

from torch import nn

from exhume.contract import Architecture, ExhumeError
from exhume.naming import called, named

__all__ = ["model_named"]


def model_named(spec: str) -> nn.Module | Architecture:
    """What the factory returns: a module at its present weights, or an architecture of ours."""
    made = named(spec, "model")
    if not isinstance(made, nn.Module | Architecture) and callable(made):
        made = called(made, spec, "model")
    if not isinstance(made, nn.Module | Architecture):
        raise ExhumeError(f"model: {spec} gives a {type(made).__name__}, not an nn.Module")
    return made
