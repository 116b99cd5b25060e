"""Full-batch descent deep into the regime where implicit bias shows (Buzaglo23), exactly and cheaply.

The first layer's gradient is a combination of the n training inputs, so its whole history is

    W1(t) = decay(t)·W1(0) + A(t)ᵀ X          A (n, k), X (n, d)

and descent on A with the Gram matrix X Xᵀ is descent on W1: the same numbers at n/d of the cost. The
loss falls like 1/t, since its gradient shrinks with it; once it is below `growing_steps`, steps can grow as
the loss falls, which follows the same path in fewer epochs.

Memory: n·k + k² numbers and the activations. Work is kept every 2,000 epochs (50 with growing steps).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.contract import ExhumeError, Key, Progress, Records, Store, silent
from exhume.models.heads import Head, check_head, pulls
from exhume.models.homogeneous import HomogeneousMLP, Matrices
from exhume.store import NullStore, address, digest

__all__ = ["MarginDescent", "Trained", "train_to_margin"]

_SEGMENT, _SHORT = 2000, 50  # with growing steps, epochs count for more


@dataclass(frozen=True)
class MarginDescent:
    """Plain gradient descent on the mean loss until it is low enough. Buzaglo23: rate .5, all records."""

    architecture: HomogeneousMLP
    head: Head = "multiclass"
    rate: float = 0.5
    weight_decay: float = 0.0
    stop_loss: float = 2e-6  # reached: stop
    epochs: int = 100_000  # at most
    growing_steps: float = 0.0  # loss below which the rate grows as growing_steps/loss; 0: never

    def __post_init__(self) -> None:
        check_head(self.head, self.architecture.outputs)
        if self.growing_steps and self.weight_decay:
            raise ExhumeError(
                f"growing_steps: {self.growing_steps:g} given with weight decay {self.weight_decay:g}; "
                "growing steps follow the same path only without decay"
            )

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        trained = []
        for index in range(len(extra.labels)):
            records = fixed.with_extra(extra, index)
            start = initial if initial.ndim == 1 else initial[index]
            trained.append(train_to_margin(self, start, records).parameters)
        return torch.stack(trained)

    def __str__(self) -> str:
        decay = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        return f"full-batch gradient descent, rate {self.rate:g}{decay}, to loss {self.stop_loss:g}"


@dataclass(frozen=True, eq=False)
class Trained:
    parameters: Tensor  # (p,)
    epochs: int
    loss: float
    turning: Tensor  # (t,) 1 - cos between successive segments' parameters: directional convergence


@dataclass(frozen=True, eq=False)
class _State:
    coefficients: Tensor  # A, (n, k)
    bias: Tensor
    later: tuple[Tensor, ...]
    decay: float = 1.0  # what is left of the initial first layer
    epochs: int = 0
    loss: float = float("inf")
    turning: tuple[float, ...] = ()

    def save(self) -> dict[str, Tensor]:
        named = {f"later{i}": matrix for i, matrix in enumerate(self.later)}
        numbers = torch.tensor([self.decay, self.epochs, self.loss], dtype=torch.float64)
        turning = torch.tensor(self.turning, dtype=torch.float64)
        return {
            "coefficients": self.coefficients,
            "bias": self.bias,
            "numbers": numbers,
            "turning": turning,
            **named,
        }

    @staticmethod
    def load(saved: Mapping[str, Tensor]) -> _State:
        later = tuple(saved[f"later{i}"] for i in range(sum(n.startswith("later") for n in saved)))
        decay, epochs, loss = saved["numbers"].tolist()
        turning = tuple(saved["turning"].tolist())
        return _State(
            saved["coefficients"], saved["bias"], later, decay, int(epochs), loss, turning
        )


def train_to_margin(
    recipe: MarginDescent,
    initial: Tensor,
    records: Records,
    *,
    store: Store | None = None,
    progress: Progress = silent,
) -> Trained:
    """Train one network (p,) on the records as they are: subtract a mean before, if one is to be."""
    kept = NullStore() if store is None else store
    mlp = recipe.architecture
    inputs = records.inputs.flatten(1).to(initial.dtype)
    start = mlp.matrices(initial)
    problem = _Problem(recipe, inputs @ inputs.T, inputs @ start.first.T, records.labels)
    state = _State(inputs.new_zeros(len(inputs), len(start.bias)), start.bias, start.later)
    known = (digest(initial), digest(records))
    length = _SHORT if recipe.growing_steps else _SEGMENT
    for segment in range(-(-recipe.epochs // length)):
        progress("training to the margin", state.epochs, recipe.epochs)
        name = address("train_to_margin", recipe, known, _NO_KEY, segment)
        saved = kept.load(name)
        if saved is None:
            state = problem.advance(state, min(length, recipe.epochs - state.epochs))
            kept.save(name, state.save())
        else:
            state = _State.load({key: one.to(initial.device) for key, one in saved.items()})
        if state.loss <= recipe.stop_loss:
            break
    progress("training to the margin", recipe.epochs, recipe.epochs)
    first = state.decay * start.first + state.coefficients.T @ inputs
    parameters = mlp.join(Matrices(first, state.bias, state.later))
    return Trained(parameters, state.epochs, state.loss, torch.tensor(state.turning))


_NO_KEY = Key("")  # nothing random happens here


@dataclass(frozen=True, eq=False)
class _Problem:
    recipe: MarginDescent
    gram: Tensor  # X Xᵀ, (n, n)
    first: Tensor  # X W1(0)ᵀ, (n, k)
    labels: Tensor

    def advance(self, state: _State, epochs: int) -> _State:
        """The state after so many more epochs, or fewer if the loss is low enough."""
        recipe, n = self.recipe, len(self.labels)
        before = state
        coefficients, bias = state.coefficients.clone(), state.bias.clone()
        later = tuple(matrix.clone() for matrix in state.later)
        network = Matrices(self.first, bias, later)  # only what follows the first layer is used
        decay, loss, done = state.decay, state.loss, 0
        for _ in range(epochs):
            preactivation = (self.gram @ coefficients).add_(self.first, alpha=decay).add_(bias)
            entering, outputs = network.after_first(preactivation)
            losses, pull = pulls(recipe.head, outputs, self.labels)
            loss = float(losses.mean())
            if loss <= recipe.stop_loss:
                break
            rate = recipe.rate * max(1.0, recipe.growing_steps / loss)
            keep = 1 - rate * recipe.weight_decay
            step = rate / n
            for index in reversed(range(len(later))):
                gate = entering[index]
                back = pull @ later[index]
                later[index].mul_(keep).addmm_(pull.T, gate.clamp_min(0), alpha=step)
                pull = back.mul_(gate > 0)
            coefficients.mul_(keep).add_(pull, alpha=step)
            bias.mul_(keep).add_(pull.sum(0), alpha=step)
            decay *= keep
            done += 1
        if not loss < float("inf"):
            raise ExhumeError(
                f"training diverged ({recipe}): the loss is {loss}; lower the rate, or scale the records"
            )
        after = replace(
            state,
            coefficients=coefficients,
            bias=bias,
            later=later,
            decay=decay,
            epochs=state.epochs + done,
            loss=loss,
        )
        return replace(after, turning=(*state.turning, self._turn(before, after)))

    def _turn(self, before: _State, after: _State) -> float:
        """1 - cos of the angle between two states' parameters; W1(0) left out, which is small or gone."""

        def inner(one: _State, two: _State) -> float:
            total = float(((self.gram @ one.coefficients) * two.coefficients).sum().double())
            total += float((one.bias * two.bias).sum())
            return total + sum(
                float((a * b).sum()) for a, b in zip(one.later, two.later, strict=True)
            )

        return 1 - inner(before, after) / math.sqrt(inner(before, before) * inner(after, after))
