"""Generalised linear models as networks without hidden layers: one weight matrix and one bias.

    softmax regression:  p(y | x) = softmax(W x + b)_y          W (c, d), b (c,)
    logistic regression: p(1 | x) = sigmoid(w x + b)            w (1, d), b (1,)

One output means logistic regression, several mean softmax regression; everything here goes by that.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.models.mlp import MLP


def softmax_regression(input_shape: tuple[int, ...], classes: int) -> MLP:
    return MLP(input_shape, (), classes)


def probabilities(logits: Tensor) -> Tensor:
    """(s, c, n) logits to the model's means, the same shape."""
    return torch.sigmoid(logits) if logits.shape[1] == 1 else torch.softmax(logits, 1)


def onehot(labels: Tensor, outputs: int) -> Tensor:
    """(..., n) labels to what `probabilities` should be, (..., outputs, n), in fp64."""
    if outputs == 1:
        return labels[..., None, :].double()
    return F.one_hot(labels, outputs).transpose(-1, -2).double()


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """(s, n, c) logits of n records and their labels (n,) to the cross-entropy of each, (s, n)."""
    if logits.shape[2] == 1:
        signs = 1 - 2 * labels.to(logits.dtype)  # -log sigmoid(z) for label 1, of -z for label 0
        return F.softplus(signs * logits[:, :, 0])
    return -torch.log_softmax(logits, 2).gather(2, labels.expand(len(logits), -1)[..., None])[
        ..., 0
    ]
