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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from exhume.attacks.informed.free_errors import FreeErrors
from exhume.attacks.informed.normal import Normal
from exhume.attacks.informed.record_jacobian import record_jacobian
from exhume.attacks.informed.starts import Guess, Starts, anchors_within
from exhume.attacks.releases import weights_of
from exhume.contract import (
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
from exhume.models.mlp import MLP
from exhume.models.own.architecture import fully_connected
from exhume.store import address, cached, digest
from exhume.train.influence import Answers, answer, pushes, trajectories
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

__all__ = ["FittedThroughTraining", "ThroughTraining"]

_DAMPINGS = (10.0, 1.0, 0.1)  # tried around the current one, all trained side by side
_FIRST_DAMPING, _LEAST_DAMPING = 1e-2, 1e-10  # relative to the mean square of J's columns
_CONVERGED = 1e-2  # relative residual below which the record explains the release
_SETTLED = 1e-3  # and below which an iteration that does not get on any more has met rounding
_EXACT = 1e-6  # and below which nothing is left to explain in single precision
_ON = 0.8  # of the residual before: what getting on means
_TRIAL = 3  # steps after which a label must look right
_PROMISING = 0.75  # relative residual that does
_FREED = 3  # labels from whose starts errors are left free
_ANCHORED, _ANCHORS = 2, 5  # labels whose nearest anchors are tried besides, and how many of them


_State = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # z, theta, path, residual, damping


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
            self,
            mlp,
            descent,
            initial,
            fixed,
            starts,
            questions,
            answers,
            FreeErrors(mlp, answers, path[:, 0], end[0], len(fixed) + 1, starts.bounds),
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


@dataclass(frozen=True, eq=False)
class _Released:
    parameters: Tensor  # (m, p)
    apart: Tensor  # (m,) how far from what can be guessed without a search: the unit of residuals

    def __getitem__(self, rows: Tensor) -> _Released:
        return _Released(self.parameters[rows], self.apart[rows])

    def left(self, trained: Tensor, starts: Starts) -> Tensor:
        """(m, p) to relative residuals (m,)."""
        missing = starts.metric.apply(self.parameters - trained)
        relative: Tensor = missing.norm(dim=1) / self.apart
        return relative


@dataclass(frozen=True, eq=False)
class _Found:
    records: Tensor  # (m, d)
    labels: Tensor  # (m,)
    residual: Tensor  # (m,)

    def __getitem__(self, rows: Tensor) -> _Found:
        return _Found(self.records[rows], self.labels[rows], self.residual[rows])

    def take(self, rows: Tensor, found: _Found) -> None:
        """What is better in some rows."""
        wins = found.residual < self.residual[rows]
        self.records[rows[wins]] = found.records[wins]
        self.labels[rows[wins]] = found.labels[wins]
        self.residual[rows[wins]] = found.residual[wins]


@dataclass(frozen=True, eq=False)
class FittedThroughTraining:
    """Ready for every release of the same recipe, start and fixed set."""

    settings: ThroughTraining
    mlp: MLP
    descent: Descent
    initial: Tensor
    fixed: Records
    starts: Starts
    questions: Tensor  # (q, p)
    answers: Answers
    free: FreeErrors
    cost: Cost
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        shape, who, whose = self.fixed.shape, "this attack", "the recipe's model has"
        released = weights_of(releases, shape, len(self.initial), who=who, whose=whose)
        if isinstance(released, Reconstruction):
            return released
        started, parameters = time.perf_counter(), released.parameters
        total = len(parameters)
        found = []
        for done in range(0, total, self.settings.chunk):
            self.progress("reconstructing", done, total)
            found.append(self._invert(parameters[done : done + self.settings.chunk]))
        self.progress("reconstructing", total, total)
        records, labels, residual = (torch.cat(parts) for parts in zip(*found, strict=True))
        explained = float((residual < _CONVERGED).double().mean())
        status = Outcome.CONVERGED if explained == 1 else Outcome.STOPPED_EARLY
        reason = "" if explained == 1 else f"{explained:.0%} of the releases are explained to 1%"
        return Reconstruction(
            candidates=records.reshape(total, 1, *shape),
            confidence=-residual[:, None],
            status=Status(status, reason),
            cost=Cost(self.cost.seconds + time.perf_counter() - started, self.cost.models),
            labels=labels[:, None],
            observed={"residual": float(residual.median()), "explained": explained},
        )

    def _invert(self, released: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(m, p) to records (m, d), labels (m,) and relative residuals (m,).

        A release begins where free errors say. If that does not explain it, labels are tried in their order,
        a few steps each and more where these look right, and at last it goes on where it came closest.
        """
        game = _Released(
            released, released.new_tensor([self.starts.distance(one) for one in released])
        )
        ranked = [self.starts.ranked(one, 1) for one in released]
        best = self._descend(game, self._freed(game, ranked), trial=False)
        for place in range(min(self.settings.labels, len(ranked[0]))):
            rows = (best.residual >= _CONVERGED).nonzero()[:, 0]
            if not len(rows):
                break
            guesses = [ranked[row][place] for row in rows.tolist()]
            begun = self._begun(game[rows], guesses)
            best.take(rows, self._descend(game[rows], begun, trial=True))
        rows = (best.residual >= _CONVERGED).nonzero()[:, 0]
        if len(rows):
            best.take(rows, self._descend(game[rows], best[rows], trial=False))
        return best.records, best.labels, best.residual

    def _freed(self, game: _Released, ranked: list[list[Guess]]) -> _Found:
        """Where free errors say that each release begins."""
        records, labels = [], []
        for one, asked, guesses in zip(
            game.parameters, self._ask(game.parameters - self.free.end), ranked, strict=True
        ):
            starts = self._places_to_begin(one, guesses)
            found = self.free.solve(asked, starts, self.settings.iterations)
            records.append(found.record)
            labels.append(self.free.label(found))
        z, wanted = torch.stack(records), torch.tensor(labels, device=game.apart.device)
        return _Found(z, wanted, torch.full_like(game.apart, float("inf")))

    def _places_to_begin(self, released: Tensor, guesses: list[Guess]) -> Iterator[Tensor]:
        """(d,) one after the other: what each label's anchors say, then more of the anchors themselves."""
        for guess in guesses[:_FREED]:
            yield guess.inputs.flatten()
            for other in self.starts.others(released, guess):
                yield other.inputs.flatten()
        for guess in guesses[:_ANCHORED]:
            nearest = self.starts.by_distance(released, int(guess.labels))
            yield from nearest[1 : 1 + _ANCHORS].flatten(1)

    def _begun(self, game: _Released, guesses: list[Guess]) -> _Found:
        """Of each release the start of its label whose training comes closest."""
        several = [
            [guess, *self.starts.others(one, guess)]
            for one, guess in zip(game.parameters, guesses, strict=True)
        ]
        records = torch.stack([torch.cat([g.inputs for g in row]).flatten(1) for row in several])
        labels = torch.cat([guess.labels for guess in guesses])
        count = records.shape[1]
        _, theta = self._train(records.flatten(0, 1), labels.repeat_interleave(count))
        left = game[torch.arange(len(labels)).repeat_interleave(count)].left(theta, self.starts)
        taken = [Starts.nearest(row) for row in left.view(-1, count).tolist()]
        rows = torch.arange(len(taken))
        return _Found(records[rows, taken], labels, left.view(-1, count)[rows, taken])

    def _descend(self, game: _Released, begun: _Found, *, trial: bool) -> _Found:
        """Levenberg-Marquardt. trial: given up where the first steps do not look right."""
        z, labels = begun.records.clone(), begun.labels
        path, theta = self._train(z, labels)
        residual = game.left(theta, self.starts)
        damping = torch.full_like(residual, _FIRST_DAMPING)
        going = torch.ones_like(residual, dtype=torch.bool)
        for done in range(1, self.settings.iterations + 1):
            rows = going.nonzero()[:, 0]
            state = (z[rows], theta[rows], path[:, rows], residual[rows], damping[rows])
            state = self._improve(game[rows], labels[rows], state)
            slow = state[3] > _ON * residual[rows]
            z[rows], theta[rows], path[:, rows], residual[rows], damping[rows] = state
            going[rows] = ~((state[3] < _SETTLED) & slow | (state[3] < _EXACT))
            if trial and done == _TRIAL:
                going &= residual < _PROMISING
            if not bool(going.any()):
                break
        return _Found(z, labels, residual)

    def _improve(self, game: _Released, labels: Tensor, state: _State) -> _State:
        """One step, tried under several dampings; the best of them, or none."""
        z, theta, path, residual, damping = state
        equations = Normal.of(self._jacobian(path, z, labels), self._ask(game.parameters - theta))
        best = (z, theta, path, residual, damping * 10)
        for factor in _DAMPINGS:
            tried = (z + equations.solve(damping * factor)).clamp(*self.starts.bounds)
            tried_path, tried_theta = self._train(tried, labels)
            left = game.left(tried_theta, self.starts)
            kept = (damping * factor).clamp_min(_LEAST_DAMPING)
            best = _better(best, (tried, tried_theta, tried_path, left, kept))
        return best

    def _train(self, z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        extra = Records(z.reshape(-1, 1, *self.fixed.shape), labels[:, None], self.fixed.classes)
        return trajectories(self.mlp, self.descent, self.initial, self.fixed, extra)

    def _ask(self, difference: Tensor) -> Tensor:
        """(m, p) to the answers (m, q)."""
        return difference @ self.questions.T

    def _jacobian(self, path: Tensor, z: Tensor, labels: Tensor) -> Tensor:
        """(steps, m, p), (m, d), (m,) to (m, q, d): the answers applied to d f_t / d z."""
        onehot = F.one_hot(labels, self.mlp.outputs).to(z).expand(len(path), -1, -1)
        found = record_jacobian(self.mlp, self.answers, path, z, pushes, onehot)
        return found / (len(self.fixed) + 1)


def _better(old: _State, new: _State) -> _State:
    """Target by target, the state with the smaller residual."""
    wins = new[3] < old[3]
    z, theta, path, residual, damping = old
    return (
        torch.where(wins[:, None], new[0], z),
        torch.where(wins[:, None], new[1], theta),
        torch.where(wins[None, :, None], new[2], path),
        torch.where(wins, new[3], residual),
        torch.where(wins, new[4], damping),
    )
