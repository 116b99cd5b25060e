"""The search through training: starts, labels and steps, all judged by the residual alone.

A release begins where free errors say (free_errors.py). If that does not explain it, labels are tried in
their order, a few Levenberg-Marquardt steps each and more where these look right. A network with kinks goes
on among its gates (flipping_gates.py). Targets go side by side; all share the adjoint of training.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.informed.flipping_gates import FlippingGates, Own
from exhume.attacks.informed.free_errors import FreeErrors
from exhume.attacks.informed.normal import Normal
from exhume.attacks.informed.record_jacobian import record_jacobian
from exhume.attacks.informed.starts import Guess, Starts
from exhume.attacks.releases import weights_of
from exhume.core.contract import Cost, Outcome, Progress, Reconstruction, Records, Release, Status
from exhume.models.mlp import MLP
from exhume.train.influence import Answers, pushes, trajectories
from exhume.train.optimisers import Descent

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
_PATIENCE = 2  # steps among the gates without getting on
_NEAR = 0.5  # relative residual below which they are worth their price
_PROBE = 0.1  # of the way to the label's mean: a training that shows how far gates move
_OFF = 0.3  # of the records' own deviation, times the residual: how far a guess is off
_LENGTHS = (1.0, 0.5)  # of a step, tried


_State = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # z, theta, path, residual, damping


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

    iterations: int
    labels: int  # how many to try for a release that none has explained yet
    chunk: int  # targets at once
    mlp: MLP
    descent: Descent
    initial: Tensor
    fixed: Records
    starts: Starts
    questions: Tensor  # (q, p)
    answers: Answers
    free: FreeErrors
    gates: FlippingGates
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
        for done in range(0, total, self.chunk):
            self.progress("reconstructing", done, total)
            found.append(self._invert(parameters[done : done + self.chunk]))
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
        for place in range(min(self.labels, len(ranked[0]))):
            rows = (best.residual >= _CONVERGED).nonzero()[:, 0]
            if not len(rows):
                break
            guesses = [ranked[row][place] for row in rows.tolist()]
            begun = self._begun(game[rows], guesses)
            best.take(rows, self._descend(game[rows], begun, trial=True))
        rows = (best.residual >= _CONVERGED).nonzero()[:, 0]
        if len(rows):
            best.take(rows, self._descend(game[rows], best[rows], trial=False))
        if self.gates.needed:
            for row in ((best.residual > _SETTLED) & (best.residual < _NEAR)).nonzero():
                best.take(row, self._among_gates(game[row], best[row]))
        return best.records, best.labels, best.residual

    def _freed(self, game: _Released, ranked: list[list[Guess]]) -> _Found:
        """Where free errors say that each release begins."""
        records, labels = [], []
        for one, asked, guesses in zip(
            game.parameters, self._ask(game.parameters - self.free.end), ranked, strict=True
        ):
            starts = self._places_to_begin(one, guesses)
            found = self.free.solve(asked, starts, self.iterations)
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
        for done in range(1, self.iterations + 1):
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

    def _among_gates(self, game: _Released, found: _Found) -> _Found:
        """Of one release, steps along its own training, with gates in doubt as unknowns.

        A single gate can make the residual of a better record the larger one, so that a step may go astray
        before it comes back.
        """
        best, idle = found, 0
        while idle < _PATIENCE and float(best.residual) > _SETTLED:
            steps = self.gates.steps(self._own(game, found))
            tried = torch.cat([found.records + length * steps for length in _LENGTHS])
            tried = tried.clamp(*self.starts.bounds)
            _, theta = self._train(tried, found.labels.expand(len(tried)))
            left = game.left(theta, self.starts)
            least = left.argmin()[None]
            found = _Found(tried[least], found.labels, left[least])
            better = float(found.residual) < _ON * float(best.residual)
            best = found if float(found.residual) < float(best.residual) else best
            idle = 0 if better else idle + 1
        return best

    def _own(self, game: _Released, found: _Found) -> Own:
        """Its training, and one that differs from it as much as the release does."""
        centre = self.starts.means[found.labels].flatten(1)
        probe = found.records + _PROBE * (centre - found.records)
        paths, ends = self._train(torch.cat([found.records, probe]), found.labels.expand(2))
        missing = game.parameters[0] - ends[0]
        far = missing.norm() / (ends[1] - ends[0]).norm().clamp_min(1e-30)
        moved = paths[:, 0] + far * (paths[:, 1] - paths[:, 0])
        deviation = _OFF * float(found.residual) * float(self.fixed.inputs.std())
        return Own(found.records[0], found.labels[0], paths[:, 0], moved, missing, deviation)

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
