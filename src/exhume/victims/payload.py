"""An update as it comes from somebody else's training, and whether it is what it is said to be.

Attacks on gradients fail silently when the loss was summed instead of averaged, batch norm ran in the other
mode, or the weights were another round's. Each leaves a trace that can be computed without any record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exhume.contract import ExhumeError, Gradient, Key, Layout
from exhume.victims.tensor_file import read_tensors

__all__ = [
    "Said",
    "check_payload",
    "payload_from_file",
    "payload_from_named",
    "payload_from_states",
]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ZERO = 1e-3  # relative: what should vanish does, up to rounding and batch norm's epsilon
_PROBES = 64


@dataclass(frozen=True)
class Said:
    """What the owner of the update says about it."""

    reduction: str = "mean"  # or "sum"
    batch_norm: str = "train"  # or "eval"; unused where the module has none
    batch_size: int | None = None
    steps: int = 1  # local steps; what holds for one gradient only is not checked for an average

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise ExhumeError(f"reduction: {self.reduction!r} is not one of mean, sum")
        if self.batch_norm not in ("train", "eval"):
            raise ExhumeError(f"batch_norm: {self.batch_norm!r} is not one of train, eval")


def payload_from_file(path: Path, module: nn.Module) -> Gradient:
    """A safetensors file with one tensor a parameter, the gradient at the module's present weights."""
    if not path.is_file():
        raise ExhumeError(f"payload: there is no file {path}")
    if path.suffix != ".safetensors":
        raise ExhumeError(f"payload: {path} is not a .safetensors file; pickles are not read")
    return payload_from_named(read_tensors(path, "payload")[0], module)


def payload_from_states(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    module: nn.Module,
    rate: float,
    steps: int = 1,
) -> Gradient:
    """The average gradient (before - after) / (rate · steps) of plain SGD between two state dicts."""
    if not rate > 0 or steps < 1:
        raise ExhumeError(f"rate, steps: must be positive, got {rate} and {steps}")
    names = Layout.of(module).names
    lost = [n for n in names if n not in before or n not in after]
    if lost:
        raise ExhumeError(f"payload: the state dicts lack {', '.join(lost)}")
    layout = Layout.of(module)
    for state in (before, after):
        _check_numbers(state, layout)
    difference = {n: (before[n] - after[n]) / (rate * steps) for n in names}
    start = layout.join({n: before[n] for n in names})
    return Gradient(layout.join(difference)[None], layout, start)


def payload_from_named(named: Mapping[str, Tensor], module: nn.Module) -> Gradient:
    """Tensors by name, the gradient at the module's present weights; frozen ones may be missing."""
    layout = Layout.of(module)
    still = {n: torch.zeros_like(p) for n, p in module.named_parameters() if not p.requires_grad}
    named = still | dict(named)
    lost = sorted(set(layout.names) - set(named))
    if lost:
        raise ExhumeError(f"payload: the tensors {', '.join(lost)} are missing")
    _check_numbers(named, layout)
    flat = layout.join(named)
    at = layout.join({n: p.detach() for n, p in module.named_parameters()})
    return Gradient(flat[None], layout, at)


def _check_numbers(named: Mapping[str, Tensor], layout: Layout) -> None:
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        tensor = named[name]
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ExhumeError(f"payload: {name} holds {kind} values, not floating-point numbers")
        if tuple(tensor.shape) != shape:
            raise ExhumeError(
                f"parameter {name}: shape {tuple(tensor.shape)} given, {shape} expected"
            )


