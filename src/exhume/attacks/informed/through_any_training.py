"""Differentiating through any known training, matrix-free: find the records whose training gives the release.

    min_z ||theta - theta(z)||_M,    J(z) dz ≈ theta - theta(z) by conjugate gradients,    z <- z + a·dz

theta(z) is a real training. J is never formed: products with it and with its transpose go through the
steps of training (train/unrolled.py), so any module that `torch.func` takes will do, with momentum,
weight decay, mini-batches of known order, Adam, schedules, from any start, and several unknown records
at once. A label begins where real trainings on known records say (starts.py); the one that explains the
release is right, and the final residual certifies the answer without the truth. M weighs down the few
directions in which any record moves the weights much: without it they decide every step, and the search
ends in a valley.

Cost, in trainings: classes·anchors once; a release some 3·products a Gauss-Newton step, at most
`trainings` in all. Where d questions are affordable and releases are many, `ThroughTraining` is
cheaper: its adjoint is shared by all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.informed.jumping_gates import JumpingGates, gates_fit
from exhume.attacks.informed.starts import Guess, Starts, Whitening, anchors_within
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.attacks.releases import weights_of
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
    silent,
)
from exhume.models.own import fully_connected
from exhume.store.shards import address, cached, digest
from exhume.train.krylov import Solved, least_squares
from exhume.train.unrolled import Path, Unknown, Unrolled, check_differentiable, unroll

_CONVERGED = 1e-2  # relative residual below which the records explain the release
_EXACT = 5e-5  # and below which nothing is left to explain in single precision
_TRIAL = 2  # steps for each label that may be right
_PROMISING = 0.75  # relative residual after them below which no other label is tried
_HOPELESS = 0.98  # and above which a label is given up, if another did better
_LENGTHS = (1.0, 0.4, 0.15)
_WORTH = 0.99  # of the residual: what a step must leave at most
_WELL = 0.4  # and with which no other is tried
_LEFT = 0.03  # of the linear residual: where the solver may stop
_NEAR = 0.4  # relative residual from which jumping gates are what is left
_PROBE = 0.1  # of the way to the label's mean: a step that shows how gates move
_ERROR = 0.3  # of the records' own deviation, times the residual: how far a guess is off
_WIDTHS = (0.3, 3.0, 0.03)  # of smoothed gates, in standard deviations, for a guess of residual 1


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
    ) -> FittedThroughAnyTraining:
        if lacking := knowledge.lacking("recipe", "initial", "fixed"):
            raise NotApplicable(
                f"training cannot be redone without: {', '.join(lacking)}", ever=True
            )
        recipe, initial, fixed = knowledge.recipe, knowledge.initial, knowledge.fixed
        assert recipe is not None  # `lacking` has seen to these
        assert initial is not None
        assert fixed is not None
        unrolled = unroll(recipe, initial, fixed, self.unknown, memory=self.memory)
        started = time.perf_counter()
        starts = Starts.of(
            recipe,
            initial,
            fixed,
            unrolled.live,
            anchors=self.anchors_of(len(fixed.classes), len(initial)),
            key=key.fold("starts"),
            store=store,
            progress=progress,
        )
        white = None
        if len(fixed.shape) == 3 and fully_connected(recipe.architecture) is None:
            white = Whitening.of(fixed.inputs)
        cost = Cost(time.perf_counter() - started, models=starts.models)
        return FittedThroughAnyTraining(
            self, recipe, unrolled, starts, white, key, store, cost, progress
        )

    def anchors_of(self, classes: int, parameters: int) -> int:
        """How many records of each label are put into training once more, within time and memory."""
        return anchors_within(self.anchors, self.memory, classes, parameters)

    def cost(self, classes: int, releases: int, parameters: int = 0) -> int:
        """What it costs at most, counted in trainings of one model."""
        return 1 + classes * self.anchors_of(classes, parameters) + releases * self.trainings


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


@dataclass(eq=False)
class _Count:
    """Trainings' worth of work done so far."""

    models: float = 0.0


@dataclass(frozen=True, eq=False)
class _Release:
    parameters: Tensor  # (p,)
    apart: float  # from what can be guessed without a search: the unit of residuals


