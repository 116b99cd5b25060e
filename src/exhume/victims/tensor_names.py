"""Whether the tensors of a file are those of a model; if not, one sentence on what it has instead."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from exhume.core.contract import ExhumeError

__all__ = ["check_names"]

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
