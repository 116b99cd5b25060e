"""Which neurons each record opens: a regression with two answers for every neuron.

    dL/dW = sum_i delta_i x_i^T,     delta_ij = g_ij w_j · r_i,     g_ij = 1 (open) or the leak (shut)

w_j is the known column of the next layer, r_i what comes back to its output. dL/dW = L V with L (m, b), so
delta_i = L q_i for some q_i, and every neuron obeys one of two linear equations in (q, r):

    L_j · q = w_j · r   (open)      or      L_j · q = leak w_j · r   (shut)

b + k unknowns, m equations, and nobody says which. Reweighted least squares from many random starts: each
neuron leans to the equation that it nearly fulfils, more and more firmly. A wrong answer explains few more
neurons than it has unknowns, a right one all of them: the truth is not needed to tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.contract import Key

__all__ = ["EXPLAINED", "Found", "Neurons", "likely_records", "records_behind"]

EXPLAINED = 0.95  # share of the neurons that an answer must explain
_PROMISING = 0.6  # share after the rough search that is worth an exact one
_STARTS = 256  # at once
_STEPS, _FALLS = 90, 0.93  # of the search; how fast a neuron makes up its mind
_FIRMER = 4  # exact rounds
_ROUGH, _EXACT = 0.05, 2e-3  # of the size of delta: an equation that is fulfilled
_SAME = 0.999  # cosine of two answers that are one
_MARGIN = 1.25  # equations for each unknown, at least
_PATIENCE = 20  # rounds that find nothing new
_WORK = 6e12  # operations of a search: some two minutes on a core
_FEWEST = 4  # rounds, whatever they cost
_FLOOR = 0.1  # of the size of delta: how firmly a neuron decides where deltas are averages
_NEARLY = 0.3  # of the size of delta: an equation of averages that is fulfilled
_APART = 0.9  # cosine of two answers of averages that are one


@dataclass(frozen=True, eq=False)
class Neurons:
    """The equations: one row a neuron that has a gradient, of unit length in L."""

    left: Tensor  # (m, b) of L
    outer: Tensor  # (m, k) of w, on a basis of what can come back
    before: Tensor  # (m, b) what reaches the gates, on the basis V
    leak: float  # slope of a shut gate

    @staticmethod
    def of(left: Tensor, outer: Tensor, before: Tensor, leak: float) -> Neurons:
        size = left.norm(dim=1)
        live = size > 1e-6 * size.max()
        scale = size[live, None]
        return Neurons(left[live] / scale, outer[live] / scale, before[live], leak)

    @property
    def enough(self) -> bool:
        """There are so many equations that a wrong answer stands out."""
        return len(self.left) >= _MARGIN * (self.left.shape[1] + self.outer.shape[1])

    @property
    def affordable(self) -> int:
        """Rounds that fit into the work of a search."""
        unknowns = self.left.shape[1] + self.outer.shape[1]
        return max(_FEWEST, int(_WORK / (2 * _STEPS * _STARTS * len(self.left) * unknowns**2)))


@dataclass(frozen=True, eq=False)
class Found:
    duals: Tensor  # (n, b) the q_i, of unit length, up to sign
    returned: Tensor  # (n, k) the r_i on the same scale
    explained: Tensor  # (n,) share of the neurons

    def __len__(self) -> int:
        return len(self.duals)


def records_behind(neurons: Neurons, key: Key, rounds: int) -> Found:
    """All b records' answers, or those that came up in so many rounds of starts."""
    b, k = neurons.left.shape[1], neurons.outer.shape[1]
    found = Found(neurons.left.new_zeros(0, b), neurons.left.new_zeros(0, k), torch.zeros(0))
    generator = key.fold("gates").generator()
    idle = 0
    for _ in range(min(rounds, neurons.affordable)):
        if len(found) == b or idle == _PATIENCE:
            break
        before = len(found)
        starts = torch.randn(_STARTS, b, generator=generator, dtype=torch.float64)
        suited = _by_gates(neurons, found, starts[1::2])
        found = _joined(found, _exact(neurons, *_promising(neurons, *suited)))
        starts = torch.cat([starts[::2], suited[0]])
        found = _joined(found, _exact(neurons, *_rough(neurons, starts)))
        idle = 0 if len(found) > before else idle + 1
    return found


def likely_records(neurons: Neurons, key: Key, rounds: int) -> Found:
    """The b answers that explain most, where no equation holds exactly: deltas are averages over steps."""
    generator, b = key.fold("likely").generator(), neurons.left.shape[1]
    answers = [
        _descended(
            neurons, torch.randn(_STARTS, b, generator=generator, dtype=torch.float64), _FLOOR
        )
        for _ in range(min(rounds, neurons.affordable))
    ]
    q, r = (torch.cat(parts) for parts in zip(*answers, strict=True))
    share = _explained(neurons, q, r, _NEARLY)
    picked: list[int] = []
    for place in share.argsort(descending=True).tolist():
        if len(picked) == b:
            break
        if not picked or float((q[picked] @ q[place]).abs().max()) <= _APART:
            picked.append(place)
    return Found(q[picked], r[picked], share[picked])


