"""Linear and ridge regression at their optimum, which one solve gives: no steps, no rate, no start.

    theta* = argmin  1/2 sum_i ||theta (x_i, 1) - y_i||^2 + alpha/2 ||w||^2,   the bias free

A record is a whole row of the table: the d inputs x and after them the c targets y.

Cost: n·(d + 1)^2 + (d + 1)^3 operations a model. Everything is fp64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.mlp import MLP
from exhume.train.glm import Penalty, augmented


@dataclass(frozen=True)
class LinearFit:
    """Least squares with scikit-learn's penalty: summed squares and alpha ||w||^2, as in `Ridge`."""

    architecture: MLP  # d inputs, c outputs, nothing between
    penalty: Penalty

    def __post_init__(self) -> None:
        if self.architecture.hidden:
            raise ExhumeError(f"architecture: {self.architecture} has hidden layers")

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        models, more = extra.labels.shape
        return torch.stack(
            [self._solved(fixed.with_extra(extra, i) if more else fixed) for i in range(models)]
        )

    def _solved(self, records: Records) -> Tensor:
        """(p,) by least squares on centred columns: the bias is free, so the means take care of it."""
        inputs, targets = self.parts(records)
        x, y = inputs[:, :-1], targets
        middle, level = x.mean(0), y.mean(0)
        pull = self.penalty.on_sum(len(records)) ** 0.5 * torch.eye(x.shape[1], dtype=x.dtype)
        rows = torch.cat([x - middle, pull])
        wanted = torch.cat([y - level, y.new_zeros(len(pull), y.shape[1])])
        weight = torch.linalg.lstsq(rows, wanted, driver="gelsd").solution.T  # (c, d)
        return torch.cat([weight.flatten(), level - weight @ middle])

    def parts(self, records: Records) -> tuple[Tensor, Tensor]:
        """The inputs (n, d + 1) with a constant 1 at the end, and the targets (n, c), in fp64."""
        width, outputs = self.architecture.sizes[0], self.architecture.outputs
        if records.shape != (width + outputs,):
            raise ExhumeError(
                f"records of shape {records.shape} given; rows of {width} inputs and {outputs} targets needed"
            )
        rows = records.inputs.double()
        return augmented(rows[:, :width], 1), rows[:, width:]

    def bytes_per_model(self, records: int) -> int:
        return 8 * (3 * records * self.architecture.sizes[0] + 2 * self.architecture.layout.size)

    def __str__(self) -> str:
        strength = self.penalty.strength
        return f"ridge regression, alpha = {strength:g}" if strength else "linear regression"
