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

from exhume.core.contract import ExhumeError, Gradient, Layout
from exhume.train.local import PLAIN, Routine, half_precision
from exhume.victims.last_bias import last_bias_of
from exhume.victims.norm_statistics import batch_statistics
from exhume.victims.tensor_file import read_tensors
from exhume.victims.tensor_names import check_names

__all__ = [
    "Checked",
    "Said",
    "check_payload",
    "frozen_in",
    "payload_from_file",
    "payload_from_named",
    "payload_from_states",
]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ZERO = 1e-3  # relative: what should vanish does, up to rounding and batch norm's epsilon


@dataclass(frozen=True)
class Said:
    """What the owner of the update says about it."""

    reduction: str = "mean"  # or "sum"
    batch_norm: str = "train"  # or "eval"; unused where the module has none
    batch_size: int | None = None
    steps: int = 1  # local steps; what holds for one gradient only is not checked for an average
    rate: float | None = None  # of an update that is the difference of two states; None: a gradient
    loss: str = "cross-entropy"  # what is checked by the last bias holds for classes only

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise ExhumeError(f"reduction: {self.reduction!r} is not one of mean, sum")
        if self.batch_norm not in ("train", "eval"):
            raise ExhumeError(f"batch_norm: {self.batch_norm!r} is not one of train, eval")

    def rounding(self, weights: Tensor) -> float:
        """Absolute error of the update of these weights: of a difference, what was rounded in the states."""
        if self.rate is None:
            return 0.0
        largest = float(weights.abs().max())
        return torch.finfo(weights.dtype).eps * largest / (self.rate * self.steps)


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
    *,
    routine: Routine = PLAIN,
    records: int | None = None,
) -> Gradient:
    """The average gradient between two state dicts of a client that trained so; of plain SGD

        (before - after) / (rate · steps).

    Tensors that `after` lacks or has unchanged are frozen. records: that it has, where a step sees a batch.
    """
    if not rate > 0 or steps < 1:
        raise ExhumeError(f"rate, steps: must be positive, got {rate} and {steps}")
    layout = Layout.of(module)
    check_names(before, module, "the state before")
    check_names(after, module, "the state after", partial=True)
    rates = routine.rates(rate, routine.steps(steps, records))
    kind = next(
        module.parameters()
    ).dtype  # states in half precision are differenced in the module's
    begun = {n: before[n].to(kind) for n in layout.names}
    ended = begun | {n: after[n].to(kind) for n in layout.names if n in after}
    still = {n: 0.0 if torch.equal(begun[n], ended[n]) else 1.0 for n in layout.names}
    live = layout.join({n: torch.full_like(begun[n], still[n]) for n in layout.names})
    start, end = layout.join(begun), layout.join(ended)
    values = routine.average(start, end, rates, live)
    seen = batch_statistics(before, after, module) if len(rates) == 1 else {}
    statistics = {name: one[None] for name, one in seen.items()}
    return Gradient(values[None] * live, layout, start, statistics)


def payload_from_named(named: Mapping[str, Tensor], module: nn.Module) -> Gradient:
    """Tensors by name, the gradient at the module's present weights; frozen ones may be missing."""
    layout = Layout.of(module)
    check_names(named, module, "the file", partial=True)
    still = {n: torch.zeros_like(p) for n, p in module.named_parameters()}
    at = layout.join({n: p.detach() for n, p in module.named_parameters()})
    flat = layout.join({n: {**still, **named}[n].to(at.dtype) for n in layout.names})
    return Gradient(flat[None], layout, at)


def frozen_in(payload: Gradient) -> tuple[str, ...]:
    """A sentence on the tensors whose update is zero, if there are such; none where all are."""
    parts = payload.layout.split(payload.values[0])
    names = [name for name, part in parts.items() if not bool(part.any())]
    if not names or len(names) == len(parts):
        return ()
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (f"Taken as frozen, since their update is zero or absent: {some}.",)


@dataclass(frozen=True)
class Checked:
    """What could be checked about an update, and what speaks against it."""

    checked: tuple[str, ...]
    doubts: tuple[str, ...] = ()  # sentences; each may be wrong, so that none of them ends an audit


def check_payload(
    payload: Gradient,
    module: nn.Module,
    said: Said,
    input_shape: tuple[int, ...],
    vocabulary: int = 0,
) -> Checked:
    """Raises `ExhumeError` for what cannot be attacked: another model's tensors, NaN, nothing but zeros.

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
    if not bool(payload.values.any()):
        raise ExhumeError("payload: every value is zero, so that there is nothing to attack")
    checked, doubts = ["names and shapes", "finite values"], []
    at = payload.at if payload.at.ndim == 1 else payload.at[0]
    parameters = layout.split(at)
    for values in payload.values:
        parts = layout.split(values)
        found = []
        if said.steps == 1:
            found.append(_batch_norm(module, parts, parameters, said))
            found.append(_homogeneity(module, parts, parameters, said))
        if said.loss in ("cross-entropy", "logistic"):
            found.append(_reduction(module, parts, parameters, said, (input_shape, vocabulary)))
        checked += [name for one in found for name in one.checked]
        doubts += [sentence for one in found for sentence in one.doubts]
    return Checked(tuple(dict.fromkeys(checked)), tuple(dict.fromkeys(doubts)))


def _leaves(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules without children, in the order of definition, taken as the order of use."""
    return [(n, m) for n, m in module.named_modules() if not list(m.children())]


