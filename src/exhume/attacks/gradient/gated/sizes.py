"""The size of a record that a layer without biases leaves open: the loss's own slopes tell it.

    dL/dW = sum_i delta_i x_i^T gives x_i only up to a factor: a_i = x_i / alpha and R_i = alpha delta_i.
    Behind the last layer delta_i = (softmax(alpha f_i + b) - e_y) / B, and f_i, of a_i, is known.

With three outputs or more that is more than one equation for alpha, so that what is left over certifies it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.attacks.gradient.gated.layers import Layer
from exhume.contract import NotApplicable

__all__ = ["sizes_of"]

_FITS = 2e-3  # relative: what the slopes leave over at the right size
_GRID, _ROUNDS = 200, 6


def sizes_of(
    hidden: Tensor, first: Layer, second: Layer, weights: Tensor, slopes: Tensor
) -> Tensor:
    """(n, 1) factors, with their signs, of directions whose (n, m) layer outputs are `hidden`.

    weights: (c, m), or (c, m + 1) with a bias, of the second layer. slopes: (n, c) R_i.
    """
    c = slopes.shape[1]
    if c < 3:
        raise NotApplicable(f"{first.name} has no bias, so that the size is open", ever=False)
    inner, shift = weights[:, : hidden.shape[1]], slopes.new_zeros(c)
    if second.biased:
        shift = weights[:, -1]
    best = [_fitted(sign * hidden, first.leak, inner, shift, sign * slopes) for sign in (1.0, -1.0)]
    (plus, left), (minus, other) = best
    if float(torch.minimum(left, other).max()) > _FITS:
        raise NotApplicable(
            f"{first.name} has no bias, and what comes back from {second.name} is not that of a "
            "cross-entropy, so that the size is open",
            ever=False,
        )
    return torch.where(left <= other, plus, -minus)[:, None]


def _fitted(
    hidden: Tensor, leak: float, inner: Tensor, shift: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor]:
    """(n,) the alpha at which softmax(alpha f + b) - e_y points as R does, and how far apart they stay."""
    outputs = torch.where(hidden > 0, hidden, leak * hidden) @ inner.T
    own = torch.zeros_like(slopes).scatter(1, slopes.argmin(1, keepdim=True), 1.0)
    size = slopes.norm(dim=1, keepdim=True)
    scale = 1 / outputs.abs().amax(1, keepdim=True).clamp_min(1e-30)  # alpha f is of order 1 here
    low, high = torch.full_like(scale, -8.0), torch.full_like(scale, 8.0)  # of log(alpha / scale)
    steps = torch.linspace(0, 1, _GRID, dtype=slopes.dtype)
    for _ in range(_ROUNDS):
        tried = low + (high - low) * steps  # (n, grid)
        alpha = scale * tried.exp()
        made = torch.softmax(alpha[:, :, None] * outputs[:, None] + shift, 2) - own[:, None]
        # only the direction is compared: B and the size of R then need not be known
        unit = made / made.norm(dim=2, keepdim=True).clamp_min(1e-30)
        away = (unit - (slopes / size)[:, None]).norm(dim=2)
        left, place = away.min(1, keepdim=True)
        middle, width = tried.gather(1, place), (high - low) / _GRID
        low, high = middle - 2 * width, middle + 2 * width
    return (scale * middle.exp())[:, 0], left[:, 0]
