"""A user's own checkpoint with convolutions: their strides, padding and pools are not in a file of tensors.

So the network comes by name, as a factory of the user's, or is the built-in `CNN`, whose strides are the only
ones with which the shapes of its tensors fit together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, NotApplicable, Weights
from exhume.models.cnn import CNN
from exhume.models.own.convolved import Convolved
from exhume.models.own.factory import model_named
from exhume.models.own.module import ModuleArchitecture
from exhume.models.own.per_record_check import not_per_record
from exhume.victims.tensor_names import check_names

__all__ = ["convolution_in", "read_convolved"]

_TEMPLATE = Key.from_seed(0).fold("checkpoint")
_STRIDES = (1, 2, 3, 4)
_OURS = re.compile(r"(conv|fc)\d+\.(weight|bias)")


def convolution_in(named: Mapping[str, Tensor]) -> str | None:
    """The name of the first weight that is no matrix."""
    return next((name for name, tensor in named.items() if tensor.ndim > 2), None)


def read_convolved(
    named: Mapping[str, Tensor],
    *,
    model: str,
    activation: str,
    shape: tuple[int, ...],
    instead: str,
) -> tuple[Weights, Convolved, str]:
    """The release, the network, and a sentence on how it was read.

    instead: what to use for a network that no attack reads, the end of a refusal.
    """
    if model:
        made = model_named(model, _TEMPLATE)
        how = f"The network is {_short(model)}."
    else:
        made = _built_in(named, activation, shape, instead)
        how = f"{made}: its strides are the only ones that fit the shapes."
    if not isinstance(made, nn.Module) and tuple(made.input_shape) != shape:
        raise ExhumeError(
            f"model: {model} takes records of shape {made.input_shape}, these have {shape}"
        )
    module = made if isinstance(made, nn.Module) else made.build()
    check_names(named, module, "the file", argument="checkpoint")
    loaded = _loaded(module, named)
    plain = ModuleArchitecture.of(loaded, shape)  # one forward pass is tried
    if why := not_per_record(module, shape):
        raise NotApplicable(
            f"{why}, so that no layer is a sum over the records as the released network sees them; "
            f"{instead}",
            ever=True,
        )
    with torch.no_grad():
        outputs = plain.module(plain.initial(_TEMPLATE).new_zeros(1, *shape)).shape[1]

    def start(key: Key) -> Tensor:
        if not isinstance(made, nn.Module):
            return made.initial(key)
        fresh = model_named(model, key)
        assert isinstance(fresh, nn.Module)  # the first one was
        return plain.layout.join({n: p.detach() for n, p in fresh.named_parameters()})

    own = f"{_short(model)} with {plain.layout.size:,} parameters"
    name = own if isinstance(made, nn.Module) else str(made)
    network = Convolved(plain.module, shape, outputs, name, start)
    return Weights(plain.initial(_TEMPLATE)[None], plain.layout), network, how


def _short(model: str) -> str:
    """Its name without the folder."""
    where, _, name = model.rpartition(":")
    return f"{Path(where).name}:{name}"


def _loaded(module: nn.Module, named: Mapping[str, Tensor]) -> nn.Module:
    """The module with the file's parameters, and its buffers where it has them."""
    wanted = {n: t.to(torch.float32) if t.is_floating_point() else t for n, t in named.items()}
    module.load_state_dict(wanted, strict=False)
    return module


def _built_in(
    named: Mapping[str, Tensor], activation: str, shape: tuple[int, ...], instead: str
) -> CNN:
    """The `CNN` of ours that has these tensors."""
    first = convolution_in(named)
    assert first is not None  # asked before
    refusal = NotApplicable(
        f"{first}: a convolution (shape {tuple(named[first].shape)}), whose stride and padding are not in "
        f"the file; name your nn.Module with --model net.py:make, or {instead}",
        ever=True,
    )
    if len(shape) != 3 or not all(_OURS.fullmatch(name) for name in named):
        raise refusal
    filters = [named[f"conv{i}.weight"] for i in range(1, 1 + _count(named, "conv"))]
    layers = [named[f"fc{i}.weight"] for i in range(1, 1 + _count(named, "fc"))]
    if any(f.ndim != 4 for f in filters) or any(m.ndim != 2 for m in layers) or not layers:
        raise refusal
    fits = []
    for strides in product(_STRIDES, repeat=len(filters)):
        try:
            one = CNN(
                shape,
                tuple(len(f) for f in filters),
                tuple(f.shape[2] for f in filters),
                strides,
                tuple(len(m) for m in layers[:-1]),
                len(layers[-1]),
                activation,
                "torch",
            )
        except ExhumeError:  # nothing is left of the image
            continue
        shapes = dict(zip(one.layout.names, one.layout.shapes, strict=True))
        if shapes == {name: tuple(tensor.shape) for name, tensor in named.items()}:
            fits.append(one)
    if len(fits) != 1:
        raise refusal
    return fits[0]


def _count(named: Mapping[str, Tensor], kind: str) -> int:
    """How many layers of a kind are numbered in a row."""
    count = 0
    while f"{kind}{count + 1}.weight" in named:
        count += 1
    return count
