"""The tensor method of Wang23: every record of a batch from dL/da alone.

    g_j = dL/da_j = sum_i r_i sigma(w_j · x_i),      T_p = 1/m sum_j g_j He_p(w_j) -> sum_i r_i c_p x_i^{(p)}

1. Orders 0 and 1 are taken out of g by least squares (ours: they are noise to what follows).
2. The span V (d, B): eigenvectors of T_2, or of T_3 where T_2 vanishes; B by the edge of the noise.
3. T_p(V, ..., V) inside it, p = 3 or 4 by the activation's Hermite coefficients; decomposed into B terms.
4. x_i = V u_i, of the norm that the attacker assumes; signs by T_1 for p = 4.

He_2(w) = w w^T - I, He_3(w) = w^{(3)} - sym(w I), ...: moments are contracted before they are formed. The
largest object is T_3(I, V, V) for a span V of B columns: memory O(dB^2) besides the weights, which are read
in blocks: products in the dtype of the weights, sums over blocks in that of g. Everything is linear in g, so
C outputs are C calls. The weights are a tensor, or rows that are drawn afresh whenever they are read: a
server that draws its query from a key need not hold it: 2^20 neurons of 784 inputs are 3 GB, a block 6 MB.

Shapes: m hidden neurons, d inputs, q columns of a basis, c outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.decompose import decompose, decompose_jointly
from exhume.attacks.gradient.moments import Samples, coefficients, fit_moments, order_for, polish
from exhume.attacks.gradient.span import TwoLast, directions_of, odd, query_parameters, two_last
from exhume.attacks.releases import BatchAnswer, EachGradient
from exhume.core.contract import (
    Architecture,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Store,
    silent,
)

_OUTPUTS = 16  # functions that are decomposed jointly, at most
_NUMBERS = 1 << 25  # of the Jacobian of the fit, at most
_EQUATIONS, _STEPS = 4, 30  # neurons an unknown of the fit, at least; and its steps
_FEWEST = 2  # neurons an input: with fewer, taking out order 1 leaves nothing to go by
_BEYOND = 1.2  # eigenvalues of T_2 over the largest that noise gives
_POWER = 4  # of the subspace iteration
_REFINE = 4
_EDGE = 12  # power iterations for the size of the noise
BLOCK = 1 << 11  # rows


@dataclass(frozen=True)
class TensorAttack:
    """Reconstruct all records behind dL/da of the last layer; dL/dW is not looked at.

    Sees: `Gradient`, its last layer, at parameters of `query`.
    Assumes: the architecture; Gaussian hidden weights; about unit norm w_j · x; linearly independent records.
    Guarantees: an error of order sqrt(d/m) (`expected_error`); the batch size is counted, up to `largest`.
    An odd activation leaves the sign to a prior. Norms are `norm` for all records, not measured.
    Reference: Wang23. The least squares in place of averages are ours.
    """

    spread: float = 1.0  # deviation of the queried weights; Wang23: 1
    norm: float = 1.0  # of every record; Wang23: 1
    largest: int = 16  # batch size that can be found
    nonnegative: bool = True  # records are images: the sign where nothing else gives it
    jointly: bool = False  # C outputs are C tensors with common parts; else made one function
    refined: bool = False  # go on from the estimate with a fit of dL/da (Wang23's last step)

    def __post_init__(self) -> None:
        if self.jointly and self.refined:
            raise ExhumeError("jointly, refined: the fit is of one function; say one of the two")

    def query(self, architecture: Architecture, key: Key) -> Tensor:
        return query_parameters(architecture, self.spread, key)

    def records_behind(
        self, architecture: Architecture, weights: Rows, outputs: Tensor, key: Key
    ) -> Tensor:
        """(b, *shape) from (c, m) dL/da at hidden weights of N(0, 1), which may be drawn block by block.

        For networks whose weights fill the memory; raises `NotApplicable`.
        """
        inversion = _TensorInversion(self, two_last(architecture), key)
        answer = inversion.behind(weights, outputs, self.norm, weights.dtype)
        if answer.refused is not None:
            raise answer.refused
        return answer.records

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        view = two_last(knowledge.architecture)
        invert, stage = _TensorInversion(self, view, key).invert, "decomposing moments"
        return EachGradient(
            view.shape, invert, "the tensor attack", stage, progress, view.architecture
        )


@dataclass(frozen=True, eq=False)
class _TensorInversion:
    attack: TensorAttack
    view: TwoLast
    key: Key

    def invert(self, gradient: Tensor, parameters: Tensor, index: int) -> BatchAnswer:
        if self.attack.jointly:
            weights, outputs = self.view.last(gradient, parameters, index)
        else:  # all outputs combined into one
            seen = self.view.observe(gradient, parameters, index)
            weights, outputs = seen.weights, seen.values[None]
        spread = deviation(weights)
        weights = weights if spread == 1 else weights / spread
        return self.behind(weights, outputs, spread * self.attack.norm, gradient.dtype)

    def behind(
        self, weights: Rows, outputs: Tensor, size: float, dtype: torch.dtype
    ) -> BatchAnswer:
        """What (c, m) outputs give: all records, or what can be identified and why not more."""
        fits = [deflate(weights, each) for each in outputs]
        values, slopes = (torch.stack(parts) for parts in zip(*fits, strict=True))
        means = outputs.mean(1)
        if len(outputs) > 1:
            # axes along which the functions are uncorrelated, the largest first
            axes = torch.linalg.eigh(values @ values.T)[1].flip(1)[:, :_OUTPUTS]
            values, slopes, means = axes.T @ values, axes.T @ slopes, axes.T @ means
        m, d = weights.shape
        observed = {"expected_error": math.sqrt(d / m)}
        c = coefficients(self.view.activation, size)
        even = abs(c[2]) > 0.05 * max(abs(value) for value in c)

        def span() -> Tensor:
            largest, key = self.attack.largest, self.key.fold("span")
            return span_of_moments(weights, values, slopes, even=even, largest=largest, key=key)

        try:
            order = order_for(self.view.activation, size)
        except NotApplicable as why:
            rows = slopes[:1] if not even else span().T
            return self._batch(rows, dtype, observed, why)
        try:
            if m < _FEWEST * d:
                raise NotApplicable(f"{m} neurons for {d} inputs: too few neurons", ever=True)
            basis = span()
        except NotApplicable as why:
            return self._batch(slopes.new_zeros(0, d), dtype, observed, why)
        points = project(weights, basis)
        moments = [
            fit_moments(Samples(points, mean + each + points @ (basis.T @ slope)), order)
            for mean, each, slope in zip(means, values, slopes, strict=True)
        ]
        key, tensors = self.key.fold("terms"), [each[order] for each in moments]
        if len(tensors) > 1:
            terms = decompose_jointly(torch.stack(tensors), key=key)
        else:
            terms = decompose(tensors[0], key=key)
        units = directions_of(self.view.activation, terms, *moments) @ basis.T
        if self.attack.refined:
            units = self._refined(weights, outputs[0], size * units) / size
        if self.view.biased:
            units = units / units[:, -1:]
        elif odd(self.view.activation) and self.attack.nonnegative:
            units = units * torch.where(units.sum(1) < 0, -1.0, 1.0).to(units)[:, None]
        observed |= {"batch_size": float(len(units)), "order": float(order), "misfit": terms.misfit}
        return self._batch(units, dtype, observed, None, -terms.misfit)

    def _refined(self, weights: Rows, values: Tensor, start: Tensor) -> Tensor:
        """(b, d) where dL/da fits best, its slopes r_i fitted along; the start, where equations are few."""
        rows = min(len(weights), _NUMBERS // start.numel())
        if not isinstance(weights, Tensor) or rows < _EQUATIONS * start.numel():
            return start
        samples = Samples(weights[:rows].double(), values[:rows])
        return polish(self.view.activation, samples, start, _STEPS).records

    def _batch(
        self,
        rows: Tensor,
        dtype: torch.dtype,
        observed: dict[str, float],
        why: NotApplicable | None,
        confidence: float = 0.0,
    ) -> BatchAnswer:
        scale = 1.0 if self.view.biased or why else self.attack.norm
        records = (scale * rows[:, : self.view.inputs]).to(dtype).reshape(-1, *self.view.shape)
        sure = torch.full((len(rows),), confidence, dtype=torch.float64)
        return BatchAnswer(records, sure, observed, refused=why)


def deflate(weights: Rows, values: Tensor) -> tuple[Tensor, Tensor]:
    """g less its best fit c + w · b, and b (d,): orders 0 and 1 are noise to the higher moments.

    Conjugate gradients on the normal equations, which are m times nearly the identity.
    """
    centred = values - values.mean()
    slope = torch.zeros(weights.shape[1], dtype=values.dtype)
    both = torch.stack([centred, torch.ones_like(centred)])
    total = torch.zeros(2, weights.shape[1], dtype=values.dtype)
    for w, v in zip(blocks(weights), torch.split(both, BLOCK, 1), strict=True):
        total += v.to(w.dtype) @ w
    residual, columns = total
    direction, norm = residual.clone(), float(residual @ residual)
    start = norm
    for _ in range(20):
        if norm <= 1e-16 * start or norm == 0:
            break
        image, mean = torch.zeros_like(direction), 0.0  # W^T (W v - its mean), in one pass
        for w in blocks(weights):
            height = w @ direction.to(w.dtype)
            image += height @ w
            mean += float(height.double().sum()) / len(weights)
        image -= mean * columns
        step = norm / float(direction @ image)
        slope, residual = slope + step * direction, residual - step * image
        norm, before = float(residual @ residual), norm
        direction = residual + norm / before * direction
    left = centred - _times(weights, slope)
    return left - left.mean(), slope


def _times(weights: Rows, vector: Tensor) -> Tensor:
    return torch.cat([(w @ vector.to(w.dtype)).to(vector.dtype) for w in blocks(weights)])


def project(weights: Rows, basis: Tensor) -> Tensor:
    """(m, q) in fp64, by blocks."""
    return torch.cat([w.to(basis.dtype) @ basis for w in blocks(weights)])


def deviation(weights: Rows) -> float:
    """Root mean square of all entries, by blocks."""
    total = sum(float(w.double().square().sum()) for w in blocks(weights))
    return math.sqrt(total / math.prod(weights.shape))


def span_of_moments(
    weights: Rows, values: Tensor, slopes: Tensor, *, even: bool, largest: int, key: Key
) -> Tensor:
    """(d, b) from g (c, m) and slopes (c, d) as `deflate` leaves them, the outputs' moments side by side.

    Eigenvectors of T_2 (`even`), else of T_3 by alternating projection. b is the number of eigenvalues
    beyond what noise of this size gives, at most `largest`. The outputs must be uncorrelated, so that their
    noise adds up in squares.
    """
    m, d = weights.shape
    if even:
        basis, sizes = _eigenvectors(weights, values, min(2 * largest, d), key)
        noise = values.square().sum(1) * d / max(m - d - 1, 1) / m  # d + 1 were fitted by `deflate`
        edge = float(noise.max().sqrt() + noise.sum().sqrt())
        return basis[:, : _count(sizes, _BEYOND * edge, largest)]
    # The batch size: a basis from one half of the neurons, T_3(I, V, V) from the other. A basis follows
    # the noise of the neurons it comes from. For the others it is any basis.
    half, columns = m // 2, min(largest, d)
    first, rest = (weights[:half], values[:, :half]), (weights[half:], values[:, half:])
    basis = _refined(*first, _third_start(*first, slopes, columns, key), columns)
    sizes = torch.linalg.svdvals(_side_by_side(*rest, basis))
    rank = _count(sizes, _third_edge(*rest, basis, key), columns)
    return _refined(weights, values, _third_start(weights, values, slopes, rank, key), rank)


def _third_start(weights: Rows, values: Tensor, slopes: Tensor, columns: int, key: Key) -> Tensor:
    """(d, columns) of T_3(I, I, v), v the direction of each output's T_1, which is what g says best."""
    along = slopes / slopes.norm(dim=1, keepdim=True).clamp_min(1e-300)
    contracted = torch.stack(
        [each * _times(weights, unit) for each, unit in zip(values, along, strict=True)]
    )  # T_1 has been taken out of g
    centred = contracted - contracted.mean(1, keepdim=True)
    return _eigenvectors(weights, centred, columns, key)[0]


