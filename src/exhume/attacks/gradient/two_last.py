"""What a gradient says about the last two fully connected layers, and the parameters to ask it at.

    f_c(x) = sum_j a_cj sigma(w_j · x + b_j)

A first-layer bias is one more input that is always 1. C outputs are combined by alpha, the pattern of the
queried a_cj = alpha_c / m, into one function F with values sum_c alpha_c dL/da_cj and, from dL/dW, slopes.

Where the layers below are known, the records follow from the features that enter the last two:

    min_x || phi(x) - h ||^2,   phi the layers below at the queried parameters

by Levenberg-Marquardt, one record at a time. Exact where phi is one to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, jacrev

from exhume.core.contract import Architecture, ExhumeError, Key, NotApplicable
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.models.two_layer import TwoLayer
from exhume.train.least_squares import fit_damped

_RANK_ONE = 1e-4  # relative: outer weights that differ more are no multiples of one pattern
_STEPS = 60  # of the way below


@dataclass(frozen=True)
class TwoLast:
    """Where the last two layers are, and what lies between them."""

    architecture: TwoLayer | MLP
    activation: Activation
    first: str
    second: str
    biased: bool
    inputs: int  # width of what enters them: the record itself for one hidden layer

    @property
    def shape(self) -> tuple[int, ...]:
        whole = math.prod(self.architecture.input_shape) == self.inputs and self.first == "fc1"
        return tuple(self.architecture.input_shape) if whole else (self.inputs,)

    def last(self, gradient: Tensor, parameters: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """(m, d) hidden weights and (c, m) dL/da of one release, whatever the outer weights are."""
        outputs = self._split(gradient, index)[f"{self.second}.weight"].double()
        return self._with_bias(self.architecture.layout.split(parameters)), outputs

    def _split(self, gradient: Tensor, index: int) -> dict[str, Tensor]:
        if not bool(torch.isfinite(gradient).all()):
            raise ExhumeError(f"release {index}: the gradient holds NaN or infinite values")
        return self.architecture.layout.split(gradient)

    def _with_bias(self, named: Mapping[str, Tensor]) -> Tensor:
        """(m, d) of the first of the two layers; the last column is its bias, where there is one."""
        weights = named[f"{self.first}.weight"]
        if not self.biased:
            return weights
        return torch.cat([weights, named[f"{self.first}.bias"][:, None]], 1)

    def observe(self, gradient: Tensor, parameters: Tensor, index: int) -> Observation:
        """One release (p,) and the parameters (p,) it was taken at, in fp64."""
        at, got = self.architecture.layout.split(parameters), self._split(gradient, index)
        weights, slopes = self._with_bias(at), self._with_bias(got)
        outer = at[f"{self.second}.weight"].double()
        alpha, pattern = _split_outer(outer)
        values = got[f"{self.second}.weight"].double()
        return Observation(weights, values, alpha, slopes, pattern, outer)


@dataclass(frozen=True, eq=False)
class Observation:
    weights: Tensor  # (m, d) as queried; the last column is the bias, where there is one
    outputs: Tensor  # (c, m) dL/da
    alpha: Tensor  # (c,)
    raw_slopes: Tensor  # (m, d) dL/dW
    pattern: Tensor  # (m,) a_cj = alpha_c pattern_j
    outer: Tensor  # (c, m) a

    @property
    def values(self) -> Tensor:
        """(m,) F(w_j)."""
        return self.alpha @ self.outputs

    def slopes_along(self, basis: Tensor) -> Tensor:
        """(m, q) the gradient of F at w_j, inside a span."""
        return (self.raw_slopes.double() @ basis) / self.pattern[:, None]


def two_last(architecture: Architecture | None) -> TwoLast:
    """Raises `NotApplicable` for networks that do not end in two fully connected layers."""
    if not isinstance(architecture, TwoLayer | MLP):
        raise NotApplicable(
            f"architecture: the tensor attack reads TwoLayer and MLP networks, not {architecture}",
            ever=True,
        )
    names = [name.removesuffix(".weight") for name in architecture.layout.names if "weight" in name]
    if len(names) < 2:
        raise NotApplicable(f"{architecture}: there is no hidden layer to look through", ever=False)
    shapes = dict(zip(architecture.layout.names, architecture.layout.shapes, strict=True))
    first, second = names[-2:]
    return TwoLast(
        architecture,
        architecture.sigma
        if isinstance(architecture, TwoLayer)
        else activation(architecture.activation),
        first,
        second,
        f"{first}.bias" in shapes,
        shapes[f"{first}.weight"][1],
    )


def query_parameters(architecture: Architecture, spread: float, key: Key) -> Tensor:
    """(p,) the architecture's own start, with w_j ~ N(0, spread^2) and a_cj = ±1/m in the last two layers.

    The signs alternate over the outputs: with equal ones the slopes of a softmax would cancel.
    """
    view = two_last(architecture)
    layout = architecture.layout
    if isinstance(architecture, TwoLayer):  # there is nothing but the last two layers
        named = dict(layout.split(torch.empty(layout.size)))
    else:
        named = {n: t.clone() for n, t in layout.split(architecture.initial(key)).items()}
    generator = key.fold("query").generator()
    for name in (f"{view.first}.weight", f"{view.first}.bias"):
        if name in named:
            named[name] = spread * torch.randn(named[name].shape, generator=generator)
    outer = named[f"{view.second}.weight"]
    signs = torch.ones(len(outer)).where(torch.arange(len(outer)) % 2 == 0, -torch.ones(len(outer)))
    named[f"{view.second}.weight"] = (signs[:, None] / outer.shape[1]).expand_as(outer)
    return layout.join(named)


def _split_outer(outer: Tensor) -> tuple[Tensor, Tensor]:
    """a_cj = alpha_c pattern_j, with alpha of unit largest entry."""
    left, size, right = torch.linalg.svd(outer, full_matrices=False)
    if len(size) > 1 and float(size[1]) > _RANK_ONE * float(size[0]):
        raise NotApplicable(
            "outer weights: the outputs weigh the neurons differently, so their slopes do not add up "
            "to one function; query with multiples of one pattern",
            ever=True,
        )
    largest = left[:, 0].abs().max()
    alpha = left[:, 0] / largest
    pattern = right[0] * size[0] * largest
    if float(pattern.abs().min()) == 0:
        raise NotApplicable("outer weights: a neuron with weight 0 has no slope", ever=True)
    flip = -1.0 if float(alpha[0]) < 0 else 1.0
    return alpha * flip, pattern * flip


def features_below(architecture: MLP, parameters: Tensor, records: Tensor) -> Tensor:
    """(n, *shape) to (n, k): what enters the last two layers."""
    return _below(architecture, parameters)(records)


def _below(architecture: MLP, parameters: Tensor) -> Callable[[Tensor], Tensor]:
    """The layers below the last two, built once."""
    below = MLP(
        architecture.input_shape,
        architecture.hidden[:-2],
        architecture.hidden[-2],
        architecture.activation,
    )
    named = architecture.layout.split(parameters)
    known = {name: named[name] for name in below.layout.names}
    module, sigma = below.build(), activation(architecture.activation)

    def features(records: Tensor) -> Tensor:
        outputs: Tensor = functional_call(module, known, (records,))
        return sigma.apply(outputs)

    return features


def decode(architecture: MLP, parameters: Tensor, features: Tensor, key: Key) -> Tensor:
    """(n, k) features to (n, *shape) records, from noise in [0, 1]; fp64."""
    parameters, features = parameters.double(), features.double()
    shape = architecture.input_shape
    generator = key.generator()
    start = torch.rand(len(features), *shape, generator=generator, dtype=torch.float64).flatten(1)
    below = _below(architecture, parameters)
    records = []
    for begin, wanted in zip(start, features, strict=True):

        def gap(flat: Tensor, wanted: Tensor = wanted) -> Tensor:
            return below(flat.reshape(1, *shape))[0] - wanted

        records.append(fit_damped(gap, jacrev(gap), begin, steps=_STEPS, enough=1e-12)[0])
    return torch.stack(records).reshape(-1, *shape)
