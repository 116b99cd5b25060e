"""Descent deep into the regime where implicit bias or weight decay shows (Buzaglo23), exactly and cheaply.

The first layer's gradient is a combination of the n training inputs, so its whole history is

    W1(t) = left(t)·W1(0) + A(t)ᵀ X          A (n, k), X (n, d)

and descent on A with the Gram matrix X Xᵀ is descent on W1: the same numbers at n/d of the cost, with
momentum, mini-batches and decay too, which are linear in the gradients. The loss falls like 1/t, since its
gradient shrinks with it; once it is below `growing_steps`, steps can grow as the loss falls, which follows
the same path in fewer epochs.

Memory: n·k + k² numbers, twice with momentum, and the activations. Work is kept every 2,000 steps (50 with
growing ones).

How far parameters are from a stationary point that these records explain (Buzaglo23, eqs. 2 and 6).

    W_l  =  sum_i lambda_i g_{l,i} h_{l-1,i}ᵀ          for every layer l, lambda_i >= 0
    g_{l,i} = d/dz_l of [Phi_y(x_i) - sum_j p_j Phi_j(x_i)],      h_{l-1,i} = what enters layer l

`others` says which competitors p is about: "max" puts all on the runner-up (eq. 6), "softmax" shares
it out as the cross-entropy's own gradient does: p_j = exp(Phi_j) / sum_{j != y} exp(Phi_j).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from scipy.optimize import nnls
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Progress, Records, Store, silent
from exhume.models.heads import Head, check_head, margins, pulls, signs
from exhume.models.matrices import DenseNetwork, Matrices
from exhume.store.shards import NullStore, address, digest
from exhume.train.local import Routine

_SEGMENT, _SHORT = 2000, 50  # with growing steps, epochs count for more
Others = Literal["softmax", "max"]


@dataclass(frozen=True)
class MarginDescent:
    """Gradient descent on the mean loss until it is low enough. Buzaglo23: rate .5, all records."""

    architecture: DenseNetwork
    head: Head = "multiclass"
    rate: float = 0.5
    weight_decay: float = 0.0
    stop_loss: float = 2e-6  # reached: stop
    epochs: int = 100_000  # at most
    growing_steps: float = 0.0  # loss below which the rate grows as growing_steps/loss; 0: never
    momentum: float = 0.0  # v <- m·v + g, theta <- theta - rate·v
    batch: int = 0  # records of a step, in a new order every epoch; 0: all
    schedule: str = "constant"  # of the rate over the epochs: constant, linear, cosine or step
    decay_biases: bool = True  # False: weight decay leaves the biases alone

    def __post_init__(self) -> None:
        check_head(self.head, self.architecture.outputs)
        Routine(schedule=self.schedule, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.batch < 0:
            raise ExhumeError(f"batch: must be at least 0, got {self.batch}")
        other = (
            (self.weight_decay, f"weight decay {self.weight_decay:g}"),
            (self.momentum, f"momentum {self.momentum:g}"),
            (self.batch, f"batches of {self.batch}"),
        )
        if self.growing_steps and (said := [words for given, words in other if given]):
            raise ExhumeError(
                f"growing_steps: {self.growing_steps:g} given with {' and '.join(said)}; "
                "growing steps follow the same path only without decay, momentum and batches"
            )

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        trained = []
        for index in range(len(extra.labels)):
            records = fixed.with_extra(extra, index)
            start = initial if initial.ndim == 1 else initial[index]
            order = key.fold("margin order", first + index)
            trained.append(train_to_margin(self, start, records, key=order).parameters)
        return torch.stack(trained)

    def __str__(self) -> str:
        kind = f"batches of {self.batch}" if self.batch else "full-batch gradient descent"
        said = [
            f"{kind}, rate {self.rate:g}",
            f"momentum {self.momentum:g}" if self.momentum else "",
            f"{self.schedule} schedule" if self.schedule != "constant" else "",
            f"weight decay {self.weight_decay:g}" if self.weight_decay else "",
            "none on biases" if self.weight_decay and not self.decay_biases else "",
            f"to loss {self.stop_loss:g}",
        ]
        return ", ".join(part for part in said if part)


@dataclass(frozen=True, eq=False)
class TrainedToMargin:
    parameters: Tensor  # (p,)
    epochs: int
    loss: float
    turning: Tensor  # (t,) 1 - cos between successive segments' parameters: directional convergence


@dataclass(frozen=True, eq=False)
class _State:
    """Where training is. `moving`: A, what is left of W1(0) as one number, the bias, the later matrices and
    their biases; `velocities`: as many with momentum."""

    moving: tuple[Tensor, ...]
    velocities: tuple[Tensor, ...]
    epochs: int = 0
    loss: float = float("inf")
    turning: tuple[float, ...] = ()

    def save(self) -> dict[str, Tensor]:
        named = {f"moving{i}": tensor for i, tensor in enumerate(self.moving)}
        named |= {f"velocity{i}": tensor for i, tensor in enumerate(self.velocities)}
        numbers = torch.tensor([self.epochs, self.loss], dtype=torch.float64)
        turning = torch.tensor(self.turning, dtype=torch.float64)
        return {"numbers": numbers, "turning": turning, **named}

    @staticmethod
    def load(saved: Mapping[str, Tensor]) -> _State:
        def all_of(kind: str) -> tuple[Tensor, ...]:
            return tuple(saved[f"{kind}{i}"] for i in range(sum(n.startswith(kind) for n in saved)))

        epochs, loss = saved["numbers"].tolist()
        turning = tuple(saved["turning"].tolist())
        return _State(all_of("moving"), all_of("velocity"), int(epochs), loss, turning)


_NO_KEY = Key("")  # of training in which nothing random happens


def train_to_margin(
    recipe: MarginDescent,
    initial: Tensor,
    records: Records,
    *,
    key: Key = _NO_KEY,
    store: Store | None = None,
    progress: Progress = silent,
) -> TrainedToMargin:
    """Train one network (p,) on the records as they are: subtract a mean before, if one is to be.

    key: of the order of batches; not used without them.
    """
    shards = NullStore() if store is None else store
    mlp, drawn = recipe.architecture, key if recipe.batch else _NO_KEY
    inputs = records.inputs.flatten(1).to(initial.dtype)
    start = mlp.matrices(initial)
    problem = _Problem(
        recipe, start, inputs @ inputs.T, inputs @ start.first.T, records.labels, drawn
    )
    state = problem.start()
    known = (digest(initial), digest(records))
    for segment in range(-(-recipe.epochs // problem.segment)):
        progress("training to the margin", state.epochs, recipe.epochs)
        name = address("train_to_margin", recipe, known, drawn, segment)
        saved = shards.load(name)
        if saved is None:
            state = problem.advance(state, min(problem.segment, recipe.epochs - state.epochs))
            shards.save(name, state.save())
        else:
            state = _State.load({part: one.to(initial.device) for part, one in saved.items()})
        if state.loss <= recipe.stop_loss:
            break
    progress("training to the margin", recipe.epochs, recipe.epochs)
    coefficients, left, *_ = state.moving
    first = float(left) * start.first + coefficients.T @ inputs
    parameters = mlp.join(replace(problem.network(state.moving), first=first))
    return TrainedToMargin(parameters, state.epochs, state.loss, torch.tensor(state.turning))


@dataclass(frozen=True, eq=False)
class _Problem:
    recipe: MarginDescent
    initial: Matrices
    gram: Tensor  # X Xᵀ, (n, n)
    first: Tensor  # X W1(0)ᵀ, (n, k)
    labels: Tensor
    key: Key

    @property
    def segment(self) -> int:
        """Epochs that are kept together."""
        if self.recipe.growing_steps:
            return _SHORT
        batch = min(self.recipe.batch, len(self.labels)) or len(self.labels)
        return max(1, _SEGMENT * batch // len(self.labels))

    def start(self) -> _State:
        start = self.initial
        none = self.gram.new_zeros(len(self.gram), len(start.bias))
        left = self.gram.new_ones(1, dtype=torch.float64)
        moving = (none, left, start.bias, *start.later, *start.later_biases)
        still = tuple(torch.zeros_like(tensor) for tensor in moving)
        return _State(moving, still if self.recipe.momentum else ())

    def network(self, moving: tuple[Tensor, ...]) -> Matrices:
        """What follows the first layer, as views; the first layer itself is that of the start."""
        _, _, bias, *rest = moving
        later = len(self.initial.later)
        return replace(
            self.initial, bias=bias, later=tuple(rest[:later]), later_biases=tuple(rest[later:])
        )

    def advance(self, state: _State, epochs: int) -> _State:
        """The state after so many more epochs, or fewer if the loss is low enough."""
        recipe = self.recipe
        moving = tuple(tensor.clone() for tensor in state.moving)
        velocities = tuple(tensor.clone() for tensor in state.velocities)
        rates = Routine(schedule=recipe.schedule).rates(recipe.rate, recipe.epochs)
        loss, done = state.loss, 0
        for epoch in range(state.epochs, state.epochs + epochs):
            losses = []
            for rows in self._batches(epoch):
                losses.append(self._step(moving, velocities, rows, rates[epoch]))
                if rows is None and losses[-1] <= recipe.stop_loss:  # no step was taken
                    break
            loss = sum(losses) / len(losses)
            if not loss < float("inf"):
                raise ExhumeError(
                    f"training diverged ({recipe}): the loss is {loss}; lower the rate, or scale the "
                    "records"
                )
            if loss <= recipe.stop_loss:
                break
            done += 1
        after = replace(
            state, moving=moving, velocities=velocities, epochs=state.epochs + done, loss=loss
        )
        return replace(after, turning=(*state.turning, self._turn(state, after)))

    def _batches(self, epoch: int) -> list[Tensor] | list[None]:
        """Rows of each step; None: all."""
        if not 0 < self.recipe.batch < len(self.labels):
            return [None]
        generator = self.key.fold("epoch", epoch).generator()
        order = torch.randperm(len(self.labels), generator=generator).to(self.gram.device)
        return list(torch.split(order, self.recipe.batch))

    def _step(
        self,
        moving: tuple[Tensor, ...],
        velocities: tuple[Tensor, ...],
        rows: Tensor | None,
        rate: float,
    ) -> float:
        """One step in place, unless the loss is low enough with all records; the loss before it."""
        recipe, network = self.recipe, self.network(moving)
        gram, first, labels = self.gram, self.first, self.labels
        if rows is not None:
            gram, first, labels = gram[rows], first[rows], labels[rows]
        coefficients, left, bias, *_ = moving
        preactivation = (gram @ coefficients).add_(first, alpha=float(left)).add_(bias)
        entering, outputs = network.after_first(preactivation)
        losses, pull = pulls(recipe.head, outputs, labels)
        loss = float(losses.mean())
        if rows is None and loss <= recipe.stop_loss:
            return loss
        rate *= max(1.0, recipe.growing_steps / loss) if recipe.growing_steps else 1.0
        added = _pulls_on(network, entering, pull, rows)
        for index, (tensor, add) in enumerate(zip(moving, added, strict=True)):
            is_bias = index == 2 or index > 2 + len(network.later)
            decay = 0.0 if is_bias and not recipe.decay_biases else recipe.weight_decay
            if velocities:
                velocity = velocities[index].mul_(recipe.momentum).add_(tensor, alpha=decay)
                add(velocity, -1 / len(labels))
                tensor.sub_(velocity, alpha=rate)
            else:
                add(tensor.mul_(1 - rate * decay), rate / len(labels))
        return loss

    def _turn(self, before: _State, after: _State) -> float:
        """1 - cos of the angle between two states' parameters; W1(0) left out, which is small or gone."""

        def inner(one: _State, two: _State) -> float:
            total = float(((self.gram @ one.moving[0]) * two.moving[0]).sum().double())
            rest = zip(one.moving[2:], two.moving[2:], strict=True)
            return total + sum(float((a * b).sum()) for a, b in rest)

        return 1 - inner(before, after) / math.sqrt(inner(before, before) * inner(after, after))