def check_payload(
    payload: Gradient,
    module: nn.Module,
    said: Said,
    input_shape: tuple[int, ...],
    vocabulary: int = 0,
) -> list[str]:
    """Raises `ExhumeError` with the assumption that does not fit; returns what could be checked.

    The module is at the weights the gradient was taken at. Cross-entropy or logistic loss.
    vocabulary: of a module that takes tokens; 0: it takes numbers.
    """
    layout = Layout.of(module)
    if payload.layout != layout:
        raise ExhumeError(
            "payload: it comes from another model, its tensors are not those of this module"
        )
    for name, part in layout.split(payload.values).items():
        if not bool(torch.isfinite(part).all()):
            raise ExhumeError(f"payload: {name} holds NaN or infinite values")
    checked = ["names and shapes", "finite values"]
    at = payload.at if payload.at.ndim == 1 else payload.at[0]
    parameters = layout.split(at)
    for values in payload.values:
        parts = layout.split(values)
        if said.steps == 1:
            checked += _check_batch_norm(module, parts, parameters, said)
            checked += _check_homogeneity(module, parts, parameters)
        probes = _probes(input_shape, vocabulary)
        checked += _check_reduction(module, parts, parameters, said, probes)
    return list(dict.fromkeys(checked))


def _leaves(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules without children, in the order of definition, taken as the order of use."""
    return [(n, m) for n, m in module.named_modules() if not list(m.children())]


def _check_batch_norm(
    module: nn.Module, parts: dict[str, Tensor], at: dict[str, Tensor], said: Said
) -> list[str]:
    """Check batch norm in train mode: the scale of the layer before changes nothing, so w_c · dL/dw_c = 0."""
    for (name, layer), (_, after) in pairwise(_leaves(module)):
        weight = f"{name}.weight"
        if not isinstance(after, _NORMS) or isinstance(layer, _NORMS) or weight not in parts:
            continue
        w, g = at[weight].flatten(1).double(), parts[weight].flatten(1).double()
        if float(g.norm()) == 0:
            continue
        cosine = float((w * g).sum(1).norm() / (w.norm(dim=1) * g.norm(dim=1)).norm())
        mode = "train" if cosine < 10 * _ZERO else "eval"
        if mode != said.batch_norm:
            raise ExhumeError(
                f"payload: batch norm is said to have been in {said.batch_norm} mode, but the gradient "
                f"of {weight} is that of {mode} mode"
            )
        return ["batch-norm mode"]
    return []


def _check_homogeneity(
    module: nn.Module, parts: dict[str, Tensor], at: dict[str, Tensor]
) -> list[str]:
    """ReLU between two linear layers: w · dL/dw + b · dL/db of the first is w · dL/dw of the second."""
    leaves = [(n, m) for n, m in _leaves(module) if not isinstance(m, nn.Flatten)]
    for (name, layer), (_, gate), (above, last) in zip(
        leaves, leaves[1:], leaves[2:], strict=False
    ):
        relu = isinstance(gate, nn.ReLU | nn.LeakyReLU) or gate.extra_repr() in (
            "relu",
            "leaky-relu",
        )
        if not (relu and isinstance(layer, nn.Linear) and isinstance(last, nn.Linear)):
            continue
        if f"{name}.weight" not in parts or f"{above}.weight" not in parts:
            continue  # not trained
        low = _along(name, parts, at, with_bias=True)
        high = _along(above, parts, at, with_bias=False)
        size = sum(
            float(at[n].double().norm() * parts[n].double().norm())
            for n in (f"{name}.weight", f"{above}.weight")
        )
        if abs(low - high) > _ZERO * size:
            raise ExhumeError(
                f"payload: it was not taken at these weights: the gradients of {name} and {above} do not "
                "satisfy the identity that ReLU gives (another model, another round, or a changed update)"
            )
        return ["taken at these weights"]
    return []


def _along(name: str, parts: dict[str, Tensor], at: dict[str, Tensor], *, with_bias: bool) -> float:
    names = [f"{name}.weight"]
    if with_bias and f"{name}.bias" in parts:
        names.append(f"{name}.bias")
    return float(sum((at[n].double() * parts[n].double()).sum() for n in names))


def _check_reduction(
    module: nn.Module,
    parts: dict[str, Tensor],
    at: dict[str, Tensor],
    said: Said,
    probes: Tensor,
) -> list[str]:
    """dL/db of the last layer: B p_c - B_c for a sum, the same over B for a mean; B_c are whole numbers."""
    name = list(parts)[-1]
    slope = parts[name].double()
    owner = dict(module.named_modules()).get(name.removesuffix(".bias"))
    outermost = [m for _, m in _leaves(module) if isinstance(getattr(m, "weight", None), Tensor)][
        -1
    ]
    if not name.endswith(".bias") or not isinstance(owner, nn.Linear) or owner is not outermost:
        return []
    if not _gives_outputs(owner, module, at, probes):
        return []  # defined last, but not used last
    most = 1.0 if len(slope) == 1 else 2.0  # |p - y| of one record, summed over the outputs
    if said.reduction == "mean" and float(slope.abs().sum()) > most * (1 + _ZERO):
        raise ExhumeError(
            f"payload: the loss is said to be a mean, but {name} has a gradient larger than a mean's can be: "
            "the loss was summed, or the update was scaled"
        )
    if len(slope) > 1 and abs(float(slope.sum())) > _ZERO * float(slope.abs().sum()):
        raise ExhumeError(
            f"payload: the gradient of {name} does not sum to zero: the loss is not a cross-entropy"
        )
    if said.batch_size is None or said.steps > 1:
        return ["size of the last bias"]
    return _check_counts(_shares(module, at, probes), name, slope, said)


def _probes(input_shape: tuple[int, ...], vocabulary: int) -> Tensor:
    generator = Key.from_seed(0).fold("probes").generator()
    if vocabulary:
        return torch.randint(vocabulary, (_PROBES, *input_shape), generator=generator)
    return torch.rand(_PROBES, *input_shape, generator=generator)


def _gives_outputs(
    layer: nn.Module, module: nn.Module, at: dict[str, Tensor], probes: Tensor
) -> bool:
    """Whether what the layer returns is what the module returns."""
    given: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _, __, outputs: given.append(outputs))
    try:
        outputs = _logits(module, at, probes)
    finally:
        hook.remove()
    return bool(given) and given[-1].shape == outputs.shape and torch.equal(given[-1], outputs)


def _shares(module: nn.Module, at: dict[str, Tensor], probes: Tensor) -> Tensor:
    """(probes, c) the network's probabilities on noise."""
    logits = _logits(module, at, probes).double()
    return torch.sigmoid(logits) if logits.shape[1] == 1 else torch.softmax(logits, 1)


@torch.no_grad()
def _logits(module: nn.Module, at: dict[str, Tensor], probes: Tensor) -> Tensor:
    kind = next(iter(at.values())).dtype if probes.is_floating_point() else probes.dtype
    was = module.training
    module.eval()
    outputs: Tensor = functional_call(module, at, (probes.to(kind),))
    module.train(was)
    return outputs


def _check_counts(shares: Tensor, name: str, slope: Tensor, said: Said) -> list[str]:
    size = said.batch_size
    assert size is not None
    if float(shares.std(0).max()) > 0.1 / size:
        return ["size of the last bias"]  # the network is too trained to know its mean output
    if said.reduction == "sum" and size > 1:
        summed, averaged = (
            (size * shares.mean(0) - factor * slope) for factor in (1.0, float(size))
        )
        if _whole(averaged, size) < 0.1 and _whole(summed, size) > 2 * _whole(averaged, size):
            raise ExhumeError(
                f"payload: the loss is said to be a sum, but {name} counts whole records only as a mean"
            )
    factor = 1.0 if said.reduction == "sum" else float(size)
    if _whole(size * shares.mean(0) - factor * slope, size) > 0.25:
        raise ExhumeError(
            f"payload: {name} does not count {size} whole records: the batch size, the reduction "
            f"({said.reduction}) or the weights are not as said"
        )
    return ["reduction and batch size"]


def _whole(counts: Tensor, size: int) -> float:
    """Largest distance of the counts from whole numbers in [0, size]."""
    return float((counts - counts.round().clamp(0, size)).abs().max())
