"""The user's own code, found by name (`package.module:thing`, `file.py:thing`) and called."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from exhume.core.contract import ExhumeError, Key

__all__ = ["called", "first_line", "named", "seeded_globals"]

_IMPORT = Key.from_seed(0).fold("import")  # what is drawn at the top of a file is always the same


def named(spec: str, what: str, root: Path | None = None) -> object:
    """What the name stands for. what: begins every complaint; root: where names count from, else here."""
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise ExhumeError(f"{what}: {spec!r} is not of the form package.module:factory")
    with seeded_globals(_IMPORT):
        module = _imported(where, spec, what, (root or Path()).resolve())
    if not hasattr(module, name):
        raise ExhumeError(f"{what}: {where} has no {name}")
    found: object = getattr(module, name)
    return found


def called(factory: object, spec: str, what: str) -> object:
    """What the factory returns; what it raises becomes a sentence."""
    if not callable(factory):
        raise ExhumeError(f"{what}: {spec} is a {type(factory).__name__}, which cannot be called")
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ExhumeError(
            f"{what}: {spec} raised {type(error).__name__}: {first_line(error)}"
        ) from error


@contextmanager
def seeded_globals(key: Key) -> Iterator[None]:
    """The global generators of torch, numpy and Python, which other people's code uses, as the key has
    them; put back afterwards.
    """
    plain, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(key.seed())
        random.seed(key.seed())
        np.random.seed(key.seed() % 2**32)
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(arrays)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["no reason given"])[0][:200]


def _imported(where: str, spec: str, what: str, root: Path) -> ModuleType:
    _findable(root)
    try:
        if where.endswith(".py"):
            return _from_file(root / Path(where).expanduser(), where)
        return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ImportError | OSError) else f"{type(error).__name__}: "
        raise ExhumeError(f"{what}: {spec}: {kind}{first_line(error)}") from error


def _findable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _from_file(path: Path, given: str) -> ModuleType:
    """Run the file; it finds the modules beside it, and dataclasses find theirs by its name."""
    name = f"exhume_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no file {given}")
    _findable(path.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
