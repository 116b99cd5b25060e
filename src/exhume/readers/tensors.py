"""Named tensors from a file that somebody else wrote, without running anything in it unless it is trusted."""

from __future__ import annotations

import pickle
import re
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from exhume.core.contract import ExhumeError
from exhume.core.notation import refuse_code
from exhume.core.own_code import first_line
from exhume.store.memory import check_memory

_PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
_HOLDERS = ("base_model.", "model.")  # of PEFT, Lightning and others: also a name of one's own
_EXPORTED = ("/archive_format", "serialized_exported_program.json")  # members that tell the kind
_SCRIPTED = ("/constants.pkl",)
_BROKEN_ARCHIVE = (zipfile.BadZipFile, OSError, ValueError, NotImplementedError)
_ODD_TENSORS = (
    *(RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError, AttributeError),
    *(AssertionError, ArithmeticError, ImportError, MemoryError, struct.error),
)  # what readers of tensors raise on files that nobody has written with them
_LONGEST = 300  # characters of a tensor's name
_NESTED = ("state_dict", "model_state_dict", "model")  # where training loops put the weights
_READ = frozenset(
    {
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    }
)


def read_tensors(
    path: Path, what: str = "checkpoint", *, trust: bool = False
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors by name, and sentences on what was done to find them. what: begins every complaint.

    A `.safetensors` or `.npz` file, or whatever `torch.load(weights_only=True)` accepts: that reads tensors
    and plain containers and refuses a pickle that would import anything. Prefixes of wrapped modules are
    taken off, and `model.` where every name has it.
    trust: also read what runs code while it is loaded: a pickled module, a `torch.export` program.
    """
    if not path.exists():
        raise ExhumeError(f"{what}: there is no file {path}")
    if not path.is_file():
        raise ExhumeError(f"{what}: {path} is a folder; name the file of weights in it")
    if path.stat().st_size == 0:
        raise ExhumeError(f"{what}: {path} is empty")
    _refuse_flood(path, what)
    if path.suffix == ".safetensors":
        loaded: Any = _safe(path, what)
    elif path.suffix == ".npz":
        loaded = _arrays(path, what)
    else:
        loaded = _trusted(path, what) if trust else _pickled(path, what)
    tensors, notes = _state(loaded, path, what)
    _check_plain(tensors, what)
    size = sum(tensor.nbytes for tensor in tensors.values())
    check_memory(2 * size, f"{what}: the numbers in {path}")
    return _without_prefixes(tensors, what), notes


def bare_name(name: str) -> str:
    """A name without what wrappers put before it; for comparing with other bare names only."""
    while name.startswith((*_PREFIXES, *_HOLDERS)):
        name = name.split(".", 1)[1]
    return name


def _safe(path: Path, what: str) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, *_ODD_TENSORS) as error:
        raise _damaged(path, error, what) from error


def _arrays(path: Path, what: str) -> dict[str, Tensor]:
    """The arrays of an .npz file; none of Python objects, which only a pickle could hold."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: torch.from_numpy(np.array(file[name])) for name in file.files}
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise _damaged(path, error, what) from error
        raise ExhumeError(
            f"{what}: {path} holds Python objects, which are not loaded; save arrays of numbers"
        ) from error
    except (*_BROKEN_ARCHIVE, *_ODD_TENSORS) as error:
        raise _damaged(path, error, what) from error


def _trusted(path: Path, what: str) -> Any:
    """Runs what is in the file: its owner has said that it may."""
    refuse_code(path, what)
    try:
        if _holds(path, _EXPORTED):
            return torch.export.load(path).state_dict
        with warnings.catch_warnings(), _importable(path.parent):
            warnings.simplefilter("ignore")
            if _holds(path, _SCRIPTED):
                return torch.jit.load(str(path), map_location="cpu").state_dict()  # type: ignore[no-untyped-call]
            loaded = torch.load(path, map_location="cpu", weights_only=False)
    except (ImportError, AttributeError) as error:
        raise ExhumeError(
            f"{what}: {path} needs code that is not here ({first_line(error)}); run the command in the "
            "folder of its classes or install them (a class of the script that saved it has to move into a "
            "module first), or save model.state_dict(), which needs no code"
        ) from error
    except Exception as error:
        raise _damaged(path, error, what) from error
    return loaded.state_dict() if isinstance(loaded, torch.nn.Module) else loaded


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules here and beside the file can be imported, as by a script."""
    before = list(sys.path)
    sys.path[:0] = [str(Path().resolve()), str(folder.resolve())]
    try:
        yield
    finally:
        sys.path[:] = before


def _pickled(path: Path, what: str) -> Any:
    for marks, kind in ((_EXPORTED, "torch.export program"), (_SCRIPTED, "TorchScript archive")):
        if _holds(path, marks):
            raise ExhumeError(
                f"{what}: {path} is a {kind}, which holds code and is not run unless you trust it "
                "(--trust); save model.state_dict() or a .safetensors file instead"
            )
    if members := _members(path):
        more = f" and {len(members) - 1} more" if len(members) > 1 else ""
        raise ExhumeError(
            f"{what}: {path} is a zip archive with {members[0]}{more}; unpack it and name the file of weights"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch guesses at causes; ours is the sentence below
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
        with path.open("rb") as file:
            first = file.read(1)
        if wanted or first == b"\x80":  # a pickle
            named = f" ({wanted.group(1)})" if wanted else ""
            raise ExhumeError(
                f"{what}: {path} needs Python code to be loaded{named}, which is not run unless you "
                "trust it (--trust); save model.state_dict() or a .safetensors file instead"
            ) from error
        raise _damaged(path, ValueError("no pickle of tensors"), what) from error
    except _ODD_TENSORS as error:
        raise _damaged(path, error, what) from error


def _holds(path: Path, marks: tuple[str, ...]) -> bool:
    """Whether a file is an archive with a member of such a name."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith(marks) for name in archive.namelist())


def _members(path: Path) -> list[str]:
    """Files of a zip archive that torch has not written; none: it is no such archive."""
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    torch_wrote = any(name.endswith("/data.pkl") for name in names)
    return [] if torch_wrote else [name[:_LONGEST] for name in names if not name.endswith("/")]


def _refuse_flood(path: Path, what: str) -> None:
    """Say it now rather than be killed halfway: tensors are held once as read and once as used."""
    size = path.stat().st_size
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                size = max(size, sum(member.file_size for member in archive.infolist()))
    except _BROKEN_ARCHIVE as error:
        raise _damaged(path, error, what) from error
    check_memory(2 * size, f"{what}: the numbers in {path}")


def _damaged(path: Path, error: Exception, what: str) -> ExhumeError:
    first = (str(error).splitlines() or [""])[0][:120]
    why = f" ({first})" if " " in first else ""  # a KeyError says a number, which says nothing
    return ExhumeError(f"{what}: {path} is truncated, damaged or not a file of weights{why}")


def _state(loaded: Any, path: Path, what: str) -> tuple[dict[str, Tensor], list[str]]:
    notes = []
    for name in _NESTED:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(name), Mapping):
            loaded = loaded[name]
            notes.append(f"The weights are the entry {name!r} of the file.")
            break
    if not isinstance(loaded, Mapping):
        raise ExhumeError(
            f"{what}: {path} holds {type(loaded).__name__}, not a state dict of named tensors"
        )
    tensors = {
        str(name): value.detach() for name, value in loaded.items() if isinstance(value, Tensor)
    }
    if not tensors:
        raise ExhumeError(f"{what}: {path} holds no tensors")
    others = [str(name) for name, value in loaded.items() if not isinstance(value, Tensor)]
    if others:
        notes.append(f"Entries that are no tensors were left out: {', '.join(others[:5])}.")
    return tensors, notes


