"""Training as a differentiable map from unknown records to weights: forward mode and adjoint, any network.

    theta_{t+1}, … = rule(theta_t, …, g_t),    g_t = grad_theta L_t(theta_t; z),   L_t the mean loss of step t

The Hessian of L_t in (theta, z) is symmetric, so that both products with J = d theta_T / d z are
backward passes through the gradient of the same step:

    forward   dg_t = grad_theta [ <grad_theta L_t, d theta> + <grad_z L_t, dz> ]
    adjoint   (l_theta, l_z) += grad_{theta, z} <grad_theta L_t, a>,      a the cotangent of g_t

Each costs one to two trainings, whatever the network, the optimiser, and the number of unknown records.

Memory: the rule's kept rows (heavy ball 1, Adam 4) of p numbers for every step, if they fit into a
quarter of `memory`; otherwise those at every sqrt(T)-th step and of one stretch between two of them,
which is trained again when it is needed (one training more a product). The graphs of as many steps as
fit into the rest are kept for all products, those of the others are made again for each. Besides, the
graph of one block of records.

From a recipe to unrolled training, or the reason why it cannot be differentiated.

ReLU gates whose jump is spread out in second derivatives only.

A gate jumps from 0 to 1, so automatic differentiation says that it never moves. But among a thousand
records some are always near their kink: when the weights move a little, a share of the gates in
proportion flips, and on average

    E[ d gate ] = density(0) · dx

Counting every record near its kink by a kernel of some width gives this average. Values and first
derivatives are those of the network itself: training is unchanged, only its linearisation sees flips
coming. The width should be about as far as pre-activations may still move.

Or gates that are free: `free_gates` adds to every one a number of its own, zero as long as nobody says
otherwise, of which the value of the network does not depend but its gradient does,

    backward(slope) = slope · (gate + push)

so that derivatives with respect to the pushes say what gates that jump would do to training. Both are written
with x - x.detach(), which is zero and has a derivative.

Replaced are the modules `nn.ReLU` and `nn.LeakyReLU` and ours of that kind; a call of `F.relu` within a
forward stays as it is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exhume.core.contract import (
    Architecture,
    Layout,
    NotApplicable,
    Progress,
    Recipe,
    Records,
    silent,
)
from exhume.models.activations import Elementwise
from exhume.models.own import OwnArchitecture, not_per_record
from exhume.models.own_texts import LanguageModel
from exhume.train.functional import activations, mixes_batches, without_memory
from exhume.train.local import batch_loss
from exhume.train.objective import CROSS_ENTROPY
from exhume.train.optimisers import Rule
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch, MiniBatch

Pushes = list[list[tuple[Tensor, ...]]]
"""A number for each entry of each gate, by step, block of records and gate."""
_ONCE_MORE = "going through a training"
_BLOCK = 1024  # records whose activations are held at once
_COPIES = 6  # of a record's activations in the graph of a gradient; on the safe side
_LEAKS = {"relu": 0.0, "leaky-relu": 0.01}  # of our own activations


@dataclass(frozen=True, eq=False)
class Unknown:
    """A guess of the unknown records."""

    inputs: Tensor  # (e, *shape)
    labels: Tensor  # (e,)


@dataclass(frozen=True, eq=False)
class StepRows:
    """What one step sees: rows of the known records (None: all), and of the unknown ones."""

    fixed: Tensor | None
    unknown: Tensor


@dataclass(frozen=True, eq=False)
class _Slope:
    """The gradient of one block's loss, ready to be differentiated once more."""

    weights: Tensor  # (p,) leaf
    unknown: tuple[Tensor, ...]  # leaf: the inputs; empty: none here
    by_weights: Tensor
    by_unknown: tuple[Tensor, ...]
    pushes: tuple[Tensor, ...] = ()  # leaves of free gates
    entered: tuple[Tensor, ...] = ()  # and what entered them

    def pushed(self, by: tuple[Tensor, ...]) -> Tensor:
        """(p,) what pushes of the gates do to the gradient: the transpose of a transpose."""
        along = torch.zeros_like(self.by_weights).requires_grad_()
        back = torch.autograd.grad(
            [self.by_weights], self.pushes, [along], create_graph=True, materialize_grads=True
        )
        return _pulled(list(back), (along,), list(by))[0]


@dataclass(frozen=True, eq=False)
class Path:
    """A training on one guess: its end, and what its derivative needs, at some of the steps or at all."""

    guess: Unknown
    end: Tensor  # (p,)
    states: list[Tensor]  # (k, p) before every `every`-th step
    kept: list[Tensor]  # (r, p) of every step; empty where they are trained again
    every: int
    slopes: dict[int, list[_Slope]] = field(default_factory=dict)  # by step, where they are kept


