"""Differentiating through training: find the records whose training gives the release.

    min_z ||theta - theta(z)||_M,    J(z) dz ≈ theta - theta(z),    z <- z + a·dz

No shadow models and no data beyond the fixed set: training is a known, deterministic map from the unknown
records z to the weights theta(z), and Gauss-Newton inverts it. theta(z) is a real training, so the residual
is exact and J only has to be good enough to converge. There is one search, with two linearisations
(linearisations.py):

- `SharedAdjoint`, for full-batch descent of an MLP: questions about the weights are answered once, for all
  releases and labels, by the adjoint of training; J is then a matrix.
- `MatrixFree`, for any training that is known step by step, from any start, and for several unknown records
  at once: products with J and its transpose go through the steps of training. It also finishes what the
  shared adjoint begins where a network has kinks: gates near them are unknowns of their own.

A label begins where real trainings on known records say (starts.py); the one that explains the release is
right, and the final residual certifies the answer without the truth. M weighs down the few directions in
which any record moves the weights much: without it they decide every step, and the search ends in a valley.

Cost, in trainings: classes·anchors once, and 3·d for the shared adjoint; some 3·products a matrix-free step
and 4 a step of the adjoint, at most `trainings` a release. Finished releases are kept in the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from exhume.attacks.informed.linearisations import MatrixFree, SharedAdjoint
from exhume.attacks.informed.starts import Guess, Spent, Starts, Target, Whitening, anchors_within
from exhume.attacks.releases import OneEach, read_weights
from exhume.core.contract import (
    Cost,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Recipe,
    Reconstruction,
    Records,
    Release,
    Status,
    Store,
    Weights,
    silent,
)
from exhume.models.activations import activation
from exhume.models.mlp import MLP
from exhume.models.own import fully_connected
from exhume.store.shards import address, cached, digest
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.unrolled import check_differentiable, free_gates, unroll

Linearisation = SharedAdjoint | MatrixFree
_CONVERGED = 1e-2  # relative residual below which the records explain the release
_ASKED = 1.4  # trainings that an answer of the shared adjoint takes
_READ = 1e8  # bytes of the adjoint that take a release a second: it reads them some hundred times
_STEP = 2e-3  # seconds of a step at least, with its derivative
_USUAL = 300  # trainings of a release, matrix-free and without kinks
_TRIAL = 2  # steps for each label that may be right
_PROMISING = 0.75  # relative residual after them below which no other label is tried
_HOPELESS = 0.98  # and above which a label is given up, if another did better
_WORTH = 0.99  # of the residual: what a step must leave at most
_WELL = 0.4  # and with which no other is tried


@dataclass(frozen=True)
class ThroughTraining:
    """Invert the map from the unknown record to the trained weights, with one adjoint for all releases.

    Sees: `Weights`, r models, each trained on the fixed set and one unknown record.
    Assumes: full-batch descent of an MLP without noise, its initial parameters, the fixed set.
    Guarantees: the confidence is minus the relative residual ||theta - theta(z)|| / ||theta - theta_0||,
    theta_0 trained without the record: near 0, the answer reproduces the release.
    Reference: Balle22 (setting); the method is ours.
    """

    unknown: ClassVar[int] = 1  # records that are missing
    questions: float = 3.0  # covectors asked, times the record's size
    anchors: int = 30  # known records of each label that are put into training once more, at most
    functions: int = 12  # of time, in which a record's influence is written down
    iterations: int = 12  # of Gauss-Newton
    labels: int = 3  # that are tried together; further ones if none explains the release
    trainings: int = 150  # a release may cost, before its gates; begun steps are ended
    chunk: int = 32  # questions at once
    memory: int = 4096  # MiB for the answers, and for the states and graphs of a training

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedThroughTraining:
        recipe, initial, fixed = known = _known(knowledge)
        mlp, descent = self.applies_to(recipe)
        started = time.perf_counter()
        starts = _starts(self, known, torch.ones_like(initial), key, store, progress)
        adjoint = SharedAdjoint.of(
            mlp,
            descent,
            initial,
            fixed,
            starts,
            questions=int(self.questions * mlp.sizes[0]),
            functions=min(self.functions, descent.steps),
            chunk=self.chunk,
            trainings=self.trainings,
            key=key,
            store=store,
            progress=progress,
        )
        linearisations: list[Linearisation] = [adjoint]
        if activation(mlp.activation).curve is None:
            unrolled = unroll(recipe, initial, fixed, memory=self.memory)
            unrolled = replace(unrolled, progress=progress)
            linearisations.append(MatrixFree(unrolled, starts))
        cost = Cost(time.perf_counter() - started, len(adjoint.questions) + 1 + starts.models)
        return FittedThroughTraining(
            self, recipe, initial, fixed, starts, tuple(linearisations), key, store, cost, progress
        )

    def applies_to(self, recipe: object) -> tuple[MLP, Descent]:
        """The network and its descent; raises `NotApplicable` where they cannot be differentiated."""
        mlp = fully_connected(recipe.architecture) if isinstance(recipe, FullBatch) else None
        if not isinstance(recipe, FullBatch) or mlp is None:
            raise NotApplicable(
                f"differentiating is written for full-batch MLPs, not {recipe}", ever=True
            )
        if not isinstance(recipe.descent, Descent) or recipe.descent.schedule != "constant":
            raise NotApplicable(
                f"differentiating is written for plain descent, not {recipe}", ever=True
            )
        check_differentiable(recipe)
        if not mlp.hidden:
            raise NotApplicable("a linear model has a closed form of its own", ever=True)
        needed = self.bytes_of(mlp, recipe.descent) >> 20
        if needed > self.memory:
            raise NotApplicable(
                f"the adjoint of this network takes {needed:,} MiB, {self.memory:,} are allowed",
                ever=True,
            )
        return mlp, recipe.descent

    def bytes_of(self, mlp: MLP, descent: Descent) -> int:
        """Memory of the answers."""
        q, b = int(self.questions * mlp.sizes[0]), min(self.functions, descent.steps)
        return 4 * b * q * mlp.sizes[0] * mlp.sizes[1]

    def seconds(self, recipe: Recipe, classes: int, per_model: float) -> tuple[float, float]:
        """Before any release, and for each, where a training takes `per_model`."""
        mlp, descent = self.applies_to(recipe)
        anchors = classes * anchors_within(self.anchors, self.memory, classes, mlp.layout.size)
        each = self.trainings
        if activation(mlp.activation).curve is None:
            each += ThroughAnyTraining.trainings
        before = per_model * (_ASKED * self.questions * mlp.sizes[0] + anchors)
        alone = each - self.trainings  # one after another, so that a step takes its least
        more = _STEP * descent.steps * alone + self.bytes_of(mlp, descent) / _READ
        return before, per_model * each + more


@dataclass(frozen=True)
class ThroughAnyTraining:
    """Invert the map from unknown records to trained weights, whatever the network and its optimiser.

    Sees: `Weights`, r models, each trained on the fixed set and `unknown` records more.
    Assumes: the recipe with the order of its batches, the initial parameters, the fixed set; no noise.
    Guarantees: the confidence is minus the relative residual ||theta - theta(z)|| / ||theta - theta_0||,
    theta_0 the nearest that can be had without a search (trained without the records, or the mean training
    of a label): near 0, the answer reproduces the release.
    Reference: Balle22 (setting); the method is ours.
    """

    unknown: int = 1  # records that are missing
    iterations: int = 12  # of Gauss-Newton
    products: int = 30  # of conjugate gradients in each
    gate_products: int = 150  # in those that have gates among their unknowns
    anchors: int = 30  # known records of each label that are put into training once more, at most
    labels: int = (
        3  # choices of labels that are tried together; further ones if none explains the release
    )
    trainings: int = (
        2000  # a release may cost, products with the derivative included; begun steps are ended
    )
    memory: int = 1024  # MiB for the states and graphs of a training

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedThroughTraining:
        recipe, initial, fixed = known = _known(knowledge)
        unrolled = unroll(recipe, initial, fixed, self.unknown, memory=self.memory)
        unrolled = replace(unrolled, progress=progress)
        started = time.perf_counter()
        starts = _starts(self, known, unrolled.live, key, store, progress)
        white = None
        if len(fixed.shape) == 3 and fully_connected(recipe.architecture) is None:
            white = Whitening.of(fixed.inputs)
        linear = MatrixFree(
            unrolled, starts, white, self.products, self.gate_products, self.trainings
        )
        cost = Cost(time.perf_counter() - started, models=starts.models)
        return FittedThroughTraining(
            self, recipe, initial, fixed, starts, (linear,), key, store, cost, progress
        )

    def seconds(self, recipe: Recipe, classes: int, per_model: float) -> tuple[float, float]:
        """Before any release, and for each, where a training takes `per_model`."""
        network, steps = recipe.architecture, len(_rates_of(recipe))
        size = network.layout.size
        before = 1 + classes * anchors_within(self.anchors, self.memory, classes, size)
        kinks = free_gates(network.build())[1]
        each = self.trainings if kinks else _USUAL
        return per_model * before, each * (per_model + _STEP * steps)


def _rates_of(recipe: Recipe) -> list[float]:
    """Rate of each step of a training that can be differentiated."""
    check_differentiable(recipe)
    assert isinstance(recipe, FullBatch | MiniBatch)  # nothing else passes
    return recipe.descent.rates


def through_training_of(recipe: object) -> ThroughTraining | ThroughAnyTraining:
    """The attack that differentiates through a recipe: with one adjoint for all releases, or matrix-free.

    Raises `NotApplicable` where neither does.
    """
    try:
        ThroughTraining().applies_to(recipe)
    except NotApplicable:
        check_differentiable(recipe)
        return ThroughAnyTraining()
    return ThroughTraining()


def _known(knowledge: Knowledge) -> tuple[Any, ...]:
    names = ("recipe", "initial", "fixed")
    if lacking := knowledge.lacking(*names):
        raise NotApplicable(f"training cannot be redone without: {', '.join(lacking)}", ever=True)
    return knowledge.require("redoing training", *names)


def _starts(  # noqa: PLR0917
    settings: ThroughTraining | ThroughAnyTraining,
    known: tuple[Any, ...],
    live: Tensor,
    key: Key,
    store: Store,
    progress: Progress,
) -> Starts:
    (recipe, initial, fixed), key = known, key.fold("starts")
    most = anchors_within(settings.anchors, settings.memory, len(fixed.classes), len(initial))
    return Starts.of(
        recipe, initial, fixed, live, anchors=most, key=key, store=store, progress=progress
    )


@dataclass(frozen=True, eq=False)
class FittedThroughTraining:
    """Ready for every release of the same recipe, start and fixed set."""

    settings: ThroughTraining | ThroughAnyTraining
    recipe: Recipe
    initial: Tensor
    fixed: Records
    starts: Starts
    linearisations: tuple[Linearisation, ...]
    key: Key
    store: Store
    cost: Cost
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        shape, who, whose = self.fixed.shape, "this attack", "the recipe's model has"
        result = read_weights(
            releases, shape, len(self.initial), self._answer, self.cost, who=who, whose=whose
        )
        if result.status.outcome is Outcome.NOT_APPLICABLE:
            return result
        share, cost = result.observed["explained"], result.cost.seconds
        status = Status(Outcome.STOPPED_EARLY, f"{share:.0%} of the releases are explained to 1%")
        return replace(
            result,
            status=result.status if share == 1 else status,
            cost=Cost(cost, round(result.observed["trainings"])),
        )

    def _answer(self, releases: Weights) -> OneEach:
        """One release after the other, from the store if its answer is there."""
        answers, total = [], len(releases.parameters)
        for done, released in enumerate(releases.parameters):
            self.progress("differentiating through training", done, total)
            given = (digest(self.fixed), digest(self.initial), digest(released))
            config = [self.settings, self.recipe]
            place = address("through any training", config, given, self.key, 0)
            answers.append(cached(self.store, place, partial(self._invert, released)))
        self.progress("differentiating through training", total, total)
        inputs, labels, residual, spent = (
            torch.stack([answer[name] for answer in answers])
            for name in ("inputs", "labels", "residual", "models")
        )
        observed = {
            "residual": float(residual.median()),
            "explained": float((residual < _CONVERGED).double().mean()),
            "trainings": self.cost.models + float(spent.sum()),
        }
        return inputs, -residual[:, None].expand(labels.shape).float(), labels, observed

    # The search

    def _invert(self, released: Tensor) -> dict[str, Tensor]:
        """The records that explain a release best; the other linearisations go on where the first ends."""
        first, *others = self.linearisations
        target, spent = Target(released, self.starts.distance(released)), Spent()
        waiting = self.starts.ranked(released, self.settings.unknown)
        best, least = waiting[0], float("inf")
        if isinstance(first, SharedAdjoint):
            best = first.begin(released, waiting, self.settings.iterations)
            least = self._residual(target, best, spent)
            best, least = self._descend(first, target, best, least, spent)
        while waiting and least >= _CONVERGED and spent.models <= first.trainings:
            for guess, residual in self._among_labels(target, waiting, spent):
                if residual < least:
                    best, least = guess, residual
        for linear in others:
            best, least = self._descend(linear, target, best, least, spent)
        return {
            "inputs": best.inputs,
            "labels": best.labels,
            "residual": torch.tensor(least, dtype=torch.float64),
            "models": torch.tensor(spent.models, dtype=torch.float64),
        }

    def _among_labels(
        self, target: Target, waiting: list[Guess], spent: Spent
    ) -> Iterator[tuple[Guess, float]]:
        """A few steps for the next few labels that wait, then those that came closest to the end."""
        linear, tried = self.linearisations[0], list[tuple[Guess, float]]()
        while waiting and len(tried) < self.settings.labels:
            guess = waiting.pop(0)  # and the start of its labels whose real training comes closest
            starts = [guess, *self.starts.others(target.parameters, guess)]
            residuals = [self._residual(target, start, spent) for start in starts]
            nearest = self.starts.nearest(residuals)
            begun = starts[nearest], residuals[nearest]
            tried.append(self._descend(linear, target, *begun, spent, trial=True))
            if tried[-1][1] < _PROMISING:
                break
        tried.sort(key=lambda pair: pair[1])
        yield tried[0]
        for guess, residual in tried:
            if residual > _HOPELESS or spent.models > linear.trainings:
                return
            ended = self._descend(linear, target, guess, residual, spent)
            yield ended
            if ended[1] < _CONVERGED:
                return

    def _descend(
        self,
        linear: Linearisation,
        target: Target,
        guess: Guess,
        residual: float,
        spent: Spent,
        *,
        trial: bool = False,
    ) -> tuple[Guess, float]:
        """Gauss-Newton: of each linearisation the first step that comes closer to the release."""
        for _ in range(_TRIAL if trial else self.settings.iterations - _TRIAL):
            if residual < linear.exact or spent.models > linear.trainings:
                break
            moved = None
            for step in linear.steps(target, guess, residual, spent):
                moved = self._best(target, step, residual, spent)
                if moved is not None:
                    break
            if moved is None:
                break
            guess, residual = moved
        return guess, residual

    def _best(
        self, target: Target, step: Iterable[Guess], residual: float, spent: Spent
    ) -> tuple[Guess, float] | None:
        """The first guess of a step that goes well, else the best; None: none comes closer to the release."""
        best: tuple[Guess, float] | None = None
        for guess in step:
            left = self._residual(target, guess, spent)
            if left < (_WORTH * residual if best is None else best[1]):
                best = guess, left
            if left < _WELL * residual:
                break
        return best

    def _residual(self, target: Target, guess: Guess, spent: Spent) -> float:
        """||theta - theta(z)|| / ||theta - theta_0||, by training on the guess."""
        extra = Records(guess.inputs[None], guess.labels[None], self.fixed.classes)
        trained = self.recipe.fit(self.initial, self.fixed, extra, self.key)[0]
        spent.models += 1
        return float(self.starts.weighed(target.parameters - trained).norm()) / target.apart
