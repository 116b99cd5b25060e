from __future__ import annotations

import torch
import torch.nn.functional as F

from exhume.models.glm import (
    losses,
    onehot,
    probabilities,
    softmax_regression,
)
from exhume.models.mlp import MLP


def test_the_networks_have_one_layer():
    assert softmax_regression((2, 3), 4).layout.shapes == ((4, 6), (4,))
    assert MLP((5,), (), 1).layout.shapes == ((1, 5), (1,))


def test_losses_and_their_slopes_agree_with_torch(key):
    for outputs, classes in ((1, 2), (4, 4)):
        logits = torch.randn(3, 7, outputs, generator=key.generator(), dtype=torch.float64)
        logits.requires_grad_()
        labels = torch.arange(7) % classes
        found = losses(logits, labels)
        for model in range(3):
            if outputs == 1:
                expected = F.binary_cross_entropy_with_logits(
                    logits[model, :, 0], labels.double(), reduction="none"
                )
            else:
                expected = F.cross_entropy(logits[model], labels, reduction="none")
            torch.testing.assert_close(found[model], expected)
        (slope,) = torch.autograd.grad(found.sum(), logits)
        by_hand = probabilities(logits.transpose(1, 2)) - onehot(labels, outputs)
        torch.testing.assert_close(slope.transpose(1, 2), by_hand)