@dataclass(frozen=True, eq=False)
class FittedThroughAnyTraining:
    """Ready for every release of the same recipe, start and fixed set."""

    settings: ThroughAnyTraining
    recipe: Recipe
    unrolled: Unrolled
    starts: Starts
    white: Whitening | None
    key: Key
    store: Store
    cost: Cost
    progress: Progress

    @property
    def live(self) -> Tensor:
        """(p,) 1 where training follows a gradient, 0 for running statistics."""
        return self.unrolled.live

    def run(self, releases: Release) -> Reconstruction:
        shape, who, whose = self.unrolled.fixed.shape, "this attack", "the recipe's model has"
        size = len(self.unrolled.initial)
        released = weights_of(releases, shape, size, who=who, whose=whose)
        if isinstance(released, Reconstruction):
            return released
        started, found = time.perf_counter(), []
        total = len(released.parameters)
        for done, one in enumerate(released.parameters):
            self.progress("differentiating through training", done, total)
            found.append(self._kept(one))
        self.progress("differentiating through training", total, total)
        residual = torch.stack([part["residual"] for part in found])
        explained = float((residual < _CONVERGED).double().mean())
        status = Outcome.CONVERGED if explained == 1 else Outcome.STOPPED_EARLY
        reason = "" if explained == 1 else f"{explained:.0%} of the releases are explained to 1%"
        spent = float(sum(part["models"] for part in found))
        return Reconstruction(
            candidates=torch.stack([part["inputs"] for part in found]),
            confidence=-residual[:, None].expand(-1, self.settings.unknown).to(torch.float32),
            status=Status(status, reason),
            cost=Cost(
                self.cost.seconds + time.perf_counter() - started, self.cost.models + round(spent)
            ),
            labels=torch.stack([part["labels"] for part in found]),
            observed={
                "residual": float(residual.median()),
                "explained": explained,
                "trainings": self.cost.models + spent,
            },
        )

    def _kept(self, released: Tensor) -> dict[str, Tensor]:
        """One release's answer, from the store if it is there."""
        fixed, start = self.unrolled.fixed, self.unrolled.initial
        inputs = (digest(fixed), digest(start), digest(released))
        place = address("through any training", [self.settings, self.recipe], inputs, self.key, 0)
        return dict(cached(self.store, place, lambda: self._invert(released)))

    def _invert(self, released: Tensor) -> dict[str, Tensor]:
        """A few steps for some labels, then those that came closest to the end; then the next labels."""
        count, apart = _Count(), self.starts.distance(released)
        waiting = self.starts.ranked(released, self.settings.unknown)
        best, least = waiting[0], float("inf")
        while waiting and least >= _CONVERGED and count.models <= self.settings.trainings:
            for found, residual in self._search(_Release(released, apart), waiting, count):
                if residual < least:
                    best, least = found, residual
        return {
            "inputs": best.inputs,
            "labels": best.labels,
            "residual": torch.tensor(least, dtype=torch.float64),
            "models": torch.tensor(count.models, dtype=torch.float64),
        }

    def _search(
        self, released: _Release, waiting: list[Guess], count: _Count
    ) -> Iterator[tuple[Guess, float]]:
        """Takes the next few of those that wait."""
        tried = list[tuple[Guess, float]]()
        while waiting and len(tried) < self.settings.labels:
            begun = self._begun(released, waiting.pop(0), count)
            tried.append(self._descend(released, *begun, _TRIAL, count))
            if tried[-1][1] < _PROMISING:
                break
        tried.sort(key=lambda one: one[1])
        yield tried[0]
        for begun in tried:
            if begun[1] > _HOPELESS or count.models > self.settings.trainings:
                return
            found = self._descend(released, *begun, self.settings.iterations - _TRIAL, count)
            yield found
            if found[1] < _CONVERGED:
                return

    def _begun(self, released: _Release, guess: Guess, count: _Count) -> tuple[Guess, float]:
        """The start of a label whose real training comes closest."""
        starts = [guess, *self.starts.others(released.parameters, guess)]
        residuals = [self._residual(released, start, count) for start in starts]
        nearest = self.starts.nearest(residuals)
        return starts[nearest], residuals[nearest]

    # Gauss-Newton

    def _descend(
        self, released: _Release, guess: Guess, residual: float, iterations: int, count: _Count
    ) -> tuple[Guess, float]:
        for _ in range(iterations):
            if residual < _EXACT or count.models > self.settings.trainings:
                break
            moved = None
            for step in self._steps(released, guess, residual, count):
                moved = self._best(released, guess, residual, step, count)
                if moved is not None:
                    break
            if moved is None:
                break
            guess, residual = moved
        return guess, residual

    def _steps(
        self, released: _Release, guess: Guess, residual: float, count: _Count
    ) -> Iterator[Solved]:
        """(e, *shape) by conjugate gradients on the linearised training; several where gates jump."""
        free, gates = self.unrolled.freed()
        jumping = gates > 0 and gates_fit(free)
        if jumping and residual < _NEAR:
            yield self._among_gates(free, released, guess, residual, count)
        for factor in _WIDTHS:
            unrolled, _ = self.unrolled.smoothed(factor * min(1.0, residual))
            path = unrolled.train(Unknown(guess.inputs, guess.labels))
            forward, adjoint = self._products(unrolled, path)
            solved = least_squares(
                forward,
                adjoint,
                self._weighed(released.parameters - path.end),
                iterations=self.settings.products,
                left=_LEFT,
            )
            count.models += 1 + 3 * solved.iterations
            step, *earlier = (
                self._coloured(one.view_as(guess.inputs)) for one in (solved.step, *solved.earlier)
            )
            yield replace(solved, step=step, earlier=tuple(earlier))
            if not gates:
                return
        if jumping and residual >= _NEAR:
            yield self._among_gates(free, released, guess, residual, count)

    def _among_gates(
        self, free: Unrolled, released: _Release, guess: Guess, residual: float, count: _Count
    ) -> Solved:
        """With every gate near its kink as an unknown of its own."""
        centre = self.starts.means[guess.labels]
        probe = guess.inputs + _PROBE * (centre - guess.inputs)
        here, there = (Unknown(inputs, guess.labels) for inputs in (guess.inputs, probe))
        gates = JumpingGates.of(free, here, there, released.parameters)
        deviation = _ERROR * residual
        if self.white is None:
            deviation *= float(free.fixed.inputs.std())
        solved = gates.step(
            self._weighed(released.parameters - gates.path.end),
            deviation,
            self._weighed,
            self._coloured,
            iterations=self.settings.gate_products,
        )
        count.models += 2 + 4 * solved.iterations
        return solved

    def _products(self, unrolled: Unrolled, path: Path) -> tuple[Callable[[Tensor], Tensor], ...]:
        guess = path.guess

        def forward(step: Tensor) -> Tensor:
            along = Unknown(self._coloured(step.view_as(guess.inputs)), guess.targets)
            return self._weighed(unrolled.forward(path, along))

        def adjoint(cotangent: Tensor) -> Tensor:
            found = unrolled.adjoint(path, self._weighed(cotangent))
            return self._coloured(found.inputs).flatten()

        return forward, adjoint

    def _weighed(self, change: Tensor) -> Tensor:
        return self.starts.metric.apply(change * self.live)

    def _coloured(self, white: Tensor) -> Tensor:
        return white if self.white is None else self.white.apply(white)

    def _best(
        self, released: _Release, guess: Guess, residual: float, solved: Solved, count: _Count
    ) -> tuple[Guess, float] | None:
        """The whole step if it goes well; else the best of it, of what the solver had before, and of parts.

        None: no training comes closer to the release.
        """
        best: tuple[Guess, float] | None = None
        for step in (solved.step, *solved.earlier):
            for length in _LENGTHS:
                inputs = (guess.inputs + length * step).clamp(*self.starts.bounds)
                tried = Guess(inputs, guess.labels, guess.left)
                left = self._residual(released, tried, count)
                if left < (_WORTH * residual if best is None else best[1]):
                    best = tried, left
                if left < _WELL * residual:
                    return tried, left
        return best

    def _residual(self, released: _Release, guess: Guess, count: _Count) -> float:
        """||theta - theta(z)|| / ||theta - theta_0||, by training on the guess."""
        unrolled = self.unrolled
        extra = Records(guess.inputs[None], guess.labels[None], unrolled.fixed.classes)
        trained = self.recipe.fit(unrolled.initial, unrolled.fixed, extra, self.key)[0]
        count.models += 1
        return float(self._weighed(released.parameters - trained).norm()) / released.apart
