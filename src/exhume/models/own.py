"""The user's own networks as values: a factory by name, the shapes it gives, and what its code is.

    architecture_named("model.py:build", input_shape=(1, 28, 28), classes=10)

The factory is called without arguments and returns an `nn.Module` that takes (n, *input_shape) float32
records and returns (n, classes) logits. What training changes is in the layout: parameters that require
a gradient, and running statistics of batch norm in train mode. Everything else (frozen parameters,
constant buffers) is what the factory gives, and is known to whoever knows the architecture.

Every road to a user's network leads through `Factory`: the code is found once, and called while the global
generators of torch, numpy and Python start from a key, so that one key means one set of weights everywhere.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, replace_all_batch_norm_modules_
from torch.nn.parameter import UninitializedParameter

from exhume.core.contract import Architecture, ExhumeError, Key, Layout
from exhume.core.own_code import called, digest_of_code, first_line, named, seeded_globals
from exhume.models.activations import ACTIVATIONS
from exhume.models.mlp import MLP
from exhume.models.probes import change_inputs
from exhume.models.two_layer import TwoLayer
from exhume.store.shards import digest


@dataclass(frozen=True, eq=False)
class Factory:
    """What the name stands for: a function, a module, or an architecture of ours."""

    spec: str
    found: object

    @staticmethod
    def named(spec: str, root: Path | None = None) -> Factory:
        """root: the folder that the name counts from; None: the present one."""
        return Factory(spec, named(spec, "model", root))

    def drawn(self, key: Key) -> nn.Module | Architecture:
        """What the factory returns at the weights that this key draws."""
        return self.made(key.fold("initial"))

    def made(self, stream: Key) -> nn.Module | Architecture:
        """What the factory returns when the global generators start from this very key."""
        if isinstance(self.found, Architecture):
            return self.found
        if isinstance(self.found, nn.Module):
            made: object = copied(self.found, self.spec)
        else:
            made = self.found
            if callable(made):
                with seeded_globals(stream):
                    made = called(made, self.spec, "model")
        if isinstance(made, nn.Module):
            return self._checked(made.cpu())
        if not isinstance(made, Architecture):
            raise ExhumeError(f"model: {self.spec} gives a {type(made).__name__}, not an nn.Module")
        return made

    def _checked(self, module: nn.Module) -> nn.Module:
        for name, parameter in module.named_parameters():
            if isinstance(parameter, UninitializedParameter):
                raise ExhumeError(
                    f"model: {self.spec}: {name} has no shape yet; run one batch through it in the factory"
                )
        return module


def copied(module: nn.Module, spec: str) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except RuntimeError as error:
        raise ExhumeError(f"model: {spec} cannot be copied: {first_line(error)}") from error


def two_rows(module: nn.Module, probe: Tensor, who: str, wanted: str) -> Tensor:
    """The outputs (2, c) for two records; where there are none, a sentence says what went wrong."""
    try:
        outputs = module(probe)
    except (Exception, SystemExit) as error:  # whatever somebody's forward does
        raise ExhumeError(
            f"model: {who} does not take records of shape {tuple(probe.shape[1:])}: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != 2:
        returned = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ExhumeError(f"model: {who} must return {wanted} for 2 records, it returns {returned}")
    return outputs


def model_named(spec: str, key: Key, root: Path | None = None) -> nn.Module | Architecture:
    """What the factory returns at the weights that the key draws: a module, or an architecture of ours."""
    return Factory.named(spec, root).drawn(key)


def module_named(spec: str, key: Key) -> nn.Module:
    """`model_named`, an architecture as the module that it builds."""
    made = model_named(spec, key)
    return made.build() if isinstance(made, Architecture) else made


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
        """The module and its factory, imported anew where this value has arrived."""
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
    tensors: dict[str, Tensor] = {n: p for n, p in module.named_parameters() if p.requires_grad}
    for name, layer in module.named_modules():
        if keeps_statistics(layer):
            prefix = f"{name}." if name else ""
            tensors |= {
                f"{prefix}{n}": b for n, b in layer.named_buffers() if b.is_floating_point()
            }
    return tensors


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
    module = copied(module, spec).eval()
    with torch.no_grad():
        outputs = two_rows(module, torch.zeros(2, *input_shape), spec, f"(2, {classes}) logits")
    if outputs.shape[1] != classes:
        raise ExhumeError(
            f"model: {spec} returns {outputs.shape[1]} logits a record, the data has {classes} classes"
        )
    if not bool(torch.isfinite(outputs).all()):
        raise ExhumeError(f"model: {spec} returns NaN or infinite logits for records of zeros")


# A module as it is, and the fully connected network it may turn out to be


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_PROBES = 8
_SAME = 1e-4  # relative: fp32 outputs of the same function


@dataclass(frozen=True, eq=False)
class ModuleArchitecture:
    """A module as it is: its parameters are the start, its buffers are kept."""

    module: nn.Module
    input_shape: tuple[int, ...]

    @staticmethod
    def of(
        module: nn.Module, input_shape: tuple[int, ...], batch_norm: str = "eval"
    ) -> ModuleArchitecture:
        """A copy without dropout; batch norm in train mode uses its batch and remembers nothing."""
        own = copy.deepcopy(module).eval()
        if batch_norm == "train":
            for layer in own.modules():
                if isinstance(layer, _NORMS):
                    layer.train()
            replace_all_batch_norm_modules_(own)
        made = ModuleArchitecture(own, input_shape)
        made.check()
        return made

    @property
    def layout(self) -> Layout:
        return Layout.of(self.module)

    def initial(self, key: Key) -> Tensor:
        """(p,) the module's present parameters, whatever the key."""
        return self.layout.join({n: p.detach() for n, p in self.module.named_parameters()})

    def build(self) -> nn.Module:
        return copy.deepcopy(self.module)

    def check(self) -> None:
        """One forward pass: an output row a record, or a sentence that says what went wrong."""
        probe = self.initial(Key.from_seed(0)).new_zeros(2, *self.input_shape)
        two_rows(self.module, probe, "it", "(2, classes) numbers")

    def __str__(self) -> str:
        return f"{type(self.module).__name__} with {self.layout.size:,} parameters"