def _refined(weights: Rows, values: Tensor, basis: Tensor, columns: int) -> Tensor:
    for _ in range(_REFINE):
        left = torch.linalg.svd(_side_by_side(weights, values, basis), full_matrices=False)[0]
        basis = left[:, :columns]
    return basis


def _side_by_side(weights: Rows, values: Tensor, basis: Tensor) -> Tensor:
    """(d, c q q) T_3(I, V, V) of all outputs."""
    return torch.cat([third_on(weights, each, basis).flatten(1) for each in values], 1)


def _third_edge(weights: Rows, values: Tensor, basis: Tensor, key: Key) -> float:
    """What noise alone gives T_3(I, V, V) at most: |S|^(1/2) sqrt(d/m) + tr(S)^(1/2) / sqrt(m).

    S = E[g^2 h h^T], h = He_2 of the points: the covariance of a row, inputs outside the span being Gaussian
    and independent of g and h. Its norm is found by power iteration. Side by side, outputs (c, m), which are
    uncorrelated, have the largest |S| and the sum of the traces.
    """
    (m, d), q = weights.shape, basis.shape[1]
    points = project(weights, basis)
    lengths = points.square().sum(1)
    drawn = torch.randn(q, q, dtype=torch.float64, generator=key.fold("edge").generator())
    norms, traces = [], []
    for square in values.square().double():
        traces.append(float(square @ (lengths.square() - 2 * lengths + q)) / m)  # |p p^T - I|^2
        along = drawn + drawn.T
        for _ in range(_EDGE):
            along = along / along.norm()
            inner = square * (((points @ along) * points).sum(1) - along.trace())
            along = (points.T @ (inner[:, None] * points) - inner.sum() * torch.eye(q)) / m
        norms.append(float(along.norm()))
    return (math.sqrt(d * max(norms)) + math.sqrt(sum(traces))) / math.sqrt(m)


