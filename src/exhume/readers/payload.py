"""An update as it comes from somebody else's training, and whether it is what it is said to be.

Attacks on gradients fail silently when the loss was summed instead of averaged, batch norm ran in the other
mode, or the weights were another round's. Each leaves a trace that can be computed without any record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from exhume.core.contract import ExhumeError, Gradient, Key, Layout
from exhume.models.probes import after, leaves
from exhume.readers.tensors import check_names
from exhume.train.local import PLAIN, Routine, half_precision

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ZERO = 1e-3  # relative: what should vanish does, up to rounding and batch norm's epsilon


@dataclass(frozen=True)
class DeclaredTraining:
    """What the owner of the update says about it."""

    reduction: str = "mean"  # or "sum"
    batch_norm: str = "train"  # or "eval"; unused where the module has none
    batch_size: int | None = None
    steps: int = 1  # local steps; what holds for one gradient only is not checked for an average
    rate: float | None = None  # of an update that is the difference of two states; None: a gradient
    loss: str = "cross-entropy"  # what is checked by the last bias holds for classes only
    clipped: bool = False  # record by record, so that the last bias counts no records
    noisy: bool = False  # noise was added, so that no identity holds

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
    said: DeclaredTraining,
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
        answers = []
        if said.steps == 1 and not said.noisy:
            answers.append(_batch_norm(module, parts, parameters, said))
            answers.append(_homogeneity(module, parts, parameters, said))
        if said.loss in ("cross-entropy", "logistic") and not (said.clipped or said.noisy):
            answers.append(_reduction(module, parts, parameters, said, (input_shape, vocabulary)))
        checked += [name for answer in answers for name in answer.checked]
        doubts += [sentence for answer in answers for sentence in answer.doubts]
    return Checked(tuple(dict.fromkeys(checked)), tuple(dict.fromkeys(doubts)))


def _leaves(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules without children, in the order of definition, taken as the order of use."""
    return [(name, module.get_submodule(name)) for name in leaves(module)]


def _batch_norm(
    module: nn.Module, parts: dict[str, Tensor], at: dict[str, Tensor], said: DeclaredTraining
) -> Checked:
    """Batch norm in train mode: the scale of the layer before it changes nothing, so w_c · dL/dw_c = 0."""
    for (name, layer), (_, above) in pairwise(_leaves(module)):
        weight = f"{name}.weight"
        if not isinstance(above, _NORMS) or isinstance(layer, _NORMS) or weight not in parts:
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
    module: nn.Module, parts: dict[str, Tensor], at: dict[str, Tensor], said: DeclaredTraining
) -> Checked:
    """ReLU between two linear layers: w · dL/dw + b · dL/db of the first is w · dL/dw of the second."""
    leaves = [(n, m) for n, m in _leaves(module) if not isinstance(m, nn.Flatten)]
    for (name, layer), (_, gate), (above, last) in zip(
        leaves, leaves[1:], leaves[2:], strict=False
    ):
        is_relu = isinstance(gate, nn.ReLU | nn.LeakyReLU)
        is_relu = is_relu or gate.extra_repr() in ("relu", "leaky-relu")
        if not (is_relu and isinstance(layer, nn.Linear) and isinstance(last, nn.Linear)):
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


def _along(name: str, parts: dict[str, Tensor], at: dict[str, Tensor], *, with_bias: bool) -> float:
    names = [f"{name}.weight"]
    if with_bias and f"{name}.bias" in parts:
        names.append(f"{name}.bias")
    return float(sum((at[n].double() * parts[n].double()).sum() for n in names))


