"""Score recovered token sequences: matched one to one, in order and as bags, beside decoys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from exhume.contract import Reconstruction, Secret

__all__ = ["TokenScores", "score_tokens"]


@dataclass(frozen=True, eq=False)
class TokenScores:
    ordered: Tensor  # (r, b) share of a record's places with the right token; 0 without a candidate
    bags: Tensor  # (r, b) share of its tokens that the candidate has, wherever
    null_ordered: Tensor  # (n,) the same of decoys, each with its choice among all candidates
    null_bags: Tensor  # (n,)

    def metrics(self) -> dict[str, float]:
        return {
            "token_accuracy": float(self.ordered.mean()),
            "bag_accuracy": float(self.bags.mean()),
            "exact": float((self.ordered == 1).double().mean()),
            "exact_bags": float((self.bags == 1).double().mean()),
            "null_token_accuracy": float(self.null_ordered.mean()),
            "null_bag_accuracy": float(self.null_bags.mean()),
        }


def score_tokens(secret: Secret, found: Reconstruction, decoys: Tensor) -> TokenScores:
    """The secret holds (r, b, l) tokens; decoys (n, l) are sequences that were not in any batch.

    A decoy's accuracy is what similar sentences and padding give for nothing. Bags are matched apart.
    """
    truth = secret.open().inputs.long()
    r, b = truth.shape[:2]
    ordered, bags = torch.zeros(2, r, b, dtype=torch.float64)
    real = torch.isfinite(found.confidence)
    for i in range(r):
        here = found.candidates[i][real[i]].long()
        if len(here):
            ordered[i], bags[i] = (_matched(share) for share in _shares(truth[i], here))
    everything = found.candidates[real].long()
    null_ordered, null_bags = torch.zeros(2, len(decoys), dtype=torch.float64)
    if len(everything):
        null_ordered, null_bags = (s.amax(1) for s in _shares(decoys.long(), everything))
    return TokenScores(ordered, bags, null_ordered, null_bags)


def _shares(records: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """(n, l) and (k, l): the shares (n, k) of equal tokens, in place and as bags."""
    placed = (records[:, None] == candidates[None]).double().mean(2)
    common = torch.stack([_common(record, candidates) for record in records])
    return placed, common / records.shape[1]


def _common(record: Tensor, candidates: Tensor) -> Tensor:
    """(l,) and (k, l): how many tokens of the record each candidate has, counted with repetition."""
    kinds, counts = torch.unique(record, return_counts=True)
    theirs = (candidates[:, :, None] == kinds).sum(1)  # (k, kinds)
    return torch.minimum(theirs, counts).sum(1).double()


def _matched(shares: Tensor) -> Tensor:
    """(b, k) to (b,): each record's share with the candidate that it gets, one to one."""
    rows, columns = linear_sum_assignment(-shares.numpy())
    found = torch.zeros(len(shares), dtype=torch.float64)
    found[rows] = shares[rows, columns]
    return found
