"""Scoring a whole batch: candidates matched one to one with the records, by signed cosine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from exhume.core.contract import Reconstruction, Records, Secret
from exhume.score.pixels import psnr

__all__ = ["RECOVERED", "BatchScores", "score_batches"]

RECOVERED = 0.99  # cosine from which a record counts as recovered


@dataclass(frozen=True, eq=False)
class BatchScores:
    cosines: Tensor  # (r, b) of each record with the candidate matched to it; 0 where there is none
    matched: Tensor  # (r, b, *shape) those candidates; zeros where there is none
    psnr: Tensor  # (r, b) dB
    sizes: Tensor  # (r,) batch size the attack found
    labels_right: Tensor  # (r, b) bool

    @property
    def errors(self) -> Tensor:
        """(r, b) distance of the unit vectors, |x/|x| - y/|y||, as Wang23's theorem bounds it."""
        return (2 - 2 * self.cosines).clamp_min(0).sqrt()

    def metrics(self) -> dict[str, float]:
        return {
            "min_cosine": float(self.cosines.min()),
            "mean_cosine": float(self.cosines.mean()),
            "recovered": float((self.cosines >= RECOVERED).double().mean()),
            "psnr": float(self.psnr.mean()),
            "batch_size_right": float((self.sizes == self.cosines.shape[1]).double().mean()),
            "label_accuracy": float(self.labels_right.double().mean()),
        }


def score_batches(
    secret: Secret,
    found: Reconstruction,
    *,
    up_to_sign: bool = False,
    through: Callable[[Tensor], Tensor] | None = None,
) -> BatchScores:
    """The secret holds (r, b, *shape), the reconstruction k candidates a release, k != b allowed.

    up_to_sign: for data and networks that do not determine the sign; the candidates are then flipped.
    through: (n, *shape) to what the attack is after in its place, such as the features of a layer.
    """
    truth = secret.open()
    if through is not None:
        flat = through(truth.inputs.flatten(0, 1))
        inputs = flat.reshape(*truth.labels.shape, *flat.shape[1:])
        truth = Records(inputs, truth.labels, truth.classes)
    r, b = truth.labels.shape
    cosines = torch.zeros(r, b, dtype=torch.float64)
    matched = torch.zeros_like(truth.inputs)
    right = torch.zeros(r, b, dtype=torch.bool)
    real = found.real
    for i in range(r):
        here = found.found(i).double()
        if not len(here):
            continue
        table = _units(truth.inputs[i].double()) @ _units(here).T
        rows, columns = linear_sum_assignment(-(table.abs() if up_to_sign else table).numpy())
        picked = table[rows, columns]
        signs = torch.where((picked < 0) & up_to_sign, -1.0, 1.0)
        cosines[i, rows] = picked * signs
        shaped = signs.reshape(-1, *([1] * len(truth.shape)))
        matched[i, rows] = (here[columns] * shaped).to(matched.dtype)
        if found.labels is not None:
            right[i, rows] = found.labels[i][real[i]][columns] == truth.labels[i, rows]
    dist = psnr(matched.flatten(0, 1), truth.inputs.flatten(0, 1)).reshape(r, b)
    return BatchScores(cosines, matched, dist, real.sum(1), right)


def _units(records: Tensor) -> Tensor:
    flat = records.flatten(1)
    norms: Tensor = flat.norm(dim=1, keepdim=True)
    return flat / norms.clamp_min(1e-300)