def _by_gates(neurons: Neurons, found: Found, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """(s, b), (s, k) the answers that best suit the gates of drawn records.

    A missing record is V^T c with c orthogonal to every q that was found: the fewer are missing, the better
    the draw.
    """
    if len(found):
        basis = torch.linalg.qr(found.duals.T)[0]
        drawn = drawn - (drawn @ basis) @ basis.T
    opened = drawn @ neurons.before.T > 0
    return _solutions(neurons, opened)


def _solutions(neurons: Neurons, opened: Tensor) -> tuple[Tensor, Tensor]:
    """(s, b), (s, k): what fulfils all equations best, where the sides (s, m) are given."""
    left, outer, b = neurons.left, neurons.outer, neurons.left.shape[1]
    slope = torch.where(opened, 1.0, neurons.leak)
    count = len(opened)
    rows = torch.cat(
        [left.expand(count, -1, -1), -slope[:, :, None] * outer.expand(count, -1, -1)], 2
    )
    least = torch.linalg.eigh(rows.transpose(1, 2) @ rows)[1][:, :, 0]
    size = least[:, :b].norm(dim=1, keepdim=True).clamp_min(1e-30)
    return least[:, :b] / size, least[:, b:] / size


def _rough(neurons: Neurons, starts: Tensor) -> tuple[Tensor, Tensor]:
    """(s, b) and (s, k) answers; those that explain little are left out."""
    return _promising(neurons, *_descended(neurons, starts))


def _descended(neurons: Neurons, starts: Tensor, floor: float = 0.0) -> tuple[Tensor, Tensor]:
    """(s, b) and (s, k) answers in single precision. floor: of the size of delta, where firmness ends."""
    left, outer = neurons.left.float(), neurons.outer.float()
    squares = [_products(one, two) for one, two in ((left, left), (left, outer), (outer, outer))]
    q = torch.nn.functional.normalize(starts.float(), dim=1)
    along = q @ left.T
    level = along.abs().median(dim=1, keepdim=True).values
    opened = (along.abs() > level).float()
    r = _solved(_sums(opened, squares[2]), (opened * along) @ outer)
    for _ in range(_STEPS):
        back = r @ outer.T
        shut = _weights(along - neurons.leak * back, level)
        opened = _weights(along - back, level)
        both = shut + opened
        shut, opened = shut.square() / both, opened.square() / both
        inside = _sums(shut + opened, squares[0])
        across = _sums(opened + neurons.leak * shut, squares[1])
        gain = _solved(_sums(opened + neurons.leak**2 * shut, squares[2]), across.transpose(1, 2))
        q = _smallest(inside - across @ gain, q)
        r = (gain @ q[:, :, None])[:, :, 0]
        along = q @ left.T
        level = torch.maximum(level * _FALLS, floor * along.square().mean(1, keepdim=True).sqrt())
    return q.double(), r.double()


def _promising(neurons: Neurons, q: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Those that explain enough to be worth an exact solution."""
    kept = _explained(neurons, q, r, _ROUGH) >= _PROMISING
    return q[kept], r[kept]


def _exact(neurons: Neurons, q: Tensor, r: Tensor) -> Found:
    """Each neuron on the side that it is nearer to, and all equations solved at once."""
    left, outer, leak = neurons.left, neurons.outer, neurons.leak
    for _ in range(_FIRMER):
        if not len(q):
            break
        along, back = q @ left.T, r @ outer.T
        opened = (along - back).abs() < (along - leak * back).abs()
        q, r = _solutions(neurons, opened)
    share = _explained(neurons, q, r, _EXACT)
    kept = share >= EXPLAINED
    return Found(q[kept], r[kept], share[kept])


def _joined(known: Found, more: Found) -> Found:
    """Different answers, each once, those that explain most first."""
    rows, returned, shares = list(known.duals), list(known.returned), known.explained.tolist()
    for place in more.explained.argsort(descending=True).tolist():
        q = more.duals[place]
        if rows and float((torch.stack(rows) @ q).abs().max()) > _SAME:
            continue
        rows.append(q)
        returned.append(more.returned[place])
        shares.append(float(more.explained[place]))
    if not rows:
        return known
    return Found(torch.stack(rows), torch.stack(returned), torch.tensor(shares))


def _explained(neurons: Neurons, q: Tensor, r: Tensor, tolerance: float) -> Tensor:
    """(s,) share of the neurons that obey one of their equations."""
    along, back = q @ neurons.left.T, r @ neurons.outer.T
    gap = torch.minimum((along - back).abs(), (along - neurons.leak * back).abs())
    size = along.square().mean(1, keepdim=True).sqrt()
    return (gap < tolerance * size).double().mean(1)


def _weights(gap: Tensor, level: Tensor) -> Tensor:
    return 1 / (gap.square() + level.square())


def _products(one: Tensor, two: Tensor) -> Tensor:
    """(m, a * c) each neuron's outer product, with its shape."""
    return one[:, :, None] * two[:, None, :]


def _sums(weights: Tensor, products: Tensor) -> Tensor:
    """(s, m) weights to (s, a, c)."""
    return (weights @ products.flatten(1)).reshape(len(weights), *products.shape[1:])


def _solved(matrix: Tensor, right: Tensor) -> Tensor:
    columns = right[:, :, None] if right.ndim == 2 else right
    solved: Tensor = torch.linalg.solve(_ridged(matrix), columns)
    return solved[:, :, 0] if right.ndim == 2 else solved


def _ridged(matrix: Tensor) -> Tensor:
    size = matrix.diagonal(dim1=1, dim2=2).mean(1)[:, None, None].clamp_min(1e-30)
    return matrix + 1e-6 * size * torch.eye(matrix.shape[1], dtype=matrix.dtype)


def _smallest(matrix: Tensor, start: Tensor) -> Tensor:
    """(s, b) one step of inverse iteration towards the least eigenvector."""
    factor, _ = torch.linalg.cholesky_ex(_ridged(matrix))
    moved = torch.cholesky_solve(start[:, :, None], factor)[:, :, 0]
    moved = torch.where(torch.isfinite(moved), moved, start)
    unit: Tensor = torch.nn.functional.normalize(moved, dim=1)
    return unit
