"""How a record moves the answers of train/influence.py: the Jacobian of sum_t <a_t, f_t(z)>.

The gradient of the first weights is error ⊗ z, so z acts directly, and through the first layer's
pre-activation, on which all the rest of its gradient f_t depends.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from exhume.models.mlp import MLP
from exhume.train.influence import Answers

Push = Callable[[MLP, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""`pushes`, or `pushes_of_error`."""


def record_jacobian(  # noqa: PLR0917
    mlp: MLP, answers: Answers, path: Tensor, z: Tensor, push: Push, given: Tensor
) -> Tensor:
    """(steps, m, p) and (m, d) to (m, q, d). given: (steps, m, c), the last argument of push."""
    basis, first = answers.basis, answers.first
    b, k, q, d = first.shape
    errors, d_errors, d_rest, first_weights = record_pushes(mlp, path, z, push, given)
    spread = torch.einsum("tb,tmk->mbk", basis, errors).flatten(1)
    jacobian = (spread @ first.view(b * k, q * d)).view(-1, q, d)
    along = (first.view(b * k * q, d) @ z.T).view(b, k, q, -1)  # the answers' first weights on z
    for i in range(len(z)):
        by_time = torch.einsum("tb,bkq->tqk", basis, along[..., i])
        through = by_time @ d_errors[:, i] + answers.rest @ d_rest[:, i]  # (t, q, k)
        weights = first_weights[:, i].flatten(0, 1)  # (t·k, d)
        jacobian[i] += through.transpose(0, 1).flatten(1) @ weights
    return jacobian


def record_pushes(
    mlp: MLP, path: Tensor, z: Tensor, push: Push, given: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a record's gradient is made of, step by step; arguments as above.

    Its errors at the first layer (t, m, k), their derivatives by what enters there (t, m, k, k), those of
    all the rest of the gradient (t, m, p - k·d, k), and the first weights (t, m, k, d).
    """
    layers = mlp.layout.split(path)
    before = torch.einsum("tmkd,md->tmk", layers["fc1.weight"], z) + layers["fc1.bias"]

    def of(weights: Tensor, signal: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
        return push(mlp, weights, signal, more)

    errors, _ = vmap(vmap(of))(path, before, given)
    d_errors, d_rest = vmap(vmap(jacrev(of, argnums=1)))(path, before, given)
    return errors, d_errors, d_rest, layers["fc1.weight"]
