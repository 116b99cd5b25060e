"""The linearisation of any known training, matrix-free: conjugate gradients, with gates as unknowns.

J is never formed: products with it and with its transpose go through the steps of training
(train/unrolled.py), so any module that `torch.func` takes will do, with momentum, weight decay, mini-batches
of known order, Adam, batch norm, and several unknown records at once.

With ReLU the weights are no smooth function of the unknown record. When it moves, gates of *known* records
flip somewhere in training, each flip changes a gradient by a jump, and near the truth these jumps outweigh
the record's own effect: of an MLP on MNIST, at a mean squared error of 5e-5, they are nine tenths of the
residual. A linearisation that leaves them out stops there. But what a flip does to the weights is known (a
push of that gate, carried through the rest of training), and there are many more weights than flips:

    min over dz, c   ||theta - theta(z) - J dz - sum_g push_g c_g||²/s² + ||dz||²/a² + sum_g c_g²/P_g

P_g is how likely gate g flips: by its distance from the kink, measured in how far gates move for a residual
of this size. dz is what is wanted; c takes the jumps out of its way. As z comes closer, fewer gates are in
doubt, and the last steps end in the right cell of all gates, where training is smooth.

Cost: some 3 trainings a product; with c there are more of them. Memory: that of `Unrolled`; with c, some
vectors of a number for each entry of each gate in each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from exhume.attacks.informed.starts import Guess, Spent, Starts, Target, Whitening
from exhume.train.least_squares import Solved, least_squares
from exhume.train.unrolled import Path, Pushes, Unknown, Unrolled

_LENGTHS = (1.0, 0.4, 0.15)  # of a step
_LEFT = 0.03  # of the linear residual: where the solver may stop
_NEAR = 0.4  # relative residual from which jumping gates are what is left
_PROBE = 0.1  # of the way to the label's mean: a step that shows how gates move
_ERROR = 0.3  # of the records' own deviation, times the residual: how far a guess is off
_WIDTHS = (0.3, 3.0, 0.03)  # of smoothed gates, in standard deviations, for a guess of residual 1
_REACH = 3.0  # how far gates may move, over what a probe of the same residual moves them
_DOUBT = 0.01  # deviations below which a gate is certain
_SHARE = 1e-3  # of the residual that need not be explained
_VECTORS = 8  # of all gates, held at once


@dataclass(frozen=True, eq=False)
class MatrixFree:
    unrolled: Unrolled
    starts: Starts
    white: Whitening | None = None  # coordinates of images behind convolutions
    products: int = 30  # of conjugate gradients in a step
    gate_products: int = 150  # in those that have gates among their unknowns
    trainings: int = 2000  # a release may cost
    exact: float = 5e-5  # residual below which nothing is left to explain in single precision

    def steps(
        self, target: Target, guess: Guess, residual: float, spent: Spent
    ) -> Iterator[Iterator[Guess]]:
        """Steps from a guess, several where gates jump; of each, guesses in the order to be tried."""
        for solved in self._solved(target, guess, residual, spent):
            yield self._along(guess, solved)

    def _along(self, guess: Guess, solved: Solved) -> Iterator[Guess]:
        """The whole step and parts of it, then those of what the solver had before."""
        for step in (solved.step, *solved.earlier):
            for length in _LENGTHS:
                inputs = (guess.inputs + length * step).clamp(*self.starts.bounds)
                yield replace(guess, inputs=inputs)

    def _solved(
        self, target: Target, guess: Guess, residual: float, spent: Spent
    ) -> Iterator[Solved]:
        """(e, *shape) each, on the training linearised at a guess."""
        free, gates = self.unrolled.freed()
        jumping = gates > 0 and _gates_fit(free)
        if jumping and residual < _NEAR:
            yield self._among_gates(free, target, guess, residual, spent)
        for factor in _WIDTHS:
            unrolled, _ = self.unrolled.smoothed(factor * min(1.0, residual))
            path = unrolled.train(Unknown(guess.inputs, guess.labels))
            solved = self._solve(GatesInDoubt(unrolled, path, []), target)
            spent.models += 1 + 3 * solved.iterations
            yield solved
            if not gates:
                return
        if jumping and residual >= _NEAR:
            yield self._among_gates(free, target, guess, residual, spent)

    def _among_gates(
        self, free: Unrolled, target: Target, guess: Guess, residual: float, spent: Spent
    ) -> Solved:
        """With every gate near its kink as an unknown of its own."""
        centre = self.starts.means[guess.labels]
        probe = guess.inputs + _PROBE * (centre - guess.inputs)
        here, there = (Unknown(inputs, guess.labels) for inputs in (guess.inputs, probe))
        gates = GatesInDoubt.of(free, here, there, target.parameters)
        deviation = _ERROR * residual
        if self.white is None:
            deviation *= float(free.fixed.inputs.std())
        solved = self._solve(gates, target, deviation)
        spent.models += 2 + 4 * solved.iterations
        return solved

    def _solve(self, gates: GatesInDoubt, target: Target, deviation: float = 1.0) -> Solved:
        """By conjugate gradients. deviation: of the unknown records, in their coordinates, among gates."""
        unrolled, path, count = gates.unrolled, gates.path, gates.count
        guess, size = path.guess, path.guess.inputs.numel()
        right = self.starts.weighed(target.parameters - path.end)

        def records(unknown: Tensor) -> Tensor:
            return self._coloured(deviation * unknown[:size].view_as(guess.inputs))

        def forward(unknown: Tensor) -> Tensor:
            pushes = gates.spread(unknown[size:]) if count else None
            return self.starts.weighed(unrolled.forward(path, records(unknown), pushes))

        def adjoint(cotangent: Tensor) -> Tensor:
            pushes: Pushes = []
            weighed = self.starts.weighed(cotangent)
            pulled = unrolled.adjoint(path, weighed, pushes if count else None)
            inputs = deviation * self._coloured(pulled).flatten()
            return torch.cat([inputs, gates.gathered(pushes)]) if count else inputs

        if gates.doubts:
            iterations, left, slope = self.gate_products, 0.0, 1e-3
            damping = (_SHARE * float(right.norm())) ** 2 / len(right)
        else:
            iterations, left, slope, damping = self.products, _LEFT, 1e-4, 0.0
        solved = least_squares(
            forward, adjoint, right, iterations=iterations, damping=damping, left=left, slope=slope
        )
        earlier = tuple(records(step) for step in solved.earlier)
        return replace(solved, step=records(solved.step), earlier=earlier)

    def _coloured(self, white: Tensor) -> Tensor:
        return white if self.white is None else self.white.apply(white)


def _gates_fit(unrolled: Unrolled) -> bool:
    """Whether a number for each entry of each gate in each step fits into memory, several times."""
    rows = sum(
        (len(unrolled.fixed) if seen.fixed is None else len(seen.fixed)) + len(seen.unknown)
        for seen in unrolled.steps
    )
    size = unrolled.initial.element_size()
    return 0 < rows * unrolled.activations * size * _VECTORS <= unrolled.memory << 20


@dataclass(frozen=True, eq=False)
class GatesInDoubt:
    """A training, and which of its ReLUs near zero may be on here and off in the victim's run."""

    unrolled: Unrolled  # with free gates, if any is in doubt
    path: Path
    doubts: (
        Pushes  # deviation of each gate's jump, 0 where it is certain; empty: gates are no unknowns
    )

    @staticmethod
    def of(unrolled: Unrolled, guess: Unknown, probe: Unknown, released: Tensor) -> GatesInDoubt:
        """probe: another guess, which says how far gates move when the weights do."""
        path, other = unrolled.train(guess), unrolled.train(probe)
        apart = (other.end - path.end).norm().clamp_min(1e-30)
        reach = _REACH * float((released - path.end).norm() / apart)
        here, there = unrolled.entered(path), unrolled.entered(other)
        doubts = [
            [
                tuple(_doubt(a, b, reach) for a, b in zip(*gates, strict=True))
                for gates in zip(*blocks, strict=True)
            ]
            for blocks in zip(here, there, strict=True)
        ]
        for seen, blocks in zip(unrolled.steps, doubts, strict=True):
            if unrolled.mixes and len(seen.unknown):  # they come last; their own gates are no noise
                for gate in blocks[-1]:
                    gate[-len(seen.unknown) :] = 0
        return GatesInDoubt(unrolled, path, doubts)

    @cached_property
    def _places(self) -> list[Tensor]:
        """Entries in doubt, gate by gate."""
        return [gate.flatten().nonzero()[:, 0] for gate in _all_gates(self.doubts)]

    @property
    def count(self) -> int:
        return sum(len(places) for places in self._places)

    def spread(self, values: Tensor) -> Pushes:
        """(g,) jumps in units of their deviations to pushes of all gates."""
        parts = iter(torch.split(values, [len(places) for places in self._places]))
        places = iter(self._places)
        return [
            [tuple(_put(g, next(places), next(parts)) for g in b) for b in t] for t in self.doubts
        ]

    def gathered(self, pushes: Pushes) -> Tensor:
        """The transpose of `spread`."""
        rows = zip(_all_gates(pushes), _all_gates(self.doubts), self._places, strict=True)
        return torch.cat([push.flatten()[at] * gate.flatten()[at] for push, gate, at in rows])


def _all_gates(pushes: Pushes) -> list[Tensor]:
    return [gate for blocks in pushes for gates in blocks for gate in gates]


def _doubt(entered: Tensor, other: Tensor, reach: float) -> Tensor:
    """Square roots of how likely the gates of one step flip; units (n, k) or channels (n, c, ...)."""
    over = [i for i in range(entered.ndim) if i != 1]
    moves = reach * (other - entered).square().mean(over, keepdim=True).sqrt()
    likely = torch.special.ndtr(-entered.abs() / moves.clamp_min(1e-30))
    return torch.where(likely.sqrt() > _DOUBT, likely.sqrt(), 0.0)


def _put(gate: Tensor, places: Tensor, values: Tensor) -> Tensor:
    flat = torch.zeros_like(gate).flatten()
    flat[places] = gate.flatten()[places] * values
    return flat.view_as(gate)
