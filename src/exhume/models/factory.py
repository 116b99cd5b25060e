"""The user's model by name: `package.module:factory`, or `file.py:factory`, called without arguments."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from torch import nn

from exhume.contract import Architecture, ExhumeError

__all__ = ["model_named"]


def model_named(spec: str) -> nn.Module | Architecture:
    """What the factory returns: a module at its present weights, or an architecture of ours."""
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise ExhumeError(f"model: {spec!r} is not of the form package.module:factory")
    made = getattr(_imported(where, spec), name, None)
    if made is None:
        raise ExhumeError(f"model: {where} has no {name}")
    if not isinstance(made, nn.Module | Architecture):
        made = _called(made, spec)
    if not isinstance(made, nn.Module | Architecture):
        raise ExhumeError(f"model: {spec} gives a {type(made).__name__}, not an nn.Module")
    return made


def _imported(where: str, spec: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 - an entry of sys.path is a text
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (ImportError, OSError) as error:
        raise ExhumeError(f"model: {spec}: {error}") from error


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"exhume_user_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _called(factory: object, spec: str) -> object:
    if not callable(factory):
        raise ExhumeError(f"model: {spec} gives a {type(factory).__name__}, not an nn.Module")
    try:
        return factory()
    except Exception as error:
        raise ExhumeError(f"model: {spec} raised {type(error).__name__}: {error}") from error
