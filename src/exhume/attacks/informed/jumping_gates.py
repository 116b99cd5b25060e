"""A step through training whose gates jump: every gate near its kink is an unknown of its own.

With ReLU the weights are no smooth function of the unknown record. When it moves, gates of *known* records
flip somewhere in training, each flip changes a gradient by a jump, and near the truth these jumps outweigh
the record's own effect: of an MLP on MNIST, at a mean squared error of 5e-5, they are nine tenths of the
residual. A linearisation that leaves them out stops there. But what a flip does to the weights is known (a
push of that gate, carried through the rest of training), and there are many more weights than flips:

    min over dz, c   ||theta - theta(z) - J dz - sum_g push_g c_g||²/s² + ||dz||²/a² + sum_g c_g²/P_g

P_g is how likely gate g flips: by its distance from the kink, measured in how far gates move for a residual
of this size. dz is what is wanted; c takes the jumps out of its way. As z comes closer, fewer gates are in
doubt, and the last steps end in the right cell of all gates, where training is smooth.

Cost: each product is one with J; with c there are more of them. Memory: some vectors of a number for each
entry of each gate in each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from exhume.train.krylov import Solved, least_squares
from exhume.train.unrolled import Path, Pushes, Unknown, Unrolled

_REACH = 3.0  # how far gates may move, over what a probe of the same residual moves them
_DOUBT = 0.01  # deviations below which a gate is certain
_SHARE = 1e-3  # of the residual that need not be explained
_VECTORS = 8  # of all gates, held at once


def gates_fit(unrolled: Unrolled) -> bool:
    """Whether a number for each entry of each gate in each step fits into memory, several times."""
    rows = sum(
        (len(unrolled.fixed) if seen.fixed is None else len(seen.fixed)) + len(seen.unknown)
        for seen in unrolled.steps
    )
    size = unrolled.initial.element_size()
    return 0 < rows * unrolled.activations * size * _VECTORS <= unrolled.memory << 20


@dataclass(frozen=True, eq=False)
class JumpingGates:
    unrolled: Unrolled  # with free gates
    path: Path
    doubts: Pushes  # deviation of each gate's jump, 0 where it is certain

    @staticmethod
    def of(unrolled: Unrolled, guess: Unknown, probe: Unknown, released: Tensor) -> JumpingGates:
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
            if unrolled.mixes and len(
                seen.unknown
            ):  # they come last, and their own gates are no noise
                for gate in blocks[-1]:
                    gate[-len(seen.unknown) :] = 0
        return JumpingGates(unrolled, path, doubts)

    @cached_property
    def _places(self) -> list[Tensor]:
        """Entries in doubt, gate by gate."""
        return [gate.flatten().nonzero()[:, 0] for gate in self._all(self.doubts)]

    @property
    def count(self) -> int:
        return sum(len(places) for places in self._places)

    def step(
        self,
        right: Tensor,
        deviation: float,
        weighed: Callable[[Tensor], Tensor],
        coloured: Callable[[Tensor], Tensor],
        *,
        iterations: int,
    ) -> Solved:
        """right: (p,) theta - theta(z), weighed; deviation: of the unknown records, in their coordinates."""
        guess, count = self.path.guess, self.count
        size = guess.inputs.numel()

        def own(unknown: Tensor) -> Tensor:
            return coloured(deviation * unknown[:size].view_as(guess.inputs))

        def forward(unknown: Tensor) -> Tensor:
            pushes = self._spread(unknown[size:]) if count else None
            along = Unknown(own(unknown), guess.targets)
            return weighed(self.unrolled.forward(self.path, along, pushes))

        def adjoint(cotangent: Tensor) -> Tensor:
            pushes: Pushes = []
            found = self.unrolled.adjoint(self.path, weighed(cotangent), pushes if count else None)
            inputs = deviation * coloured(found.inputs).flatten()
            return torch.cat([inputs, self._gathered(pushes)]) if count else inputs

        damping = (_SHARE * float(right.norm())) ** 2 / len(right)
        solved = least_squares(
            forward, adjoint, right, iterations=iterations, damping=damping, slope=1e-3
        )
        earlier = tuple(own(one) for one in solved.earlier)
        return replace(solved, step=own(solved.step), earlier=earlier)

    def _spread(self, values: Tensor) -> Pushes:
        parts = iter(torch.split(values, [len(places) for places in self._places]))
        places = iter(self._places)
        return [
            [tuple(_put(g, next(places), next(parts)) for g in b) for b in t] for t in self.doubts
        ]

    def _gathered(self, pushes: Pushes) -> Tensor:
        rows = zip(self._all(pushes), self._all(self.doubts), self._places, strict=True)
        return torch.cat([push.flatten()[at] * gate.flatten()[at] for push, gate, at in rows])

    @staticmethod
    def _all(pushes: Pushes) -> list[Tensor]:
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