def _batch_norm(
    module: nn.Module, parts: dict[str, Tensor], at: dict[str, Tensor], said: Said
) -> Checked:
    """Batch norm in train mode: the scale of the layer before it changes nothing, so w_c · dL/dw_c = 0."""
    for (name, layer), (_, after) in pairwise(_leaves(module)):
        weight = f"{name}.weight"
        if not isinstance(after, _NORMS) or isinstance(layer, _NORMS) or weight not in parts:
            continue
        w, g = at[weight].flatten(1).double(), parts[weight].flatten(1).double()
        if float(g.norm()) == 0:
            continue
        cosine = float((w * g).sum(1).norm() / (w.norm(dim=1) * g.norm(dim=1)).norm())
        mode = "train" if cosine < 10 * _ZERO else "eval"
        if mode == said.batch_norm:
            return Checked(("batch-norm mode",))
        doubt = (
            f"payload: batch norm is said to have been in {said.batch_norm} mode, but the gradient "
            f"of {weight} is that of {mode} mode"
        )
        return Checked(("batch-norm mode",), (doubt,))
    return Checked(())


def _homogeneity(
    module: nn.Module, parts: dict[str, Tensor], at: dict[str, Tensor], said: Said
) -> Checked:
    """ReLU between two linear layers: w · dL/dw + b · dL/db of the first is w · dL/dw of the second."""
    leaves = [(n, m) for n, m in _leaves(module) if not isinstance(m, nn.Flatten)]
    for (name, layer), (_, gate), (above, last) in zip(
        leaves, leaves[1:], leaves[2:], strict=False
    ):
        if not (_is_relu(gate) and isinstance(layer, nn.Linear) and isinstance(last, nn.Linear)):
            continue
        both = (f"{name}.weight", f"{above}.weight")
        if not set(both) <= set(parts):
            continue  # not trained
        if not all(bool(parts[name].any()) for name in both):
            continue  # frozen
        low = _along(name, parts, at, with_bias=True)
        high = _along(above, parts, at, with_bias=False)
        size = sum(float(at[n].double().norm() * parts[n].double().norm()) for n in both)
        rounded = sum(said.rounding(at[n]) * float(at[n].double().norm()) for n in both)
        if abs(low - high) <= _precision(parts[both[0]]) * size + rounded:
            return Checked(("taken at these weights",))
        doubt = (
            f"payload: it was not taken at these weights: the gradients of {name} and {above} do not "
            "satisfy the identity that ReLU gives (another model, another round, or a changed update)"
        )
        return Checked(("taken at these weights",), (doubt,))
    return Checked(())


def _is_relu(gate: nn.Module) -> bool:
    return isinstance(gate, nn.ReLU | nn.LeakyReLU) or gate.extra_repr() in ("relu", "leaky-relu")


def _along(name: str, parts: dict[str, Tensor], at: dict[str, Tensor], *, with_bias: bool) -> float:
    names = [f"{name}.weight"]
    if with_bias and f"{name}.bias" in parts:
        names.append(f"{name}.bias")
    return float(sum((at[n].double() * parts[n].double()).sum() for n in names))


def _reduction(
    module: nn.Module,
    parts: dict[str, Tensor],
    at: dict[str, Tensor],
    said: Said,
    inputs: tuple[tuple[int, ...], int],
) -> Checked:
    """The gradient of the last bias: of a cross-entropy, reduced as said, of as many records as said."""
    name = list(parts)[-1]
    if not bool(parts[name].any()):
        return Checked(())  # frozen
    precision = _precision(parts[name])
    rounding = said.rounding(at[name])
    bias = last_bias_of(module, parts, at, *inputs, precision=precision, rounding=rounding)
    if bias is None:
        return Checked(())
    size, doubts = said.batch_size, bias.reduction_doubts(said.reduction)
    if said.steps == 1 and said.rate is None and not doubts:
        doubts = bias.scale_doubts(said.reduction, said.batch_size)
    if size is None or said.steps > 1 or doubts:
        return Checked(("size of the last bias",), tuple(doubts))
    counted = bias.counts(said.reduction, size)
    checked = "reduction and batch size" if counted else "size of the last bias"
    return Checked((checked,), tuple(bias.count_doubts(said.reduction, size)))


def _precision(values: Tensor) -> float:
    """Relative: of what should vanish; coarser where the values have passed through half precision."""
    return max(_ZERO, 4 * (half_precision(values) or 0.0))
