"""The missing row of a linear or ridge regression, exactly, from the fitted coefficients (Balle22).

At the optimum the gradients of all N = |D-| + 1 records and of the penalty cancel. The adversary can
compute all of them but one, so it knows the missing record's gradient

    G = -( sum_{D-} (theta (x_i, 1) - y_i) (x_i, 1)^T + alpha (w, 0) )  =  a (x, 1)^T,   a = theta (x, 1) - y

The bias column of G is the residual a; with G_w the rest, x = a^T G_w / a^T a and y = theta (x, 1) - a.

Cost: 2·n·d·c operations a release. Memory: 8·n·(d + c) bytes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.informed.glm import read_record
from exhume.attacks.releases import weights_of
from exhume.core.contract import (
    Cost,
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
from exhume.train.glm import as_matrix, augmented
from exhume.train.linear import LinearFit


@dataclass(frozen=True)
class LinearClosedForm:
    """Solve for the one unknown training row of a linear or ridge regression.

    Sees: `Weights`, r models, each at the optimum of the fixed set and one unknown row.
    Assumes: the fixed set, and the recipe: its penalty, and a bias that is not penalised.
    No initial parameters, no shadow models, no records of its own.
    Guarantees: exact up to N times the rounding of the fit, over the row's residual ||a||. A gradient has as
    many numbers as a row with one target, so an answer carries no certificate; its confidence is ||a||.
    Reference: Balle22 (convex models in closed form); for squared errors ours.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedLinear:
        knowledge.require("the closed form of linear regressions", "recipe", "fixed")
        recipe, fixed = knowledge.recipe, knowledge.fixed
        assert fixed is not None  # `require` has seen to it
        if not isinstance(recipe, LinearFit):
            raise NotApplicable(
                f"the closed form of linear regressions needs least squares at their optimum, not {recipe}",
                ever=False,
            )
        return PreparedLinear(recipe, fixed)


@dataclass(frozen=True, eq=False)
class PreparedLinear:
    recipe: LinearFit
    fixed: Records

    def run(self, releases: Release) -> Reconstruction:
        size = self.recipe.architecture.layout.size
        who, whose = "the closed form of linear regressions", "the recipe's model has"
        released = weights_of(releases, self.fixed.shape, size, who=who, whose=whose)
        if isinstance(released, Reconstruction):
            return released
        started = time.perf_counter()
        theta = as_matrix(self.recipe.architecture, released.parameters)
        gradient = self._missing(theta)
        found, _ = read_record(gradient)
        residual = gradient[:, :, -1]
        targets = torch.einsum("rcd,rd->rc", theta, augmented(found, 1)) - residual
        return Reconstruction(
            candidates=torch.cat([found, targets], 1)[:, None],
            confidence=residual.norm(dim=1, keepdim=True),
            status=Status(Outcome.CONVERGED),
            cost=Cost(time.perf_counter() - started),
        )

    def _missing(self, theta: Tensor) -> Tensor:
        """(r, c, d + 1) optima to what the fixed records leave unexplained, the bias last."""
        inputs, targets = self.recipe.parts(self.fixed)
        width = self.recipe.architecture.sizes[0]
        kappa = self.recipe.penalty.diagonal(len(self.fixed) + 1, width)
        errors = torch.matmul(theta, inputs.T) - targets.T
        return -(torch.matmul(errors, inputs) + kappa * theta)
