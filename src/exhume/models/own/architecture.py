"""The user's own network as a value: a factory by name, the shapes it gives, and what its code is.

    architecture_named("model.py:build", input_shape=(1, 28, 28), classes=10)

The factory is called without arguments and returns an `nn.Module` that takes (n, *input_shape) float32
records and returns (n, classes) logits. What training changes is in the layout: parameters that require
a gradient, and running statistics of batch norm in train mode. Everything else (frozen parameters,
constant buffers) is what the factory gives, and is known to whoever knows the architecture.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from exhume.core.contract import Architecture, ExhumeError, Key, Layout
from exhume.models.mlp import MLP
from exhume.models.own.factory import Factory
from exhume.models.own.module import ModuleArchitecture, recognised
from exhume.models.own.per_record_check import keeps_statistics, not_per_record
from exhume.naming import digest_of_code, first_line
from exhume.store.shards import digest

__all__ = ["OwnArchitecture", "architecture_named", "fully_connected"]

_TEMPLATE = Key.from_seed(0).fold("template")  # draws what is not in the layout


def architecture_named(
    spec: str, *, input_shape: tuple[int, ...], classes: int, root: Path | None = None
) -> Architecture:
    """The factory's module as an architecture, or the architecture of ours that it returns.

    root: the folder that the name counts from; None: the present one. One forward pass is tried.
    """
    place = (root or Path()).resolve()
    made = Factory.named(spec, place).made(_TEMPLATE)
    if not isinstance(made, nn.Module):
        if made.input_shape != input_shape:
            raise ExhumeError(
                f"model: {spec} takes records of shape {made.input_shape}, the data has {input_shape}"
            )
        return made
    return OwnArchitecture.of(spec, input_shape=input_shape, classes=classes, root=place)


@dataclass(frozen=True)
class OwnArchitecture:
    """Equal to another one if the name, the shapes and the code are; sent to another machine by name."""

    spec: str
    input_shape: tuple[int, ...]
    outputs: int
    layout: Layout
    fingerprint: str  # of the code, of the module's structure and of what is not in the layout
    root: str = field(compare=False, repr=False)

    @staticmethod
    def of(spec: str, *, input_shape: tuple[int, ...], classes: int, root: Path) -> OwnArchitecture:
        loaded = _Loaded.of(spec, root)
        _check_forward(loaded.template, input_shape, classes, spec)
        layout = _layout(_changing(loaded.template))
        own = OwnArchitecture(spec, input_shape, classes, layout, loaded.fingerprint, str(root))
        own.__dict__["_loaded"] = loaded
        return own

    @cached_property
    def _loaded(self) -> _Loaded:
        """Imported anew where this value has arrived."""
        loaded = _Loaded.of(self.spec, Path(self.root))
        if loaded.fingerprint != self.fingerprint:
            raise ExhumeError(
                f"model: {self.spec} is not the code that it was where the work began; make them alike"
            )
        return loaded

    @cached_property
    def twin(self) -> MLP | None:
        """The `MLP` that is the same function of the same flat parameters, in training too."""
        plain = ModuleArchitecture(self.build(), self.input_shape)
        if self.not_per_record or plain.layout != self.layout:
            return None
        found = recognised(plain)
        return found if isinstance(found, MLP) else None

    @cached_property
    def not_per_record(self) -> str:
        """What training does besides following a gradient, with the layer's name; empty if nothing."""
        return not_per_record(self.trainable(), self.input_shape)

    def initial(self, key: Key) -> Tensor:
        """(p,) as the factory draws it from a generator of the key's; the global one is left alone."""
        module = self._loaded.factory.drawn(key)
        assert isinstance(module, nn.Module)  # the template was one
        drawn = {name: tensor.detach() for name, tensor in _changing(module).items()}
        if _layout(drawn) != self.layout:
            raise ExhumeError(f"model: {self.spec} gives other parameters from call to call")
        return self.layout.join(drawn)

    def build(self) -> nn.Module:
        """The module in eval mode: what is released."""
        return self.trainable().eval()

    def trainable(self) -> nn.Module:
        """The module in the modes in which the factory returns it."""
        return copy.deepcopy(self._loaded.template)

    def __getstate__(self) -> dict[str, object]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        where, _, name = self.spec.rpartition(":")
        return f"{Path(where).name}:{name} with {self.layout.size:,} parameters"


def fully_connected(architecture: Architecture) -> MLP | None:
    """The `MLP` that an architecture is, whoever wrote it: the fast path of training."""
    if isinstance(architecture, OwnArchitecture):
        return architecture.twin
    return architecture if isinstance(architecture, MLP) else None


@dataclass(frozen=True, eq=False)
class _Loaded:
    factory: Factory
    template: nn.Module
    fingerprint: str

    @staticmethod
    def of(spec: str, root: Path) -> _Loaded:
        factory = Factory.named(spec, root)
        template = factory.made(_TEMPLATE)
        if not isinstance(template, nn.Module):
            raise ExhumeError(f"model: {spec} gives a {type(template).__name__}, not an nn.Module")
        _check_parameters(template, spec)
        return _Loaded(factory, template, _fingerprint(factory.found, template))


def _changing(module: nn.Module) -> dict[str, Tensor]:
    """What training changes, by name."""
    found: dict[str, Tensor] = {n: p for n, p in module.named_parameters() if p.requires_grad}
    for name, layer in module.named_modules():
        if keeps_statistics(layer):
            prefix = f"{name}." if name else ""
            found |= {f"{prefix}{n}": b for n, b in layer.named_buffers() if b.is_floating_point()}
    return found


def _layout(named: dict[str, Tensor]) -> Layout:
    return Layout(tuple(named), tuple(tuple(t.shape) for t in named.values()))


def _fingerprint(found: object, module: nn.Module) -> str:
    kinds = list(dict.fromkeys(type(layer) for layer in module.modules()))
    changing = _changing(module)
    everything = [*module.named_parameters(), *module.named_buffers()]
    constant = [(n, digest(t)) for n, t in everything if n not in changing]
    modes = [layer.training for layer in module.modules()]
    code = digest_of_code(*kinds) if isinstance(found, nn.Module) else digest_of_code(found, *kinds)
    parts = [code, repr(module), list(changing), constant, modes]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _check_parameters(module: nn.Module, spec: str) -> None:
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ExhumeError(f"model: {spec}: {name} is {kind}; return the module as .float()")
        if not bool(torch.isfinite(parameter).all()):
            raise ExhumeError(f"model: {spec}: {name} holds NaN or infinite values")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ExhumeError(f"model: {spec}: no parameter requires a gradient, so nothing is trained")


def _check_forward(
    module: nn.Module, input_shape: tuple[int, ...], classes: int, spec: str
) -> None:
    """Two records of zeros: two rows of finite logits, one for each class, or a sentence."""
    try:
        copied = copy.deepcopy(module).eval()
    except RuntimeError as error:
        raise ExhumeError(f"model: {spec} cannot be copied: {first_line(error)}") from error
    try:
        with torch.no_grad():
            outputs = copied(torch.zeros(2, *input_shape))
    except (Exception, SystemExit) as error:
        raise ExhumeError(
            f"model: {spec} does not take records of shape {input_shape}: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != 2:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ExhumeError(
            f"model: {spec} must return (2, {classes}) logits for 2 records, it returns {found}"
        )
    if outputs.shape[1] != classes:
        raise ExhumeError(
            f"model: {spec} returns {outputs.shape[1]} logits a record, the data has {classes} classes"
        )
    if not bool(torch.isfinite(outputs).all()):
        raise ExhumeError(f"model: {spec} returns NaN or infinite logits for records of zeros")