def _count(sizes: Tensor, edge: float, largest: int) -> int:
    rank = min(int((sizes.abs() > edge).sum()), largest)
    if not rank:
        raise NotApplicable(
            f"no eigenvalue of the moment stands out from noise of size {edge:.2g}: too few neurons",
            ever=True,
        )
    return rank


def _eigenvectors(weights: Rows, values: Tensor, columns: int, key: Key) -> tuple[Tensor, Tensor]:
    """Eigenvectors of T_2, largest modulus first, by subspace iteration; T_2 is indefinite.

    For several outputs those of sum_k T_2^2, and the roots of its eigenvalues.
    """
    start = torch.randn(weights.shape[1], columns, dtype=values.dtype, generator=key.generator())
    basis = torch.linalg.qr(start)[0]
    for _ in range(_POWER):
        images = [second_on(weights, each, basis) for each in values]
        if len(values) > 1:
            pairs = zip(values, images, strict=True)
            images = [torch.as_tensor(sum(second_on(weights, g, i) for g, i in pairs))]
        basis = torch.linalg.qr(images[0])[0]
    images = [second_on(weights, each, basis) for each in values]
    if len(values) > 1:
        eigenvalues, inner = torch.linalg.eigh(sum(image.T @ image for image in images))
        return basis @ inner.flip(1), eigenvalues.flip(0).clamp_min(0).sqrt()
    small = basis.T @ images[0]
    eigenvalues, inner = torch.linalg.eigh((small + small.T) / 2)
    order = eigenvalues.abs().argsort(descending=True)
    return basis @ inner[:, order], eigenvalues[order]


