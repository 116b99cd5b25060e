"""Where to begin: the record whose pushes explain the release, with its errors left free.

A record acts on training by its gradient at every step, and its gradient is made of the record z and of the
error e_t that the outputs make on it. How large e_t is depends on z and its label steeply: by orders of
magnitude between a record that is hard to learn and one that was learned long ago. Searches from a mean
record fail at this. Written in a few functions of time and left free, e is no obstacle:

    <c_i, theta - theta_0>  ≈  sum_t <a_{i,t}, f_t(z, e_t)> / (n + 1),     e_t = sum_b basis[t, b] e_b

with the answers a of train/influence.py is linear in e, which is solved for (variable projection), and
nearly linear in z. theta_0 is training on n + 1 records of which one has no gradient. No model is
trained. What is left over tells a solution from a valley; the output whose errors are negative is the label.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from exhume.attacks.informed.record_jacobian import record_jacobian
from exhume.models.mlp import MLP
from exhume.train.influence import Answers, pushes_of_error

_RIDGE = 1e-6  # of the mean square of the errors' columns
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-2, 1e-8, 1e3
_TRIAL = 6  # steps after which a start must look right
_PROMISING = 0.5  # of the answers left over that does
_EXPLAINED = 0.25  # and below which no other start is tried; valleys end at .3 to .8


@dataclass(frozen=True, eq=False)
class Freed:
    record: Tensor  # (d,)
    errors: Tensor  # (b·c,) in functions of time
    left: float  # of the answers that it does not explain, relative
    damping: float


@dataclass(frozen=True, eq=False)
class FreeErrors:
    mlp: MLP
    answers: Answers
    path: Tensor  # (steps, p) training in which the record has no gradient
    end: Tensor  # (p,) and its end
    records: int  # of a training with the record
    bounds: tuple[float, float]

    def solve(self, asked: Tensor, starts: Iterable[Tensor], iterations: int) -> Freed:
        """asked: (q,) answers about theta - theta_0; starts: (d,) each, tried until one explains them."""
        wanted, tried = self.records * asked.double(), list[Freed]()
        for start in starts:
            tried.append(self._descend(start, _FIRST_DAMPING, wanted, _TRIAL))
            if tried[-1].left < _PROMISING:
                tried[-1] = self._on(tried[-1], wanted, iterations)
                if tried[-1].left < _EXPLAINED:
                    break
        best = min(tried, key=lambda one: one.left)
        return best if best.left < _EXPLAINED else self._on(best, wanted, iterations)

    def label(self, freed: Freed) -> int:
        """The output whose errors are negative."""
        errors = self.answers.basis.double() @ freed.errors.view(-1, self.mlp.outputs)
        errors = errors - errors.mean(1, keepdim=True)
        return int(errors.sum(0).argmin())

    def _on(self, found: Freed, wanted: Tensor, iterations: int) -> Freed:
        return self._descend(found.record, found.damping, wanted, iterations)

    def _descend(self, z: Tensor, damping: float, wanted: Tensor, iterations: int) -> Freed:
        """Levenberg-Marquardt; what the errors can explain is taken out of every step."""
        columns, errors, missing = self._explain(z, wanted)
        for _ in range(iterations):
            steep = self._by_record(z, errors).double()
            steep = steep - columns @ self._fit(columns, steep)
            normal, right = steep.T @ steep, steep.T @ missing
            scale = float(normal.diagonal().mean())
            eye = torch.eye(len(normal), dtype=torch.float64, device=normal.device)
            moved = False
            while not moved and damping <= _MOST_DAMPING:
                factor = torch.linalg.cholesky(normal + max(damping * scale, 1e-300) * eye)
                step = torch.cholesky_solve(right[:, None], factor)[:, 0]
                tried = (z + step.to(z)).clamp(*self.bounds)
                found = self._explain(tried, wanted)
                moved = bool(found[2].norm() < missing.norm())
                damping *= 0.1 if moved else 10
            if not moved:
                break
            damping = max(_LEAST_DAMPING, damping)
            z, (columns, errors, missing) = tried, found
        return Freed(z, errors, _relative(missing, wanted), damping)

    # What a record and its errors do to the answers

    def _explain(self, z: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What errors do at a record (q, b·c), the errors that explain most, and what they leave (q,)."""
        columns = self._by_errors(z).double()
        errors = self._fit(columns, wanted[:, None])[:, 0]
        return columns, errors, wanted - columns @ errors

    @staticmethod
    def _fit(columns: Tensor, right: Tensor) -> Tensor:
        gram = columns.T @ columns
        eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        ridge = (_RIDGE * gram.diagonal().mean()).clamp_min(1e-300)
        return torch.cholesky_solve(columns.T @ right, torch.linalg.cholesky(gram + ridge * eye))

    @cached_property
    def _layers(self) -> tuple[Tensor, Tensor]:
        layers = self.mlp.layout.split(self.path)
        return layers["fc1.weight"], layers["fc1.bias"]

    def _push(self, weights: Tensor, first: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        return pushes_of_error(self.mlp, weights, first, error)

    def _along(self, z: Tensor) -> Tensor:
        """(b, k, q) the answers' first weights on z."""
        b, k, q, d = self.answers.first.shape
        return (self.answers.first.view(b * k * q, d) @ z).view(b, k, q)

    def _by_errors(self, z: Tensor) -> Tensor:
        answers, basis = self.answers, self.answers.basis
        weight, bias = self._layers
        before = weight @ z + bias
        nothing = z.new_zeros(len(basis), self.mlp.outputs)
        by_first, by_rest = vmap(jacrev(self._push, argnums=2))(self.path, before, nothing)
        spread = torch.einsum("tb,tkc,ta->bkac", basis, by_first, basis)
        found = torch.einsum("bkq,bkac->qac", self._along(z), spread)
        found = found + torch.einsum("tqc,ta->qac", answers.rest @ by_rest, basis)
        found = found - found.mean(2, keepdim=True)  # the errors of a softmax add up to 0
        return found.flatten(1)

    def _by_record(self, z: Tensor, errors: Tensor) -> Tensor:
        """(q, d) with the errors held."""
        basis = self.answers.basis
        given = basis @ errors.view(basis.shape[1], -1).to(basis)
        given = (given - given.mean(1, keepdim=True))[:, None]
        path = self.path[:, None]
        return record_jacobian(self.mlp, self.answers, path, z[None], pushes_of_error, given)[0]


def _relative(missing: Tensor, wanted: Tensor) -> float:
    return float(missing.norm() / wanted.norm().clamp_min(1e-300))
