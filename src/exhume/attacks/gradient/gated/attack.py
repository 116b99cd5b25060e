"""Every record of a batch behind fully connected layers with gates, at honest weights, batch size not given.

The last two layers are searched for the gates of each record (`search.py`): that gives what enters them and
what comes back to them, exactly. Below, nothing is searched any more: the gates of a layer are the signs of
what it gave, so that its deltas are known and its inputs are a linear system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from exhume.attacks.gradient.gated.layers import Chain, Layer, chain_of, lowest_of
from exhume.attacks.gradient.gated.search import EXPLAINED, Found, Neurons, records_behind
from exhume.attacks.gradient.gated.sizes import sizes_of
from exhume.attacks.gradient.gathering import Batch, EachGradient
from exhume.attacks.gradient.span.basis import span_of_slopes
from exhume.attacks.gradient.tensor.least_squares import least_squares
from exhume.contract import (
    Architecture,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Store,
    silent,
)

__all__ = ["ROUNDS", "Features", "GateAttack", "Layers", "chain_for", "features_behind"]

ROUNDS = 100  # of 256 starts, at most
Search = Callable[[Neurons, Key, int], Found]

_NOTHING = 1e-6  # relative: singular values of rounding
_FIRMER = 12  # rounds until neurons with a wrong gate have lost their weight


@dataclass(frozen=True)
class GateAttack:
    """Reconstruct all records behind a gradient of fully connected layers with ReLU or leaky gates.

    Sees: `Gradient`, all fully connected layers.
    Assumes: the architecture; two such layers or more at its end with a gate between them; biases, or a
    cross-entropy of three outputs; linearly independent features, fewer than neurons; a gradient of one step.
    Guarantees: the batch size is read off the spectrum; `explained`, the share of neurons whose gates fit an
    answer, certifies it without the truth.
    Reference: the low rank and the sparsity of dL/dW are SPEAR's (Dimitrov et al. 2024); the regression on
    two equations a neuron, the draws inside the span that is left and the way down are ours.
    """

    rounds: int = ROUNDS

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        architecture = knowledge.architecture
        if architecture is None:
            raise NotApplicable("the gates' attack needs the architecture", ever=True)
        inversion = _Inversion(self, architecture, key)
        shape, stage = tuple(architecture.input_shape), "opening gates"
        return EachGradient(shape, inversion.one, "the gates' attack", stage, progress)


@dataclass(frozen=True, eq=False)
class _Inversion:
    attack: GateAttack
    architecture: Architecture
    key: Key

    def one(self, gradient: Tensor, parameters: Tensor, index: int) -> Batch:
        shape = tuple(self.architecture.input_shape)
        key, seen = self.key.fold(index), Layers(self.architecture, gradient, parameters)
        try:
            chain = chain_for(seen, key)
            if not chain.whole:
                raise NotApplicable(
                    f"{self.architecture}: what enters {chain.layers[0].name}, the first layer that can be "
                    "read, is not the record itself",
                    ever=False,
                )
            found = features_behind(seen, chain, self.attack.rounds, key)
        except NotApplicable as why:
            return Batch(gradient.new_zeros(0, *shape), torch.zeros(0), {}, refused=why)
        return Batch(
            found.inputs.to(gradient.dtype).reshape(-1, *shape),
            found.explained,
            {"batch_size": float(found.rank), "explained": float(found.explained.min())},
            complete=found.complete,
        )


@dataclass(frozen=True, eq=False)
class Features:
    """What enters a layer, record by record."""

    inputs: Tensor  # (n, f)
    deltas: Tensor  # (n, m) what comes back to its output
    explained: Tensor  # (n,) share of the neurons whose gates fit
    rank: int  # records of the batch

    @property
    def complete(self) -> bool:
        return len(self.inputs) == self.rank and bool((self.explained >= EXPLAINED).all())


@dataclass(frozen=True, eq=False)
class Layers:
    """A gradient and the parameters it was taken at, layer by layer, in double precision."""

    architecture: Architecture
    gradient: Tensor  # (p,)
    parameters: Tensor  # (p,)
    records: int | None = None  # of the batch; None: the spectrum says it
    spans: dict[str, Tensor] = field(default_factory=dict, repr=False)  # by layer, each once

    def __post_init__(self) -> None:
        if not bool(torch.isfinite(self.gradient).all()):
            raise ExhumeError("release: the gradient holds NaN or infinite values")

    @property
    def frozen(self) -> tuple[str, ...]:
        """Parameters without a gradient."""
        named = self.architecture.layout.split(self.gradient)
        return tuple(name for name, part in named.items() if not bool(part.any()))

    def slopes(self, layer: Layer) -> Tensor:
        """(m, f + 1) dL/dW with dL/db behind it."""
        return self._slopes(layer).double()

    def span(self, layer: Layer, key: Key) -> Tensor:
        """(f + 1, b) a basis of what enters the layer; the release's own precision says where it ends."""
        if layer.name not in self.spans:
            self.spans[layer.name] = self._span(self._slopes(layer), key.fold("span"))
        return self.spans[layer.name]

    def _span(self, slopes: Tensor, key: Key) -> Tensor:
        if self.records is None:
            return span_of_slopes(slopes, key)[0]
        rows: Tensor = torch.linalg.svd(slopes.double(), full_matrices=False)[2]
        return rows[: self.records].T

    def weights(self, layer: Layer) -> Tensor:
        """(m, f + 1) of the layer and its norm in one."""
        named = self.architecture.layout.split(self.parameters)
        if not layer.norm:
            return _joined(layer, named).double()
        scale, shift = self._norm(layer)
        bias = named.get(f"{layer.name}.bias")
        shift = shift if bias is None else shift + scale * bias.double()
        return torch.cat([scale[:, None] * named[f"{layer.name}.weight"], shift[:, None]], 1)

    def _slopes(self, layer: Layer) -> Tensor:
        named = self.architecture.layout.split(self.gradient)
        if not layer.norm:
            return _joined(layer, named)
        scale = self._norm(layer)[0].to(self.gradient.dtype)
        back = torch.where(scale == 0, 0.0, 1 / scale)[:, None]  # W of the two in one is scale · W
        rows = back * named[f"{layer.name}.weight"]
        if f"{layer.norm}.bias" in named:
            return torch.cat([rows, named[f"{layer.norm}.bias"][:, None]], 1)
        return torch.cat([rows, back * named[f"{layer.name}.bias"][:, None]], 1)

    def _norm(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """(m,) what a batch norm in eval mode multiplies each neuron by, and adds."""
        norm = self.architecture.build().get_submodule(layer.norm)
        assert isinstance(norm, nn.BatchNorm1d)  # or `chain_of` would not name it
        assert norm.running_mean is not None  # it is in eval mode
        assert norm.running_var is not None
        named = self.architecture.layout.split(self.parameters)
        scale = 1 / (norm.running_var.double() + norm.eps).sqrt()
        if f"{layer.norm}.weight" in named:
            scale = scale * named[f"{layer.norm}.weight"].double()
        shift = -scale * norm.running_mean.double()
        if f"{layer.norm}.bias" in named:
            shift = shift + named[f"{layer.norm}.bias"].double()
        return scale, shift


def _joined(layer: Layer, named: Mapping[str, Tensor]) -> Tensor:
    parts = [named[f"{layer.name}.weight"]]
    if layer.biased:
        parts.append(named[f"{layer.name}.bias"][:, None])
    return torch.cat(parts, 1)


def chain_for(seen: Layers, key: Key) -> Chain:
    """The layers to read: for a batch of one the lowest, whatever is behind it; else those with gates."""
    lowest = lowest_of(seen.architecture, seen.parameters, seen.frozen)
    if lowest is None:
        raise NotApplicable(
            f"{seen.architecture}: no fully connected layer takes one vector a record", ever=False
        )
    first = lowest.layers[0]
    if first.biased and seen.span(first, key).shape[1] == 1:
        return lowest
    found = chain_of(seen.architecture, seen.parameters, seen.frozen)
    assert found is not None  # there is a layer
    return found


def features_behind(
    seen: Layers, chain: Chain, rounds: int, key: Key, search: Search = records_behind
) -> Features:
    """What enters the lowest layer of the chain. search: for the gates of the last two."""
    lowest = chain.layers[0]
    if seen.span(lowest, key).shape[1] == 1 and (lowest.biased or not chain.gated):
        return _alone(seen.slopes(lowest), lowest)
    if not chain.gated:
        raise NotApplicable(
            f"{lowest.name} has no gate and no fully connected layer behind it, so that only a batch of one "
            "can be read off it",
            ever=True,
        )
    *below, first, second = chain.layers
    found = _searched(seen, (first, second), rounds, key, search)
    above = first
    for layer in reversed(below):
        found = _below(seen, layer, above, found)
        above = layer
    return found


def _alone(slopes: Tensor, layer: Layer) -> Features:
    """A batch of one: dL/dW is x dL/db."""
    if not layer.biased:
        raise NotApplicable(f"{layer.name} has no bias, so that the size is open", ever=False)
    deltas = slopes[:, -1]
    inputs = (deltas @ slopes[:, :-1]) / deltas.square().sum()
    one = torch.ones(1, dtype=torch.float64)
    return Features(inputs[None], deltas[None], one, 1)


def _searched(
    seen: Layers, pair: tuple[Layer, Layer], rounds: int, key: Key, search: Search
) -> Features:
    """What enters the first of two layers with a gate between them."""
    first, second = pair
    slopes, weights = seen.slopes(first), seen.weights(first)
    basis = seen.span(first, key)
    left, size = torch.linalg.qr(slopes @ basis)  # slopes = left @ rows
    rows = size @ basis.T
    returning = _returning(seen.slopes(second))
    outer = seen.weights(second)[:, : len(weights)].T @ returning
    neurons = Neurons.of(left, outer, weights @ rows.T, first.leak)
    if not neurons.enough:
        raise NotApplicable(
            f"{basis.shape[1]} records are too many for {len(neurons.left)} neurons of {first.name}",
            ever=False,
        )
    found = search(neurons, key, rounds)
    if not len(found):
        raise NotApplicable(f"no record's gates were found in {rounds} rounds", ever=True)
    inputs = torch.linalg.pinv(found.duals.T) @ rows  # x delta^T, up to the size of either
    if first.biased:
        last = inputs[:, -1:]
    else:
        hidden = inputs @ weights.T
        last = 1 / sizes_of(
            hidden, first, second, seen.weights(second), found.returned @ returning.T
        )
    inputs = inputs / last
    along = left @ found.duals.T * last.T  # (m, n) delta
    back = outer @ found.returned.T * last.T
    opened = (along - back).abs() < (along - first.leak * back).abs()
    live = left.norm(dim=1) > 0
    agree = (opened == (weights @ inputs.T > 0))[live].double().mean(0)
    inputs = inputs[:, :-1] if first.biased else inputs
    return Features(inputs, along.T, agree, basis.shape[1])


def _returning(slopes: Tensor) -> Tensor:
    """(c, k) a basis of what can come back to the layer's output: the columns of its dL/dW."""
    left, size, _ = torch.linalg.svd(slopes, full_matrices=False)
    basis: Tensor = left[:, size > _NOTHING * size[0]]
    return basis


def _below(seen: Layers, layer: Layer, above: Layer, found: Features) -> Features:
    """One layer down: its gates are the signs of what it gave, so that what comes back to it is known.

    Some gates are so nearly shut that the error of the features hides their side. A neuron with such a gate
    does not fit the others, so that it loses its weight.
    """
    back = found.deltas @ seen.weights(above)[:, : found.inputs.shape[1]]
    slopes = seen.slopes(layer)
    error = 0.0 if layer.leak else 1.5 * float(-found.inputs.min().clamp_max(0))
    deltas = torch.where(found.inputs > error, 1.0, layer.leak) * back
    weight = torch.ones(len(slopes), 1, dtype=slopes.dtype)
    for _ in range(_FIRMER):
        inputs = least_squares(weight * deltas.T, weight * slopes)
        misfit = (slopes - deltas.T @ inputs).norm(dim=1, keepdim=True)
        weight = 1 / (misfit + misfit.median() + 1e-30)
        weight = weight / weight.max()
    opened = inputs @ seen.weights(layer).T > 0
    deltas = torch.where(opened, 1.0, layer.leak) * back
    inputs = inputs[:, :-1] if layer.biased else inputs
    return Features(inputs, deltas, found.explained, found.rank)
