"""What the gradient of the last bias says about a batch: how its loss was reduced, how many records it had.

Under cross-entropy dL/db_c = sum_i p_ic - B_c for a sum, and the same over B for a mean: B_c records of class
c, p_ic the probability that the network gives record i. B_c is a whole number, and p_ic is positive:

- certain: B_c > -dL/db_c, so that all classes together need at least so many records;
- estimated: where the network says the same whatever it is shown, p_ic is known without the records, and
  every B_c must come out whole. Classes that are not in the batch show p_ic themselves: unless at least three
  of them confirm the estimate, nothing is said. A trained network is seldom confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from exhume.core.contract import Key
from exhume.models.probes import after

__all__ = ["LastBias", "last_bias_of"]

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
        if 2 * len(absent) <= len(ratio) or not even or abs(factor) > _NOT_SCALED:
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
        whole = self._whole(slope, size)
        if (
            reduction == "sum"
            and size > 1
            and whole is None
            and self._whole(size * self.slope, size)
        ):
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
        slope = self.slope if reduction == "sum" else size * self.slope
        return self._whole(slope, size) is not None

    def _whole(self, slope: Tensor, size: int) -> bool | None:
        """Whether every class has a whole number of records; None: the estimate is not confirmed."""
        shares = self.shares.mean(0)
        expected = (size * shares).clamp_min(1e-30)
        found = expected - slope
        absent = (slope > 0) & (found < 0.5)
        if int(absent.sum()) < _ABSENT or float((self.shares.std(0) / shares).max()) > _ALIKE:
            return None
        error = float((slope[absent] / expected[absent] - 1).abs().max())
        if error > _CONFIRMED:
            return None
        allowed = _ERRORS * max(error, _LEAST_ERROR) * expected + _WHOLE + size * self.rounding
        return bool(((found - found.round().clamp(0, size)).abs() <= allowed).all())


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
    weighted = [m for m in module.modules() if not list(m.children()) and _has_weight(m)]
    if not name.endswith(".bias") or not isinstance(owner, nn.Linear) or owner is not weighted[-1]:
        return None
    probes = _probes(input_shape, vocabulary)
    logits = _logits_of(owner, module, at, probes)
    if logits is None:
        return None  # defined last, but not used last
    outputs = logits.double()
    shares = torch.sigmoid(outputs) if outputs.shape[1] == 1 else torch.softmax(outputs, 1)
    return LastBias(name, parts[name].double(), shares, precision, max(rounding, _SINGLE))


def _has_weight(module: nn.Module) -> bool:
    return isinstance(getattr(module, "weight", None), Tensor)


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