_Add = Callable[[Tensor, float], object]
"""Adds the sum of the records' pulls on one moving tensor, times a number, to a tensor of its shape."""


def _pulls_on(
    network: Matrices, entering: list[Tensor], pull: Tensor, rows: Tensor | None
) -> list[_Add]:
    """One for each moving tensor."""
    active = [network.act.apply(before) for before in entering]
    signals = [pull]  # on the output of each layer, first to last
    for matrix, before, given in zip(
        reversed(network.later), reversed(entering), reversed(active), strict=True
    ):
        signals.insert(0, (signals[0] @ matrix).mul_(network.act.slope(before, given)))
    first, *later = signals

    def on_coefficients(to: Tensor, times: float) -> None:
        if rows is None:
            to.add_(first, alpha=times)
        else:
            to.index_add_(0, rows, first, alpha=times)

    def on_matrix(signal: Tensor, fed: Tensor) -> _Add:
        return lambda to, times: to.addmm_(signal.T, fed, alpha=times)

    def on_bias(signal: Tensor) -> _Add:
        return lambda to, times: to.add_(signal.sum(0), alpha=times)

    matrices = [on_matrix(signal, fed) for signal, fed in zip(later, active, strict=True)]
    biases = [on_bias(signal) for signal in later] if network.later_biases else []
    return [on_coefficients, _pull_nothing, on_bias(first), *matrices, *biases]