def _check_plain(named: Mapping[str, Tensor], what: str) -> None:
    """Tensors whose numbers are all there: a few bytes can promise more than any memory holds."""
    for name, tensor in named.items():
        if len(name) > _LONGEST:
            raise ExhumeError(
                f"{what}: a tensor's name has {len(name)} characters ({name[:40]}...)"
            )
        odd = _odd_kind(tensor)
        if odd:
            raise ExhumeError(f"{what}: {name} is a {odd} tensor, a plain one is needed")
        if tensor.is_complex():
            raise ExhumeError(f"{what}: {name} holds complex numbers, which no attack reads")
        if tensor.dtype not in _READ:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ExhumeError(f"{what}: {name} holds {kind} values, which no attack reads")
        stored = tensor.untyped_storage().nbytes() // tensor.element_size()
        if tensor.numel() > stored:
            raise ExhumeError(
                f"{what}: {name} has {tensor.numel():,} numbers, its storage {stored:,}; save "
                "tensor.contiguous()"
            )


def _odd_kind(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return "sparse"
    if tensor.is_quantized:
        return "quantised"
    return "" if tensor.device.type == "cpu" else tensor.device.type


def _without_prefixes(named: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    bare: dict[str, Tensor] = {}
    holder = "model." if all(name.startswith("model.") for name in named) else ""
    for name, tensor in named.items():
        short = name.removeprefix(holder)
        while short.startswith(_PREFIXES):
            short = short.split(".", 1)[1]
        if short in bare:
            raise ExhumeError(f"{what}: two tensors are called {short} once prefixes are gone")
        bare[short] = tensor
    return bare


# Whether the tensors of a file are those of a model; if not, one sentence on what it has instead


_SHOWN = 2  # tensors of either side in a sentence


def check_names(
    named: Mapping[str, Tensor],
    module: nn.Module,
    what: str,
    *,
    partial: bool = False,
    argument: str = "payload",
) -> None:
    """Raise `ExhumeError` where tensors are missing, are called otherwise, or have another shape or kind.

    what: names the file in the sentence, argument: the setting; partial: some parameters may be missing, as
    frozen ones are.
    """
    wanted = {n: tuple(p.shape) for n, p in module.named_parameters()}
    buffers = {n for n, _ in module.named_buffers()}
    given = {n: tuple(t.shape) for n, t in named.items()}
    lost = {n: shape for n, shape in wanted.items() if n not in given}
    strange = {n: shape for n, shape in given.items() if n not in wanted and n not in buffers}
    if lost and (strange or not partial or len(lost) == len(wanted)):
        raise ExhumeError(f"{argument}: {_other(what, strange, lost)}")
    for name, shape in wanted.items():
        if name in given:
            _check_tensor(argument, what, name, named[name], shape)


def _other(
    what: str, strange: Mapping[str, tuple[int, ...]], lost: Mapping[str, tuple[int, ...]]
) -> str:
    """What is there in the place of what is not."""
    if not strange:
        return f"{what} lacks {_listed(lost)}"
    sentence = f"{what} has {_listed(strange)}, the model wants {_listed(lost)}"
    if sorted(strange.values()) == sorted(lost.values()):
        return f"{sentence}: the same shapes under other names; rename them"
    return f"{sentence}: it comes from another model"


def _listed(tensors: Mapping[str, tuple[int, ...]]) -> str:
    some = [f"{name} {shape}" for name, shape in list(tensors.items())[:_SHOWN]]
    more = len(tensors) - len(some)
    return ", ".join(some) + (f" and {more} more" if more else "")


def _check_tensor(
    argument: str, what: str, name: str, tensor: Tensor, shape: tuple[int, ...]
) -> None:
    if not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ExhumeError(f"{argument}: {name} holds {kind} values, not floating-point numbers")
    if tuple(tensor.shape) != shape:
        raise ExhumeError(
            f"{argument}: {what} has {name} {tuple(tensor.shape)}, the model wants {name} {shape}: it comes "
            "from another model"
        )