def _blocks(weights: Rows, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(blocks(weights), torch.split(values.to(weights.dtype), BLOCK), strict=True)


def first(weights: Rows, values: Tensor) -> Tensor:
    """(d,) T_1, from weights (m, d) and g (m,)."""
    total = torch.zeros(weights.shape[1], dtype=values.dtype)
    for w, g in _blocks(weights, values):
        total += g @ w
    return total / len(values)


def second_on(weights: Rows, values: Tensor, basis: Tensor) -> Tensor:
    """(d, q) T_2 V for V (d, q)."""
    total = torch.zeros_like(basis)
    for w, g in _blocks(weights, values):
        total += w.T @ (g[:, None] * (w @ basis.to(w.dtype)))
    return total / len(values) - values.mean() * basis


def third_on(weights: Rows, values: Tensor, basis: Tensor) -> Tensor:
    """(d, q, q) T_3(I, V, V) for an orthonormal V (d, q)."""
    d, q = basis.shape
    total = basis.new_zeros(d, q * q)
    for w, g in _blocks(weights, values):
        inner = w @ basis.to(w.dtype)
        total += w.T @ (g[:, None] * (inner[:, :, None] * inner[:, None, :]).flatten(1))
    third = total.reshape(d, q, q) / len(values)
    mean = first(weights, values)
    inner_mean = basis.T @ mean
    eye = torch.eye(q, dtype=basis.dtype)
    third -= mean[:, None, None] * eye
    third -= basis[:, :, None] * inner_mean[None, None, :]
    third -= basis[:, None, :] * inner_mean[None, :, None]
    return third


@dataclass(frozen=True)
class DrawnRows:
    """(m, d) numbers of N(0, 1), the same at every reading."""

    key: Key
    count: int
    inputs: int
    first: int = 0  # of the rows that the key names

    def __len__(self) -> int:
        return self.count

    @property
    def shape(self) -> tuple[int, int]:
        return self.count, self.inputs

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def __getitem__(self, rows: slice) -> DrawnRows:
        start, stop, _ = rows.indices(self.count)
        if start % BLOCK:
            raise ExhumeError(f"rows: a part begins at a multiple of {BLOCK}, not at {start}")
        return DrawnRows(self.key, stop - start, self.inputs, self.first + start)

    def blocks(self) -> Iterator[Tensor]:
        for start in range(0, self.count, BLOCK):
            generator = self.key.fold("rows", self.first + start).generator()
            yield torch.randn(BLOCK, self.inputs, generator=generator)[: self.count - start]


Rows = Tensor | DrawnRows


def blocks(rows: Rows) -> Iterator[Tensor]:
    """Parts of `BLOCK` rows, in order."""
    return rows.blocks() if isinstance(rows, DrawnRows) else iter(torch.split(rows, BLOCK))