def _pull_nothing(to: Tensor, times: float) -> None:
    """No record pulls on what is left of the start."""


def competitors(outputs: Tensor, labels: Tensor, others: Others) -> Tensor:
    """p: (n, c) outputs to the weights of the wrong classes (n, c); the right one's is 0."""
    wrong = outputs.scatter(1, labels[:, None], -torch.inf)
    if others == "softmax":
        return torch.softmax(wrong, 1)
    if others == "max":
        return torch.zeros_like(outputs).scatter(1, wrong.argmax(1, keepdim=True), 1.0)
    raise ExhumeError(f"others: {others!r} is not one of softmax, max")


def directions(head: Head, outputs: Tensor, labels: Tensor, others: Others) -> Tensor:
    """(n, c) the combination of outputs whose gradient each record contributes."""
    if head == "multiclass":
        p = competitors(outputs, labels, others)
        return (-p).scatter(1, labels[:, None], 1.0)
    if head == "binary":
        return signs(labels, outputs)[:, None]
    return torch.ones_like(outputs)


@dataclass(frozen=True, eq=False)
class Stationarity:
    """Squared residuals relative to the squared norm of what is to be explained."""

    first_layer: float  # with the multipliers that suit the first layer best
    all_layers: float  # with those that suit all layers best
    multipliers: Tensor  # (n,) of the first layer
    margins: Tensor  # (n,)


