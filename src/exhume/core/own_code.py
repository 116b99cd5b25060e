"""The user's own code: found by name, called, and known by what it does.

A name is `package.module:thing` or `file.py:thing`. It does not say which code ran: files are edited
between two runs. `digest_of_code` is of the byte code that is loaded, and of the code and values of the
user's own that it mentions, so that work kept under it is never taken for the work of another version.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import random
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace

import numpy as np
import torch

from exhume.core.contract import ExhumeError, Key
from exhume.core.notation import refuse_code

_IMPORT = Key.from_seed(0).fold("import")  # what is drawn at the top of a file is always the same


def named(spec: str, what: str, root: Path | None = None) -> object:
    """What the name stands for. what: begins every complaint; root: where names count from, else here."""
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise ExhumeError(f"{what}: {spec!r} is not of the form package.module:factory")
    refuse_code(spec, what)
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


# What code does, as a digest


_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_INSTALLED = tuple(
    Path(sysconfig.get_paths()[kind]).resolve() for kind in ("stdlib", "platstdlib", "purelib")
)


def digest_of_code(*roots: object) -> str:
    """Digest of functions and classes, and of all the user's own code and plain values that they mention.

    Installed packages count by name. Of values, plain ones, arrays and containers of these are seen, and the
    attributes of objects whose class is the user's own.
    """
    state, waiting = hashlib.sha256(), deque(roots)
    seen: dict[int, object] = {}  # held on to, so that no number is given twice
    while waiting:
        thing = waiting.popleft()
        if id(thing) in seen and not isinstance(thing, _PLAIN):
            continue
        seen[id(thing)] = thing
        text, mentioned = _read(thing)
        state.update(f"{text};".encode())
        waiting += mentioned
    return state.hexdigest()


def _read(thing: object) -> tuple[str, list[object]]:
    """A text for the thing itself, and what it mentions."""
    if isinstance(thing, FunctionType):
        return _read_function(thing)
    if isinstance(thing, type):
        return _read_class(thing)
    if isinstance(thing, _PLAIN):
        return repr(thing), []
    if isinstance(thing, np.ndarray | torch.Tensor):
        values = np.ascontiguousarray(
            thing.detach().cpu() if isinstance(thing, torch.Tensor) else thing
        )
        return f"{values.dtype}{values.shape}{hashlib.sha256(values.tobytes()).hexdigest()}", []
    return type(thing).__name__, _inside(thing)


def _inside(thing: object) -> list[object]:
    """What a container, a wrapper of a function or an object of the user's own holds."""
    match thing:
        case tuple() | list():
            inside: list[object] = [len(thing), *thing]
        case set() | frozenset():
            inside = sorted(map(repr, thing), key=str)
        case dict():
            inside = [len(thing), *thing.keys(), *thing.values()]
        case staticmethod() | classmethod():
            inside = [thing.__func__]
        case property():
            inside = [thing.fget, thing.fset]
        case MethodType():
            inside = [thing.__func__, thing.__self__]
        case partial():
            inside = [thing.func, thing.args, thing.keywords]
        case SimpleNamespace():
            inside = [vars(thing)]
        case _:
            own = _own_class(type(thing)) and hasattr(thing, "__dict__")
            inside = [type(thing), vars(thing)] if own else []
    return inside


def _read_function(function: FunctionType) -> tuple[str, list[object]]:
    if not _own(function.__code__.co_filename):
        return f"{function.__module__}.{function.__qualname__}", []
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    given = [function.__defaults__, *(function.__kwdefaults__ or {}).values()]
    return f"function {_code(function.__code__)}", [*given, *cells, *_globals(function)]


def _read_class(kind: type) -> tuple[str, list[object]]:
    if not _own_class(kind):
        return f"{kind.__module__}.{kind.__qualname__}", []
    members = {name: value for name, value in vars(kind).items() if name not in _CIRCUMSTANCES}
    return f"class {list(members)}", [*kind.__bases__, *members.values()]


_CIRCUMSTANCES = (
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__firstlineno__",
    "__static_attributes__",
)


def _own_class(kind: type) -> bool:
    home = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or _own(home)


def _own(file: str | None) -> bool:
    """Whether code in this file is the user's own: neither installed nor ours."""
    if file is None:
        return False
    path = Path(file).resolve()
    ours = Path(__file__).resolve().parents[1]
    installed = any(path.is_relative_to(place) for place in (*_INSTALLED, ours))
    return not installed and not {"site-packages", "dist-packages"} & set(path.parts)


def _code(code: CodeType) -> str:
    """Byte code and constants; not names of files and numbers of lines."""
    inner = [_constant(c) for c in code.co_consts]
    return f"{code.co_code.hex()}{code.co_names}{code.co_varnames}{inner}"


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _code(value)
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _globals(function: FunctionType) -> Iterator[object]:
    """What a function's names stand for, directly or inside a module of the user's own."""
    known, names = function.__globals__, sorted(set(_names(function.__code__)))
    for name in names:
        if name not in known or name.startswith("__"):  # __file__ is a circumstance
            continue
        value = known[name]
        if isinstance(value, ModuleType) and _own(getattr(value, "__file__", None)):
            yield from (vars(value)[inner] for inner in names if inner in vars(value))
        else:
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
