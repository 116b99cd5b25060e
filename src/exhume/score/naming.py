"""Did the attack name the right record among known candidates? The 0-1 loss of the prior-aware game."""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Reconstruction, Records, Secret

__all__ = ["named_rightly", "nearest_is_right"]


def named_rightly(secret: Secret, found: Reconstruction, candidates: Records) -> Tensor:
    """(t,) bool: the candidate nearest to the first answer is the record. Opens the secret.

    An attack that was not told the candidates may be asked as well: snapping its answer to the list is
    what an adversary who has one would do. Equal candidates count as one.
    """
    truth = secret.open().inputs.flatten(1)
    if found.candidates.shape[0] != len(truth) or found.candidates.shape[1] < 1:
        answers, each = found.candidates.shape[:2]
        raise ExhumeError(
            f"reconstruction: {each} candidates for each of {answers} releases do not answer "
            f"{len(truth)} records"
        )
    return nearest_is_right(found.candidates[:, 0], truth, candidates.inputs)


def nearest_is_right(answers: Tensor, truth: Tensor, candidates: Tensor) -> Tensor:
    """(t, *shape) twice and (k, *shape): (t,) bool, as above."""
    listed, wanted_rows = candidates.flatten(1), truth.flatten(1)
    _, names = torch.unique(torch.cat([listed, wanted_rows.to(listed)]), dim=0, return_inverse=True)
    own, wanted = names[: len(listed)], names[len(listed) :]
    if not bool(torch.isin(wanted, own).all()):
        raise ExhumeError("candidates: a record behind a release is not on the list")
    given = answers.flatten(1).to(listed)
    exact = "donot_use_mm_for_euclid_dist"  # a candidate's distance to itself is 0
    nearest = torch.cdist(given, listed, compute_mode=exact).argmin(1)
    right: Tensor = own[nearest] == wanted
    return right
