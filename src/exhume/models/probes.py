"""What the layers of a network take and give while it runs: every forward hook of the package.

`before` and `after` call back for each named layer, in the order of use; `inputs_of` keeps what one layer
takes. `change_inputs` and `change_outputs` stay on a module, and on its copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def before(
    module: nn.Module, layers: Iterable[str], see: Callable[[str, Any], object]
) -> Iterator[None]:
    """Call see(name, input) whenever one of the layers is about to run; its exceptions end the run."""

    def hooked(name: str, layer: nn.Module) -> Any:
        def note(own: nn.Module, args: Any, kwargs: Any) -> None:
            see(name, layer_input(own, args, kwargs))

        return layer.register_forward_pre_hook(note, with_kwargs=True)

    hooks = [hooked(name, module.get_submodule(name)) for name in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def after(
    module: nn.Module, layers: Iterable[str], see: Callable[[str, Any, Any], object]
) -> Iterator[None]:
    """Call see(name, inputs, outputs) whenever one of the layers has run."""

    def hooked(name: str, layer: nn.Module) -> Any:
        def note(_: nn.Module, inputs: Any, outputs: Any) -> None:
            see(name, inputs, outputs)

        return layer.register_forward_hook(note)

    hooks = [hooked(name, module.get_submodule(name)) for name in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def inputs_of(module: nn.Module, layer: str) -> Iterator[list[Tensor]]:
    """What the layer takes, call by call; gradients flow through it."""
    seen: list[Tensor] = []
    with before(module, [layer], lambda _, given: seen.append(given)):
        yield seen


def leaves(module: nn.Module) -> list[str]:
    """Layers that have no others inside."""
    return [name for name, layer in module.named_modules() if not list(layer.children())]


def layer_input(layer: nn.Module, args: Any, kwargs: Any) -> Any:
    """The first input; of attention, with the records first."""
    values = [*args, *kwargs.values()]
    seen = values[0] if values else None
    turned = isinstance(layer, nn.MultiheadAttention) and not layer.batch_first
    return seen.transpose(0, 1) if turned and isinstance(seen, Tensor) and seen.ndim == 3 else seen


def change_inputs(
    module: nn.Module, change: Callable[[nn.Module, Any, Any], Any], *, first: bool = False
) -> Any:
    """From now on the module takes the (args, kwargs) that change(module, args, kwargs) returns.

    first: before changes that are there already. Whoever holds what is returned can remove it.
    """
    return module.register_forward_pre_hook(change, with_kwargs=True, prepend=first)


def change_outputs(module: nn.Module, change: Callable[[nn.Module, Any, Any], Any]) -> None:
    """From now on the module gives what change(module, args, outputs) returns."""
    module.register_forward_hook(change)
