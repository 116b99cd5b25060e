"""Differentiating through training: find the record whose training reproduces the released weights.

No shadow models and no data beyond the fixed set. Training is a known, deterministic map from the
unknown record z to the weights theta(z); a Gauss-Newton iteration inverts it:

    J(z) dz ≈ theta - theta(z),      z <- z + dz,      theta(z) by training on the guess.

The residual is exact, since the adversary can train on its guess, so J only has to be good enough to
converge. It comes from the adjoint of training (train/influence.py), computed once for all targets and
labels: with questions c_1 … c_q, and f_t(z) the record's gradient at step t of its own training,

    <c_i, J dz> = sum_t <a_{i,t}, d f_t(z) / dz · dz> / (n + 1).

Labels are tried in the order in which trainings on known records explain the release (starts.py), and
begin where these say. A wrong label leaves a residual near 1, the right one goes to zero, and the final
residual certifies the answer without the truth. Residuals and questions are weighed alike: down in the few
directions in which any record moves the weights much, which would decide every step.

Memory: 4·b·q·k·d bytes for the answers (b = `functions`, q = `questions`·d) and 12·q·d a target.
The answers are kept in the store, chunk by chunk, so that a stopped run does not ask again.
Cost: q + classes·anchors model trainings once; per target and step a few more and q·d² operations.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from exhume.attacks.informed.flipping_gates import FlippingGates
from exhume.attacks.informed.free_errors import FreeErrors
from exhume.attacks.informed.inversion import FittedThroughTraining
from exhume.attacks.informed.starts import Starts, anchors_within
from exhume.core.contract import (
    Cost,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Records,
    Store,
    silent,
)
from exhume.models.mlp import MLP
from exhume.models.own import fully_connected
from exhume.store.shards import address, cached, digest
from exhume.train.influence import Answers, answer, pushes, trajectories
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch


@dataclass(frozen=True)
class ThroughTraining:
    """Invert the map from the unknown record to the trained weights by Gauss-Newton.

    Sees: `Weights`, r models, each trained on the fixed set and one unknown record.
    Assumes: full-batch descent of an MLP without noise, its initial parameters, the fixed set.
    Guarantees: the confidence is minus the relative residual ||theta - theta(z)|| / ||theta - theta_0||,
    theta_0 trained without the record: near 0, the answer reproduces the release.
    Reference: Balle22 (setting); the method is ours.
    """

    questions: float = 3.0  # covectors asked, times the record's size
    anchors: int = 30  # known records of each label that are put into training once more, at most
    functions: int = 12  # of time, in which a record's influence is written down
    iterations: int = 10
    labels: int = 10  # how many labels to try for a release that none has explained yet
    chunk: int = 32  # targets at once
    memory: int = 4096  # MiB for the answers

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedThroughTraining:
        lacking = knowledge.lacking("recipe", "initial", "fixed")
        if lacking:
            raise NotApplicable(
                f"training cannot be redone without: {', '.join(lacking)}", ever=True
            )
        recipe, initial, fixed = knowledge.recipe, knowledge.initial, knowledge.fixed
        assert initial is not None  # `lacking` has seen to these
        assert fixed is not None
        mlp, descent = self.applies_to(recipe)
        assert recipe is not None
        q, b = int(self.questions * mlp.sizes[0]), min(self.functions, descent.steps)
        started = time.perf_counter()
        starts = Starts.of(
            recipe,
            initial,
            fixed,
            torch.ones_like(initial),
            anchors=self.anchors_of(len(fixed.classes), len(initial)),
            key=key.fold("starts"),
            store=store,
            progress=progress,
        )
        path, end = trajectories(
            mlp, _without_gradient(descent, len(fixed)), initial, fixed, fixed.none_for(1)
        )
        basis = _time_basis(mlp, path[:, 0], fixed[:256], b)
        questions = torch.randn(q, mlp.layout.size, generator=key.fold("questions").generator())
        questions = starts.metric.apply(questions.to(initial) / mlp.layout.size**0.5)
        known = (digest(initial), digest(fixed))
        parts = []
        for done in range(0, q, self.chunk):
            progress("differentiating through training", done, q)
            asked = questions[done : done + self.chunk]
            place = address("adjoint", [self, recipe], known, key, done)
            parts.append(
                cached(store, place, partial(_asked, mlp, descent, path[:, 0], fixed, asked, basis))
            )
        progress("differentiating through training", q, q)
        first = torch.cat([part["first"] for part in parts], 2).to(initial.device)
        rest = torch.cat([part["rest"] for part in parts], 1).to(initial.device)
        answers = Answers(first, rest, basis)
        cost = Cost(time.perf_counter() - started, models=q + 1 + starts.models)
        return FittedThroughTraining(
            self.iterations,
            self.labels,
            self.chunk,
            mlp,
            descent,
            initial,
            fixed,
            starts,
            questions,
            answers,
            FreeErrors(mlp, answers, path[:, 0], end[0], len(fixed) + 1, starts.bounds),
            FlippingGates(mlp, descent, fixed, self.questions, key, progress),
            cost,
            progress,
        )

    def applies_to(self, recipe: object) -> tuple[MLP, Descent]:
        """The network and its descent; raises `NotApplicable` where they cannot be differentiated."""
        mlp, descent = _differentiable(recipe)
        if not mlp.hidden:
            raise NotApplicable("a linear model has a closed form of its own", ever=True)
        needed = self.bytes_of(mlp, descent) >> 20
        if needed > self.memory:
            raise NotApplicable(
                f"the adjoint of this network takes {needed:,} MiB, {self.memory:,} are allowed",
                ever=True,
            )
        return mlp, descent

    def bytes_of(self, mlp: MLP, descent: Descent) -> int:
        """Memory of the answers."""
        q, b = int(self.questions * mlp.sizes[0]), min(self.functions, descent.steps)
        return 4 * b * q * mlp.sizes[0] * mlp.sizes[1]

    def anchors_of(self, classes: int, parameters: int) -> int:
        """How many records of each label are put into training once more, within time and memory."""
        return anchors_within(self.anchors, self.memory, classes, parameters)


def _asked(  # noqa: PLR0917
    mlp: MLP, descent: Descent, path: Tensor, fixed: Records, questions: Tensor, basis: Tensor
) -> dict[str, Tensor]:
    """The answers to some questions, as they are kept."""
    found = answer(mlp, descent, path, fixed, questions=questions, basis=basis)
    return {"first": found.first, "rest": found.rest}


def _without_gradient(descent: Descent, records: int) -> Descent:
    """Training on one record more, which has no gradient: the others count for n of n + 1."""
    share = records / (records + 1)
    decay = descent.weight_decay / share
    return replace(descent, rate=descent.rate * share, weight_decay=decay)


def _differentiable(recipe: object) -> tuple[MLP, Descent]:
    """The parts of a recipe that this attack can differentiate; says why it cannot."""
    mlp = fully_connected(recipe.architecture) if isinstance(recipe, FullBatch) else None
    if not isinstance(recipe, FullBatch) or mlp is None:
        raise NotApplicable(
            f"differentiating is written for full-batch MLPs, not {recipe}", ever=True
        )
    if not isinstance(recipe.descent, Descent):
        raise NotApplicable(
            f"differentiating is written for plain descent, not {recipe}", ever=True
        )
    if recipe.privacy.clips or recipe.privacy.noise:
        raise NotApplicable("private training adds noise the adversary cannot redo", ever=False)
    return mlp, recipe.descent


def _time_basis(mlp: MLP, path: Tensor, records: Records, functions: int) -> Tensor:
    """(steps, b) orthonormal functions of time in which the errors of the fixed records are best written."""
    layers = mlp.layout.split(path)
    before = layers["fc1.weight"] @ records.inputs.flatten(1).T + layers["fc1.bias"][..., None]
    onehot = F.one_hot(records.labels, mlp.outputs).to(path)

    def error(weights: Tensor, first: Tensor, target: Tensor) -> Tensor:
        return pushes(mlp, weights, first, target)[0]

    over_records = vmap(error, in_dims=(None, 1, 0))
    errors = vmap(over_records, in_dims=(0, 0, None))(path, before, onehot)  # (steps, n, k)
    left: Tensor = torch.linalg.svd(errors.flatten(1), full_matrices=False)[0]
    return left[:, :functions].contiguous()