def recognised(architecture: Architecture) -> Architecture:
    """The `MLP` or `TwoLayer` that computes the same function of the same flat parameters; else itself."""
    if not isinstance(architecture, ModuleArchitecture):
        return architecture
    for candidate in _candidates(architecture):
        if _same_function(architecture, candidate):
            return candidate
    return architecture


def _candidates(architecture: ModuleArchitecture) -> list[MLP | TwoLayer]:
    """Networks whose parameters have the same shapes in the same order."""
    shapes, shape = architecture.layout.shapes, architecture.input_shape
    networks: list[MLP | TwoLayer] = []
    weights = [s for s in shapes if len(s) == 2]
    if not weights:
        return []
    outputs = weights[-1][0]
    for name in ACTIVATIONS:
        hidden = tuple(s[0] for s in weights[:-1])
        networks.append(MLP(shape, hidden, outputs, name))
        if len(weights) == 2:
            networks.append(TwoLayer(shape, weights[0][0], outputs, name))
    return [candidate for candidate in networks if candidate.layout.shapes == shapes]


def _same_function(ours: ModuleArchitecture, other: MLP | TwoLayer) -> bool:
    generator = Key.from_seed(0).fold("recognise").generator()
    probes = 4 * torch.rand(_PROBES, *ours.input_shape, generator=generator) - 2
    drawn = other.initial(Key.from_seed(0).fold("recognise"))
    for flat in (ours.initial(Key.from_seed(0)), drawn):
        records = probes.to(flat.dtype)
        want = functional_call(ours.module, ours.layout.split(flat), (records,))
        got = functional_call(other.build(), other.layout.split(flat), (records,))
        if want.shape != got.shape or float((want - got).norm()) > _SAME * float(want.norm()):
            return False
    return True


@dataclass(frozen=True, eq=False)
class Convolved:
    """Its parameters are the module's; buffers stay as they are in it.

    shift, scale: (*shape) each; records enter as (x + shift) / scale.
    """

    module: nn.Module = field(compare=False, repr=False)  # in eval mode
    input_shape: tuple[int, ...]
    outputs: int
    name: str
    start: Callable[[Key], Tensor] = field(compare=False)  # (p,) where a training begins
    shift: Tensor | None = field(default=None, compare=False)
    scale: Tensor | None = field(default=None, compare=False)

    @property
    def layout(self) -> Layout:
        return Layout.of(self.module)

    def initial(self, key: Key) -> Tensor:
        return self.start(key)

    def build(self) -> nn.Module:
        made = copy.deepcopy(self.module)
        if self.shift is not None or self.scale is not None:
            change_inputs(made, lambda _, given, more: ((self.entering(given[0]),), more))
        return made

    def entering(self, records: Tensor) -> Tensor:
        """(n, *shape) records as the module takes them."""
        shifted = records if self.shift is None else records + self.shift.to(records)
        return shifted if self.scale is None else shifted / self.scale.to(records)

    def __str__(self) -> str:
        return self.name


# Whether a module, while it trains, is a function of its parameters and one record at a time.
#
# Models that are trained side by side follow the gradient of such a function. Dropout, statistics over the
# batch and running statistics are something else.


_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_NORM = nn.modules.batchnorm._NormBase
_DROPOUT = nn.modules.dropout._DropoutNd


def keeps_statistics(layer: nn.Module) -> bool:
    """Whether training changes this layer's buffers."""
    return isinstance(layer, _NORM) and layer.training and layer.running_mean is not None


def not_per_record(module: nn.Module, input_shape: tuple[int, ...]) -> str:
    """What it does besides, in words that begin with the layer's name; empty if nothing is seen."""
    for name, layer in module.named_modules():
        kind = f"{name or 'the model'} ({type(layer).__name__})"
        if layer.training and isinstance(layer, _BATCH_NORM):
            return f"{kind} takes statistics over the batch"
        if keeps_statistics(layer):
            return f"{kind} keeps running statistics"
        if layer.training and isinstance(layer, _DROPOUT) and layer.p:
            return f"{kind} drops inputs at random"
    probes = torch.rand(3, *input_shape, generator=Key.from_seed(0).fold("steady").generator())
    if draws_numbers(module, probes):
        return "its forward draws random numbers while it trains"
    if not _same(_outputs(module, probes, 0)[:1], _outputs(module, probes[:1], 0)):
        return "its forward mixes the records of a batch"
    return ""


def draws_numbers(module: nn.Module, probes: Tensor) -> bool:
    """Whether its outputs for (n, *shape) differ from call to call in its present modes, as with dropout."""
    first, second = (_outputs(module, probes, seed) for seed in (0, 1))
    return not _same(first, second)


def _outputs(module: nn.Module, inputs: Tensor, seed: int) -> Tensor:
    with seeded_globals(Key.from_seed(seed)), torch.no_grad():
        found: Tensor = copy.deepcopy(module)(inputs)
    return found


def _same(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= _SAME * float(one.norm())
