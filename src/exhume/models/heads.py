"""What a network's outputs are for: their loss, and the outputs' pull on the parameters.

multiclass  L = -log softmax(Phi)_y                    Buzaglo23
binary      L = log(1 + exp(-s Phi)),  s = ±1          Haim et al. 2022
regression  L = (Phi - s)²/2,          s = ±1          one output; labels 0 and 1 mean s = -1 and 1
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.core.contract import ExhumeError

Head = Literal["multiclass", "binary", "regression"]


def check_head(head: Head, outputs: int) -> None:
    """One output for binary and regression heads, at least two for multiclass."""
    if (head == "multiclass") != (outputs > 1):
        needed = "at least 2" if head == "multiclass" else "1"
        raise ExhumeError(f"head: {head} needs {needed} outputs, the network has {outputs}")


def signs(labels: Tensor, like: Tensor) -> Tensor:
    """(n,) labels 0 and 1 to -1 and 1, in the type of `like`."""
    return (2 * labels - 1).to(like.dtype)


def pulls(head: Head, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(n, c) outputs to each record's loss (n,) and -dL/dPhi (n, c).

    The pull on the right class is the sum of the other probabilities, not 1 - p: at a loss of 1e-6 the
    difference would have lost all digits in fp32.
    """
    if head == "multiclass":
        at = labels[:, None]
        lead = outputs - outputs.gather(1, at)
        others = lead.exp().scatter(1, at, 0.0)  # exp(Phi_j - Phi_y)
        total = others.sum(1, keepdim=True)
        loss, share = total[:, 0].log1p(), others / (1 + total)
        if bool(torch.isinf(total).any()):  # far on the wrong side: the usual way loses nothing
            loss = F.cross_entropy(outputs, labels, reduction="none")
            share = torch.softmax(outputs, 1).scatter(1, at, 0.0)
        return loss, (-share).scatter(1, at, share.sum(1, keepdim=True))
    sign, one = signs(labels, outputs), outputs[:, 0]
    if head == "binary":
        return F.softplus(-sign * one), (sign * torch.sigmoid(-sign * one))[:, None]
    return 0.5 * (one - sign).square(), (sign - one)[:, None]


def margins(head: Head, outputs: Tensor, labels: Tensor) -> Tensor:
    """(n,): Phi_y - max_{j != y} Phi_j, or s·Phi for one output."""
    if head != "multiclass":
        return signs(labels, outputs) * outputs[:, 0]
    at = labels[:, None]
    others = outputs.scatter(1, at, -torch.inf)
    return outputs.gather(1, at)[:, 0] - others.max(1).values
