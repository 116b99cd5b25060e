"""How far parameters are from a stationary point that these records explain (Buzaglo23, eqs. 2 and 6).

    W_l  =  sum_i lambda_i g_{l,i} h_{l-1,i}ᵀ          for every layer l, lambda_i >= 0
    g_{l,i} = d/dz_l of [Phi_y(x_i) - sum_j p_j Phi_j(x_i)],      h_{l-1,i} = what enters layer l

`others` says which competitors p is about: "max" puts all on the runner-up (eq. 6), "softmax" shares
it out as the cross-entropy's own gradient does: p_j = exp(Phi_j) / sum_{j != y} exp(Phi_j).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from scipy.optimize import nnls
from torch import Tensor

from exhume.core.contract import ExhumeError
from exhume.models.heads import Head, margins, signs
from exhume.models.matrices import Matrices

__all__ = ["Others", "Stationarity", "competitors", "stationarity"]

Others = Literal["softmax", "max"]


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