@dataclass(frozen=True, eq=False)
class Unrolled:
    """One known training. The weights are flat (p,), in the dtype of `initial`."""

    module: nn.Module
    layout: Layout
    rule: Rule
    steps: tuple[StepRows, ...]
    initial: Tensor
    fixed: Records
    rates: list[float]
    mixes: bool = False  # batch norm: a step's records must be seen together
    activations: int = 0  # numbers a record leaves behind in a forward pass; 0: keep no graph
    memory: int = 1024  # MiB for the states and graphs of a training
    progress: Progress = (
        silent  # is told of every way through the steps, so that it can end the work
    )

    @cached_property
    def live(self) -> Tensor:
        """(p,) 1 where training follows a gradient, 0 for running statistics."""
        known = dict(self.module.named_parameters())
        sizes = zip(self.layout.names, self.layout.shapes, strict=True)
        ones = {n: torch.full(shape, 1.0 if n in known else 0.0) for n, shape in sizes}
        return self.layout.join(ones).to(self.initial)

    def smoothed(self, width: float) -> tuple[Unrolled, int]:
        """This training with gates that are smooth in second derivatives, and how many there are."""
        module, gates = smooth_gates(self.module, width)
        return (replace(self, module=module) if gates else self), gates

    def freed(self) -> tuple[Unrolled, int]:
        """This training with gates that can be pushed, and how many there are."""
        module, gates = free_gates(self.module)
        return (replace(self, module=module) if gates else self), gates

    # Training

    def train(self, guess: Unknown) -> Path:
        self.progress(_ONCE_MORE, 0, 1)
        state = self._start
        rows = self.rule.kept(state, self.initial)
        whole = len(self.steps) * rows.numel() * rows.element_size() <= (self.memory << 20) // 4
        every = max(1, math.isqrt(max(0, len(self.steps) - 1)) + 1)
        path = Path(guess, self.initial, [], [], every)
        most = max((self._count(seen) for seen in self.steps), default=0)
        each = most * self.activations * _COPIES * self.initial.element_size()
        room = (self.memory << 20) * 3 // 4
        for t in range(len(self.steps)):
            if t % every == 0 and not whole:
                path.states.append(state)
            slopes = self._slopes(state[0], self.steps[t], guess)
            if each and len(path.slopes) < room // each:
                path.slopes[t] = slopes
            state, row = self._moved(state, t, slopes)
            if whole:
                path.kept.append(row)
        return Path(guess, state[0], path.states, path.kept, every, path.slopes)

    @property
    def _start(self) -> Tensor:
        """(k, p) the state before the first step."""
        return torch.stack(self.rule.start(self.initial))

    def _moved(self, state: Tensor, t: int, slopes: list[_Slope]) -> tuple[Tensor, Tensor]:
        gradient = torch.stack([slope.by_weights.detach() for slope in slopes]).sum(0)
        row = self.rule.kept(state, gradient)
        return torch.stack(self.rule.next(state, gradient, t, self.rates[t])), row

    def _stretches(self, path: Path, *, back: bool = False) -> Iterator[tuple[int, Tensor]]:
        """(t, kept) for every step, forwards or backwards."""
        if path.kept:
            order = range(len(path.kept) - 1, -1, -1) if back else range(len(path.kept))
            yield from ((t, path.kept[t]) for t in order)
            return
        starts = list(enumerate(path.states))
        for index, begun in reversed(starts) if back else starts:
            first, rows, state = index * path.every, [], begun
            for t in range(first, min(first + path.every, len(self.steps))):
                slopes = self._slopes(state[0], self.steps[t], path.guess)
                state, row = self._moved(state, t, slopes)
                rows.append((t, row))
            yield from reversed(rows) if back else rows

    # Derivatives

    def forward(self, path: Path, along: Tensor, pushes: Pushes | None = None) -> Tensor:
        """(p,) J times a change (e, *shape) of the unknown records, and of free gates in each step."""
        self.progress(_ONCE_MORE, 0, 1)
        change = torch.zeros_like(self._start)
        for t, kept in self._stretches(path):
            bent = torch.zeros_like(self.initial)
            for block, slope in enumerate(self._at(path, t, kept)):
                outputs, cotangents = [slope.by_weights, *slope.by_unknown], [change[0]]
                if slope.unknown:
                    cotangents.append(along[self.steps[t].unknown])
                bent += _pulled(outputs, (slope.weights,), cotangents)[0]
                if pushes is not None:
                    bent += slope.pushed(pushes[t][block])
            change = self.rule.push(kept, change, bent, t, self.rates[t])
        return change[0]

    def adjoint(self, path: Path, cotangent: Tensor, pushes: Pushes | None = None) -> Tensor:
        """(e, *shape) the transpose of J times (p,). pushes: an empty list, to be filled for every step."""
        self.progress(_ONCE_MORE, 0, 1)
        towards = torch.zeros_like(self._start)
        towards[0] = cotangent
        by_inputs = torch.zeros_like(path.guess.inputs)
        for t, kept in self._stretches(path, back=True):
            towards, gradient = self.rule.pull(kept, towards, t, self.rates[t])
            here: list[tuple[Tensor, ...]] = []
            for slope in self._at(path, t, kept):
                gates = () if pushes is None else slope.pushes
                leaves = (slope.weights, *gates, *slope.unknown)
                bent, *more = _pulled([slope.by_weights], leaves, [gradient])
                towards[0] += bent
                here.append(tuple(more[: len(gates)]))
                if slope.unknown:
                    by_inputs[self.steps[t].unknown] += more[-1]
            if pushes is not None:
                pushes.insert(0, here)
        return by_inputs

    def entered(self, path: Path) -> Pushes:
        """What entered the free gates of every step, block by block."""
        return [
            [slope.entered for slope in self._at(path, t, kept)]
            for t, kept in self._stretches(path)
        ]

    def _at(self, path: Path, t: int, kept: Tensor) -> list[_Slope]:
        slopes = path.slopes.get(t)
        return self._slopes(kept[0], self.steps[t], path.guess) if slopes is None else slopes

    # One step of the network

    @torch.enable_grad()
    def _slopes(self, at: Tensor, seen: StepRows, guess: Unknown) -> list[_Slope]:
        """Gradients of the step's mean loss, block by block."""
        weights, count, blocks = at.detach().requires_grad_(), self._count(seen), []
        named = self._named(weights)
        for inputs, known, more in self._blocks(seen):
            leaves, labels = tuple[Tensor, ...](), known
            if more:
                leaves = (guess.inputs[seen.unknown].detach().requires_grad_(),)
                labels = torch.cat([known, guess.labels[seen.unknown]])
            outputs, pushes, entered = self._outputs(named, inputs, leaves)
            loss = batch_loss(outputs, labels, "sum") / count
            slopes = torch.autograd.grad(loss, (weights, *leaves), create_graph=True)
            blocks.append(_Slope(weights, leaves, slopes[0], slopes[1:], pushes, entered))
        return blocks

    def _outputs(
        self, named: dict[str, Tensor], known: Tensor, unknown: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Outputs, and free gates of the known records with what entered them.

        Known records are seen apart from unknown ones, unless records of a step depend on each other:
        nothing is differentiated by them.
        """
        first = torch.cat([known, *unknown]) if self.mixes else known
        outputs = functional_call(self.module, named, (first,))
        gates = [m for m in self.module.modules() if isinstance(m, FreeGate)]
        pushes = tuple(gate.push for gate in gates if gate.push is not None)
        entered = tuple(gate.entered for gate in gates if gate.entered is not None)
        if unknown and not self.mixes:
            outputs = torch.cat([outputs, functional_call(self.module, named, unknown)])
        return outputs, pushes, entered

    def _named(self, weights: Tensor) -> dict[str, Tensor]:
        known = dict(self.module.named_parameters())
        return {n: t for n, t in self.layout.split(weights).items() if n in known}

    def _blocks(self, seen: StepRows) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """Blocks of a step's known records; the unknown ones come with the last."""
        fixed = self.fixed if seen.fixed is None else self.fixed[seen.fixed]
        size = len(fixed) if self.mixes else _BLOCK
        starts = range(0, max(1, len(fixed)), max(1, size))
        for start in starts:
            cut = slice(start, start + size)
            last = start == starts[-1] and len(seen.unknown) > 0
            yield fixed.inputs[cut], fixed.labels[cut], last

    def _count(self, seen: StepRows) -> int:
        known = len(self.fixed) if seen.fixed is None else len(seen.fixed)
        return known + len(seen.unknown)


def _pulled(
    outputs: list[Tensor], leaves: tuple[Tensor, ...], cotangents: list[Tensor]
) -> tuple[Tensor, ...]:
    return torch.autograd.grad(
        outputs, leaves, cotangents, retain_graph=True, materialize_grads=True
    )


def check_differentiable(recipe: object) -> None:
    """Raises `NotApplicable` with the reason why a training cannot be differentiated."""
    if isinstance(recipe, OwnTraining):
        raise NotApplicable(
            f"{recipe.spec} is a function of your own: it can be called, not differentiated; say how it "
            "trains with optimiser, batch, rate and steps in place of train",
            ever=True,
        )
    if not isinstance(recipe, FullBatch | MiniBatch):
        raise NotApplicable(f"no way to differentiate through {recipe} is known", ever=True)
    if recipe.objective != CROSS_ENTROPY:
        raise NotApplicable(
            f"differentiating is written for plain cross-entropy, not {recipe}", ever=True
        )
    if isinstance(recipe, FullBatch) and (recipe.privacy.clips or recipe.privacy.noise):
        raise NotApplicable("private training adds noise the adversary cannot redo", ever=False)
    _differentiable(recipe.architecture)


def unroll(
    recipe: Recipe, initial: Tensor, fixed: Records, unknown: int = 1, *, memory: int = 1024
) -> Unrolled:
    """Training on the fixed records and so many unknown ones, step by step; raises `NotApplicable`."""
    check_differentiable(recipe)
    assert isinstance(recipe, FullBatch | MiniBatch)  # nothing else passes
    module, mixes = _differentiable(recipe.architecture)
    count, every = recipe.descent.steps, torch.arange(unknown)
    if isinstance(recipe, FullBatch):
        steps = (StepRows(None, every),) * count
    else:
        batches = islice(recipe.order.batches(len(fixed), unknown), count)
        steps = tuple(StepRows(batch.fixed, batch.extra) for batch in batches)
    return Unrolled(
        module.to(initial.device),
        recipe.architecture.layout,
        recipe.descent.rule,
        steps,
        initial,
        fixed,
        recipe.descent.rates,
        mixes,
        activations(recipe.architecture),
        memory,
    )


def _differentiable(architecture: Architecture) -> tuple[torch.nn.Module, bool]:
    """The module as it trains, and whether its records must be seen together."""
    if isinstance(architecture, LanguageModel):
        raise NotApplicable(
            "tokens have no derivative: updates of texts have attacks of their own", ever=True
        )
    if mixes_batches(architecture):
        return without_memory(architecture.trainable()), True
    module = (
        architecture.trainable()
        if isinstance(architecture, OwnArchitecture)
        else architecture.build()
    )
    why = not_per_record(module, architecture.input_shape)
    if why:
        raise NotApplicable(f"training cannot be differentiated: {why}", ever=True)
    return module, False


def smooth_gates(module: nn.Module, width: float) -> tuple[nn.Module, int]:
    """A copy with its gates replaced, and their number. width: in deviations of what enters a gate."""
    return _replaced(module, lambda leak: SmoothGate(leak, width))


def free_gates(module: nn.Module) -> tuple[nn.Module, int]:
    """A copy with gates that can be pushed, and their number."""
    return _replaced(module, FreeGate)


def _replaced(module: nn.Module, make: Callable[[float], nn.Module]) -> tuple[nn.Module, int]:
    holder = nn.Sequential(copy.deepcopy(module))
    count = 0
    for parent in list(holder.modules()):
        for name, child in list(parent.named_children()):
            leak = _leak(child)
            if leak is not None:
                setattr(parent, name, make(leak))
                count += 1
    return holder[0], count


def _leak(module: nn.Module) -> float | None:
    """Slope below the kink; None: no gate."""
    if isinstance(module, nn.ReLU):
        return 0.0
    if isinstance(module, nn.LeakyReLU):
        return float(module.negative_slope)
    return _LEAKS.get(module.activation.name) if isinstance(module, Elementwise) else None


class SmoothGate(nn.Module):
    """A gate with its value and slope, and a kernel around its kink for a curvature."""

    def __init__(self, leak: float, width: float) -> None:
        super().__init__()
        self.leak, self.width = leak, width

    def forward(self, x: Tensor) -> Tensor:
        at = x.detach()
        wide = (self.width * at.std()).clamp_min(1e-12)
        kernel = torch.exp(-0.5 * (at / wide).square()) / (wide * math.sqrt(2 * math.pi))
        return _gate(x, self.leak) + (1 - self.leak) / 2 * kernel * (x - at).square()


class FreeGate(nn.Module):
    """Keeps what entered it last, and the pushes that it was given: zeros, to be differentiated by."""

    def __init__(self, leak: float) -> None:
        super().__init__()
        self.leak = leak
        self.entered: Tensor | None = None
        self.push: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.entered, self.push = x.detach(), torch.zeros_like(x).requires_grad_()
        return _gate(x, self.leak) + self.push * (x - self.entered)


def _gate(x: Tensor, leak: float) -> Tensor:
    return torch.where(x > 0, x, leak * x)
