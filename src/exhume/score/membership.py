"""How well a membership score separates models trained with a record from models trained without it.

One AUC per target, then the mean over targets (Balle22, Fig. 10): pooling the scores of different
targets first would mix up easy records with members.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError

__all__ = ["auc", "gap_over_spread", "mean_auc"]


def auc(members: Tensor, others: Tensor) -> Tensor:
    """P(member's score > other's), ties counting half: (s, t) and (u, t) scores to (t,), or 1-D to ().

    Mann-Whitney by ranks: s·log s, not s·u.
    """
    _some(members, others)
    order = others.double().movedim(0, -1).contiguous().sort(dim=-1).values
    asked = members.double().movedim(0, -1).contiguous()
    below = torch.searchsorted(order, asked, right=False)
    not_above = torch.searchsorted(order, asked, right=True)
    return (below + not_above).double().mean(-1) / (2 * len(others))


def mean_auc(members: Tensor, others: Tensor) -> float:
    """(s, t), (u, t): the AUC of each target, averaged."""
    return float(auc(members, others).mean())


def gap_over_spread(members: Tensor, others: Tensor) -> Tensor:
    """Difference of the means over the pooled standard deviation, per target (d'): (s, t), (u, t) to (t,).

    Infinite where neither group varies and the means differ; zero where they do not differ at all.
    """
    _some(members, others, least=2)
    gap = members.double().mean(0) - others.double().mean(0)
    spread = ((members.double().var(0) + others.double().var(0)) / 2).sqrt()
    return torch.where(gap == 0, torch.zeros_like(gap), gap / spread)


def _some(members: Tensor, others: Tensor, least: int = 1) -> None:
    if len(members) < least or len(others) < least:
        raise ExhumeError(
            f"membership: {len(members)} models with and {len(others)} without the record, "
            f"at least {least} of each needed"
        )
    if members.shape[1:] != others.shape[1:]:
        raise ExhumeError(
            f"membership: scores of shapes {tuple(members.shape)} and {tuple(others.shape)} are not "
            "of the same targets"
        )
    if bool(torch.isnan(members).any()) or bool(torch.isnan(others).any()):
        raise ExhumeError("membership: a score is not a number")