def stationarity(
    network: Matrices, inputs: Tensor, labels: Tensor, head: Head, others: Others = "softmax"
) -> Stationarity:
    """Residuals at these records (n, d) with the best multipliers: non-negative least squares, fp64.

    This looks at the records, so it tells how well an attack could do at most; it is no part of one.
    """
    double = network.to(torch.float64)
    entering, outputs = double.forward(inputs.double())
    grams, pulled, norms = _layers(double, inputs.double(), entering, outputs, labels, head, others)
    first, multipliers = _best(grams[0], pulled[0], norms[0], signed=head == "regression")
    total, _ = _best(
        torch.stack(grams).sum(0),
        torch.stack(pulled).sum(0),
        sum(norms),
        signed=head == "regression",
    )
    return Stationarity(first, total, multipliers, margins(head, outputs, labels))


def _layers(  # noqa: PLR0917
    network: Matrices,
    inputs: Tensor,
    entering: list[Tensor],
    outputs: Tensor,
    labels: Tensor,
    head: Head,
    others: Others,
) -> tuple[list[Tensor], list[Tensor], list[float]]:
    """For each layer, first to last: inner products of the records' terms (n, n), of each with the
    layer (n,), and of the layer with itself."""
    grams, pulled, norms = [], [], []
    back = directions(head, outputs, labels, others)
    active = [network.act.apply(before) for before in entering]
    matrices, biases = (network.first, *network.later), (network.bias, *network.later_biases)
    for layer, fed in reversed(list(enumerate([inputs, *active]))):
        matrix, bias = matrices[layer], biases[layer] if layer < len(biases) else None
        onwards = back @ matrix
        grams.append((back @ back.T) * (fed @ fed.T + (bias is not None)))
        pulled.append((onwards * fed).sum(1) + (0 if bias is None else back @ bias))
        norms.append(float(matrix.square().sum() + (0 if bias is None else bias.square().sum())))
        if layer:
            back = onwards * network.act.slope(entering[layer - 1], active[layer - 1])
    return grams[::-1], pulled[::-1], norms[::-1]


def _best(gram: Tensor, pulled: Tensor, norm: float, *, signed: bool) -> tuple[float, Tensor]:
    """min over lambda of (norm - 2 lambdaᵀ pulled + lambdaᵀ gram lambda) / norm."""
    values, vectors = torch.linalg.eigh(gram)
    kept = values > 1e-12 * values[-1]
    root = vectors[:, kept] * values[kept].sqrt()  # gram = root rootᵀ
    wanted = (vectors[:, kept].T @ pulled) / values[kept].sqrt()
    if signed:
        multipliers = torch.linalg.lstsq(root.T, wanted[:, None]).solution[:, 0]
    else:
        multipliers = torch.from_numpy(nnls(root.T.cpu().numpy(), wanted.cpu().numpy())[0]).to(gram)
    left = norm - 2 * multipliers @ pulled + multipliers @ gram @ multipliers
    return float(left) / norm, multipliers
