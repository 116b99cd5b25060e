"""The record in the difference of two versions of a linear model, one fitted with it and one without.

At both optima the gradients cancel. Subtracted, only the record's own gradient at theta is left over:

    G = -( sum_{D'} (p(theta x_i) - p(theta' x_i)) (x_i, 1)^T + kappa theta - kappa' theta' ) = a (x, 1)^T

theta was fitted with the record, theta' to the remaining n records D' alone; p is the model's output. Labels
cancel: the adversary needs the inputs of D' only. Whoever has m other records like them takes n/m times their
sum; then G is near, and x = G_w / G_b does not depend on n where the penalty is small.

Cost: 4·n·d·c operations a pair. Everything is fp64.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.informed.glm import read_record, read_row
from exhume.core.contract import (
    Cost,
    Gradient,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Records,
    Release,
    Status,
    Store,
    silent,
)
from exhume.models.glm import probabilities
from exhume.train.glm import Optimum, as_matrix, augmented
from exhume.train.linear import LinearFit


@dataclass(frozen=True)
class VersionDifference:
    """Solve for the record by which two fits of a linear model differ.

    Sees: `Gradient`, the difference theta - theta' of two versions, at theta' of the one without the record.
    Assumes: both at the optimum of the recipe; the inputs of the remaining records, or public ones like them.
    Guarantees: with the remaining records exact, up to n times the rounding of the fits over ||a||; with
    public ones an estimate. Confidence is ||a||.
    Reference: Bertran et al. 2024 (2405.20272), with public records; that the sum over the remaining
    records is exact, and for logistic models too, is ours.
    """

    remaining: int = 0  # records behind both versions; 0: as many as are known

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedDifference:
        recipe = knowledge.recipe
        held = knowledge.fixed if knowledge.fixed is not None else knowledge.public
        if not isinstance(recipe, Optimum | LinearFit) or recipe.architecture.hidden:
            raise NotApplicable(
                "the difference of versions needs fits of a linear model", ever=True
            )
        if held is None:
            raise NotApplicable(
                "the difference of versions needs the remaining records or others like them",
                ever=True,
            )
        return PreparedDifference(recipe, held, self.remaining or len(held))


@dataclass(frozen=True, eq=False)
class PreparedDifference:
    recipe: Optimum | LinearFit
    held: Records
    remaining: int

    def run(self, releases: Release) -> Reconstruction:
        if not isinstance(releases, Gradient):
            why = NotApplicable("this attack reads a difference of versions", ever=False)
            return Reconstruction.none(0, self.held.shape, why)
        started, network = time.perf_counter(), self.recipe.architecture
        without = as_matrix(network, releases.at.expand_as(releases.values).double())
        theta = as_matrix(network, (releases.at + releases.values).double())
        gradient = self._own(theta, without)
        if isinstance(self.recipe, LinearFit):
            found, labels = read_row(theta, gradient), None
        else:
            found, inferred = read_record(gradient)
            labels = inferred[:, None]
        return Reconstruction(
            found.reshape(-1, 1, *self.held.shape),
            gradient[:, :, -1].norm(dim=1, keepdim=True),
            Status(Outcome.CONVERGED),
            Cost(time.perf_counter() - started),
            labels,
        )

    def _own(self, theta: Tensor, without: Tensor) -> Tensor:
        """(r, c, d + 1) the gradient of the record that only theta has seen."""
        recipe, width = self.recipe, self.recipe.architecture.sizes[0]
        if isinstance(recipe, LinearFit):
            inputs = recipe.parts(self.held)[0]
            moved = torch.matmul(theta - without, inputs.T)
        else:
            inputs = augmented(self.held.inputs.double(), 1)
            after, before = (probabilities(torch.matmul(t, inputs.T)) for t in (theta, without))
            moved = after - before
        pulls = [recipe.penalty.diagonal(self.remaining + more, width) for more in (1, 0)]
        share = self.remaining / len(self.held)
        return -(share * torch.matmul(moved, inputs) + pulls[0] * theta - pulls[1] * without)