def _reduction(
    module: nn.Module,
    parts: dict[str, Tensor],
    at: dict[str, Tensor],
    said: DeclaredTraining,
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


_EACH = 16  # probes of each kind
_ABSENT = 3  # classes that must confirm the estimate
_CONFIRMED = 0.2  # relative: how far an absent class may be from the estimate
_ALIKE = 0.2  # relative deviation of the probabilities from probe to probe
_LEAST_ERROR = 0.05  # relative: an estimate is not better, even if it seems so
_ERRORS = 4.0  # times the error seen in absent classes is allowed in the others
_WHOLE = 0.05  # records: what counts as whole besides
_NOT_SCALED = 0.1  # of the estimate: a gradient is not as small, a rate times it is
_SINGLE = 1e-6  # absolute error of a softmax in single precision


@dataclass(frozen=True, eq=False)
class LastBias:
    """The gradient of the bias that is added last, and what the network says of inputs that tell nothing."""

    name: str
    slope: Tensor  # (c,)
    shares: Tensor  # (probes, c) probabilities
    precision: float  # relative error of the slope
    rounding: float  # absolute error of the slope

    def reduction_doubts(self, reduction: str) -> list[str]:
        """Whether it can be the gradient of a cross-entropy that was reduced so."""
        total = float(self.slope.abs().sum())
        slack = self.precision * total + len(self.slope) * self.rounding
        most = (
            1.0 if len(self.slope) == 1 else 2.0
        )  # |p - y| of one record, summed over the outputs
        doubts = []
        if reduction == "mean" and total > most + slack:
            doubts.append(
                f"payload: the loss is said to be a mean, but {self.name} has a gradient larger than a "
                "mean's can be: the loss was summed, or the update was scaled"
            )
        if len(self.slope) > 1 and abs(float(self.slope.sum())) > slack:
            doubts.append(
                f"payload: the gradient of {self.name} does not sum to zero: the loss is not a "
                "cross-entropy, or the update was changed"
            )
        return doubts

    def scale_doubts(self, reduction: str, size: int | None) -> list[str]:
        """Whether classes that are not in the batch have the size of a gradient, where it is known.

        They show p_c of an untrained network; a difference of weights shows the rate times that.
        """
        shares = self.shares.mean(0)
        if len(self.slope) <= _ABSENT or (reduction == "sum" and not size):
            return []
        ratio = self.slope / (shares * (size or 1 if reduction == "sum" else 1))
        sign = 1.0 if int((ratio > 0).sum()) > int((ratio < 0).sum()) else -1.0
        absent = (sign * ratio)[sign * ratio > 0]
        factor = sign * float(absent.median())
        even = float(((absent / abs(factor)) - 1).abs().median()) <= _CONFIRMED
        if 2 * len(absent) <= len(ratio) or not even:
            return []
        if abs(factor + 1) <= _CONFIRMED:
            return [
                f"payload: the sign of {self.name} is turned: it looks like after - before; give before - "
                "after, divided by the learning rate"
            ]
        if abs(factor) > _NOT_SCALED:
            return []
        sent = "after - before" if factor < 0 else "before - after"
        return [
            f"payload: {self.name} is {factor:.2g} times what a gradient would be: it looks like {sent}, not "
            "divided by the learning rate; give --before, --after and --rate"
        ]

    def count_doubts(self, reduction: str, size: int) -> list[str]:
        """Whether it can be the gradient of so many records."""
        slope = self.slope if reduction == "sum" else size * self.slope
        slack = self.precision * float(slope.abs().sum()) + size * self.rounding
        least = int(
            (-slope - slack).clamp_min(0).ceil().sum()
        )  # of one output: its records of class 1
        if least > size:
            return [
                f"payload: {self.name} has a gradient of at least {least} records, {size} are said: the "
                f"batch size or the reduction ({reduction}) is not as said"
            ]
        whole, summed = self._whole(slope, size), reduction == "sum"
        if summed and size > 1 and whole is None and self._whole(size * self.slope, size):
            return [
                f"payload: the loss is said to be a sum, but {self.name} counts whole records only as a mean"
            ]
        if whole is False:
            return [
                f"payload: {self.name} does not count {size} whole records: the batch size, the reduction "
                f"({reduction}) or the weights are not as said"
            ]
        return []

    def counts(self, reduction: str, size: int) -> bool:
        """Whether the estimate is confirmed, so that counts were looked at."""
        return self._whole(self.slope * (1 if reduction == "sum" else size), size) is not None

    def _whole(self, slope: Tensor, size: int) -> bool | None:
        """Whether every class has a whole number of records; None: the estimate is not confirmed."""
        shares = self.shares.mean(0)
        expected = (size * shares).clamp_min(1e-30)
        counted = expected - slope
        absent = (slope > 0) & (counted < 0.5)
        if int(absent.sum()) < _ABSENT or float((self.shares.std(0) / shares).max()) > _ALIKE:
            return None
        error = float((slope[absent] / expected[absent] - 1).abs().max())
        if error > _CONFIRMED:
            return None
        allowed = _ERRORS * max(error, _LEAST_ERROR) * expected + _WHOLE + size * self.rounding
        return bool(((counted - counted.round().clamp(0, size)).abs() <= allowed).all())


def last_bias_of(
    module: nn.Module,
    parts: dict[str, Tensor],
    at: dict[str, Tensor],
    input_shape: tuple[int, ...],
    vocabulary: int = 0,
    *,
    precision: float = 1e-3,
    rounding: float = 0.0,
) -> LastBias | None:
    """The gradient `parts` of the module at the weights `at`; None where no bias is added last."""
    name = list(parts)[-1]
    owner = dict(module.named_modules()).get(name.removesuffix(".bias"))
    weighted = [m for _, m in _leaves(module) if isinstance(getattr(m, "weight", None), Tensor)]
    if not name.endswith(".bias") or not isinstance(owner, nn.Linear) or owner is not weighted[-1]:
        return None
    probes = _probes(input_shape, vocabulary)
    logits = _logits_of(owner, module, at, probes)
    if logits is None:
        return None  # defined last, but not used last
    outputs = logits.double()
    shares = torch.sigmoid(outputs) if outputs.shape[1] == 1 else torch.softmax(outputs, 1)
    return LastBias(name, parts[name].double(), shares, precision, max(rounding, _SINGLE))


def _probes(input_shape: tuple[int, ...], vocabulary: int) -> Tensor:
    """Inputs of several kinds and scales, as nothing is known of the records: noise, sparse, smooth, zero."""
    generator = Key.from_seed(0).fold("probes").generator()
    shape = (_EACH, *input_shape)
    if vocabulary:
        return torch.randint(vocabulary, (4 * _EACH, *input_shape), generator=generator)
    even, sparse = torch.rand(2, *shape, generator=generator)
    kinds = [even, sparse * (sparse > 0.8), torch.randn(shape, generator=generator)]
    if len(input_shape) == 3:
        coarse = torch.randn(_EACH, input_shape[0], 3, 3, generator=generator)
        smooth = F.interpolate(coarse, input_shape[1:], mode="bilinear")
        kinds += [smooth, smooth.sigmoid()]
    else:
        kinds.append(0.3 * torch.randn(shape, generator=generator))
    return torch.cat([*kinds, torch.zeros(1, *input_shape)])


@torch.no_grad()
def _logits_of(
    layer: nn.Module, module: nn.Module, at: dict[str, Tensor], probes: Tensor
) -> Tensor | None:
    """(probes, c) what the layer returns, if it is what the module returns."""
    kind = next(iter(at.values())).dtype if probes.is_floating_point() else probes.dtype
    given: list[Tensor] = []
    modes = {inner: inner.training for inner in module.modules()}
    module.eval()
    try:
        with after(layer, [""], lambda _, __, outputs: given.append(outputs)):
            outputs: Tensor = functional_call(module, at, (probes.to(kind),))
    finally:
        for inner, training in modes.items():
            inner.training = training
    same = bool(given) and given[-1].shape == outputs.shape and torch.equal(given[-1], outputs)
    return outputs if same else None


# What batch norm saw of a client's batch, read off the running statistics that it sends back:
#
#     after = (1 - m) before + m seen,      m the momentum, of one step


_Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def batch_statistics(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], module: nn.Module
) -> dict[str, Tensor]:
    """`layer.mean` and `layer.var` to (c,), of layers whose statistics one step has moved; else nothing."""
    seen: dict[str, Tensor] = {}
    for name, layer in module.named_modules():
        if not isinstance(layer, _NORMS) or layer.running_mean is None:
            continue
        share = _share(name, layer, before, after)
        for kind in ("mean", "var"):
            buffer = f"{name}.running_{kind}"
            if share is None or buffer not in before or buffer not in after:
                continue
            old, new = before[buffer].double(), after[buffer].double()
            if not torch.equal(old, new):
                seen[f"{name}.{kind}"] = ((new - (1 - share) * old) / share).float()
    return seen


def _share(
    name: str, layer: _Norm, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> float | None:
    """The batch's share in the new statistics; None: there were several steps, or nobody knows."""
    counter = f"{name}.num_batches_tracked"
    if counter in before and counter in after and int(after[counter] - before[counter]) != 1:
        return None
    momentum = layer.momentum
    if momentum is None:  # a plain average over all batches
        return 1 / int(after[counter]) if counter in after and int(after[counter]) else None
    return float(momentum)
