"""Differentiating through any known training, matrix-free: find the records whose training gives the release.

    min_z ||theta - theta(z)||,      J(z) dz ≈ theta - theta(z) by conjugate gradients,      z <- z + a·dz

theta(z) is a real training. J is never formed: products with it and with its transpose go through the
steps of training (train/unrolled.py), so any module that `torch.func` takes will do, with momentum,
weight decay, mini-batches of known order, Adam, schedules, from any start, and several unknown records
at once. A label begins where a few real trainings say (starts.py); the one that explains the release
best is right, and the final residual certifies the answer without the truth. Of a regression the
unknown number is one more coordinate.

Cost, in trainings: classes·(1 + directions) once; a release some 3·products a Gauss-Newton step, at
most `trainings` in all. Where d questions are affordable and releases are many, `ThroughTraining` is
cheaper: its adjoint is shared by all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.informed.jumping_gates import JumpingGates, gates_fit
from exhume.attacks.informed.starts import Guess, Starts
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.attacks.releases import weights_of
from exhume.contract import (
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
from exhume.models.own.architecture import fully_connected
from exhume.store import address, cached, digest
from exhume.train.krylov import least_squares
from exhume.train.unrolled import Path, Unknown, Unrolled
from exhume.train.unrolling import check_differentiable, unroll
from exhume.train.whitening import Whitening

__all__ = ["FittedThroughAnyTraining", "ThroughAnyTraining", "through_training_of"]

_CONVERGED = 1e-2  # relative residual below which the records explain the release
_EXACT = 1e-5  # and below which nothing is left to explain in single precision
_TRIAL = 2  # steps for each label that may be right
_PROMISING = 0.1  # relative residual after them below which no other label is tried
_HOPELESS = 0.5  # and above which a label is given up, if another did better
_LENGTHS = (1.0, 0.5, 0.2)
_WORTH = 0.97  # of the residual: what a step must leave at most
_LEFT = 0.03  # of the linear residual: where the solver may stop
_NEAR = 0.35  # relative residual from which jumping gates are what is left
_PROBE = 0.1  # of the way to the label's mean: a step that shows how gates move
_ERROR = 0.3  # of the records' own deviation, times the residual: how far a guess is off
_WIDTHS = (0.3, 3.0, 0.03)  # of smoothed gates, in standard deviations, for a guess of residual 1


@dataclass(frozen=True)
class ThroughAnyTraining:
    """Invert the map from unknown records to trained weights, whatever the network and its optimiser.

    Sees: `Weights`, r models, each trained on the fixed set and `unknown` records more.
    Assumes: the recipe with the order of its batches, the initial parameters, the fixed set; no noise.
    Guarantees: the confidence is minus the relative residual ||theta - theta(z)|| / ||theta - theta_0||,
    theta_0 trained without the records: near 0, the answer reproduces the release.
    Reference: Balle22 (setting); the method is ours.
    """

    unknown: int = 1  # records that are missing
    iterations: int = 12  # of Gauss-Newton
    products: int = 30  # of conjugate gradients in each
    gate_products: int = 150  # in those that have gates among their unknowns
    directions: int = 6  # for each label in which its start is sought
    labels: int = 3  # choices of labels that are tried in full
    trainings: int = (
        1200  # a release may cost, products with the derivative included; begun steps are ended
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
            directions=self.directions,
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

    def cost(self, classes: int, releases: int) -> int:
        """What it costs at most, counted in trainings of one model."""
        return 1 + classes * (1 + self.directions) + releases * self.trainings


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
        """A few steps for each label that may be right, then those that came closest to the end."""
        count, tried = _Count(), list[tuple[Guess, float]]()
        for guess in self._ordered(released, count):
            tried.append(self._descend(released, guess, _TRIAL, count))
            if tried[-1][1] < _PROMISING:
                break
        tried.sort(key=lambda one: one[1])
        best, least = tried[0]
        for guess, before in tried:
            if before > _HOPELESS and before > least:
                break
            found, residual = self._descend(
                released, guess, self.settings.iterations - _TRIAL, count
            )
            if residual < least:
                best, least = found, residual
            if residual < _CONVERGED or count.models > self.settings.trainings:
                break
        return {
            "inputs": best.inputs,
            "labels": best.labels,
            "residual": torch.tensor(least, dtype=torch.float64),
            "models": torch.tensor(count.models, dtype=torch.float64),
        }

    def _ordered(self, released: Tensor, count: _Count) -> list[Guess]:
        """The best few starts, by a real training on each."""
        ranked = self.starts.ranked(released, self.settings.unknown, self.live)[
            : 2 * self.settings.labels
        ]
        lefts = [self._residual(released, guess, count) for guess in ranked]
        order = sorted(range(len(ranked)), key=lambda i: lefts[i])
        return [ranked[i] for i in order[: self.settings.labels]]

    # Gauss-Newton

    def _descend(
        self, released: Tensor, guess: Guess, iterations: int, count: _Count
    ) -> tuple[Guess, float]:
        residual = self._residual(released, guess, count)
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
        self, released: Tensor, guess: Guess, residual: float, count: _Count
    ) -> Iterator[Tensor]:
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
                (released - path.end) * self.live,
                iterations=self.settings.products,
                left=_LEFT,
            )
            count.models += 1 + 3 * solved.iterations
            yield self._coloured(solved.step.view_as(guess.inputs))
            if not gates:
                return
        if jumping and residual >= _NEAR:
            yield self._among_gates(free, released, guess, residual, count)

    def _among_gates(
        self, free: Unrolled, released: Tensor, guess: Guess, residual: float, count: _Count
    ) -> Tensor:
        """With every gate near its kink as an unknown of its own."""
        centre = self.starts.means[[self.starts.labels.index(int(i)) for i in guess.labels]]
        probe = guess.inputs + _PROBE * (centre - guess.inputs)
        here, there = (Unknown(inputs, guess.labels) for inputs in (guess.inputs, probe))
        gates = JumpingGates.of(free, here, there, released)
        deviation = _ERROR * residual
        if self.white is None:
            deviation *= float(free.fixed.inputs.std())
        right = (released - gates.path.end) * self.live
        solved = gates.step(
            right, deviation, self.live, self._coloured, iterations=self.settings.gate_products
        )
        count.models += 2 + 4 * solved.iterations
        return solved.step

    def _products(self, unrolled: Unrolled, path: Path) -> tuple[Callable[[Tensor], Tensor], ...]:
        guess = path.guess

        def forward(step: Tensor) -> Tensor:
            along = Unknown(self._coloured(step.view_as(guess.inputs)), guess.targets)
            return self.live * unrolled.forward(path, along)

        def adjoint(cotangent: Tensor) -> Tensor:
            found = unrolled.adjoint(path, self.live * cotangent)
            return self._coloured(found.inputs).flatten()

        return forward, adjoint

    def _coloured(self, white: Tensor) -> Tensor:
        return white if self.white is None else self.white.apply(white)

    def _best(
        self, released: Tensor, guess: Guess, residual: float, step: Tensor, count: _Count
    ) -> tuple[Guess, float] | None:
        """The longest step whose training comes closer to the release; None: there is none."""
        for length in _LENGTHS:
            inputs = (guess.inputs + length * step).clamp(*self.starts.bounds)
            tried = Guess(inputs, guess.labels, guess.left)
            left = self._residual(released, tried, count)
            if left < _WORTH * residual:
                return tried, left
        return None

    def _residual(self, released: Tensor, guess: Guess, count: _Count) -> float:
        """||theta - theta(z)|| / ||theta - theta_0||, by training on the guess."""
        unrolled = self.unrolled
        extra = Records(guess.inputs[None], guess.labels[None], unrolled.fixed.classes)
        trained = self.recipe.fit(unrolled.initial, unrolled.fixed, extra, self.key)[0]
        count.models += 1
        moved = ((released - self.starts.base) * self.live).norm().clamp_min(1e-30)
        return float(((released - trained) * self.live).norm() / moved)
