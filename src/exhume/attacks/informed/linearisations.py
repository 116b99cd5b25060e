"""Training linearised at a guess of the unknown records, in two ways.

`SharedAdjoint`, of full-batch descent of an MLP: one adjoint for all releases, answered once. With questions
c_1 … c_q about the weights, the answers a of train/influence.py, and f_t(z) the record's gradient at step t
of the guess's own training,

    <c_i, J dz> = sum_t <a_{i,t}, d f_t(z) / dz · dz> / (n + 1).

The answers depend neither on the record nor on its label. Residuals and questions are weighed alike. A guess
is improved by Levenberg-Marquardt, each damping tried by a real training.

Where to begin: the record whose pushes explain the release, with its errors left free. A record acts on
training by its gradient at every step, which is made of the record z and of the error e_t that the outputs
make on it. How large e_t is depends on z and its label by orders of magnitude, and searches from a mean
record fail at this. Written in a few functions of time and left free, e is no obstacle:

    <c_i, theta - theta_0>  ≈  sum_t <a_{i,t}, f_t(z, e_t)> / (n + 1),     e_t = sum_b basis[t, b] e_b

is linear in e, which is solved for (variable projection), and nearly linear in z. theta_0 is training on
n + 1 records of which one has no gradient. No model is trained. What is left over tells a solution from a
valley; the output whose errors are negative is the label.

Memory: 4·b·q·k·d bytes for the answers to q questions (b functions of time). They are kept in the store,
chunk by chunk. Cost: q trainings once; per step a few more and q·d² operations.

`MatrixFree`, of any known training, by conjugate gradients and with gates as unknowns. J is never formed:
products with it and with its transpose go through the steps of training (train/unrolled.py), so any module
that `torch.func` takes will do, with momentum, weight decay, mini-batches of known order, Adam, batch norm,
and several unknown records at once.

With ReLU the weights are no smooth function of the unknown record. When it moves, gates of *known* records
flip somewhere in training, each flip changes a gradient by a jump, and near the truth these jumps outweigh
the record's own effect. But what a flip does to the weights is known (a push of that gate, carried through
the rest of training), and there are many more weights than flips:

    min over dz, c   ||theta - theta(z) - J dz - sum_g push_g c_g||²/s² + ||dz||²/a² + sum_g c_g²/P_g

P_g is how likely gate g flips: by its distance from the kink, measured in how far gates move for a residual
of this size. dz is what is wanted; c takes the jumps out of its way. As z comes closer, fewer gates are in
doubt, and the last steps end in the right cell of all gates, where training is smooth.

Cost: some 3 trainings a product; with c there are more of them. Memory: that of `Unrolled`; with c, some
vectors of a number for each entry of each gate in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import jacrev, vmap

from exhume.attacks.informed.starts import Guess, Spent, Starts, Target, Whitening
from exhume.core.contract import Key, Progress, Records, Store
from exhume.models.mlp import MLP
from exhume.store.shards import address, cached, digest
from exhume.train.influence import Answers, answer, pushes, pushes_of_error, trajectories
from exhume.train.least_squares import Solved, least_squares, solve_damped
from exhume.train.optimisers import Descent
from exhume.train.unrolled import Path, Pushes, Unknown, Unrolled

Push = Callable[[MLP, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""`pushes`, or `pushes_of_error`."""
_DAMPINGS = ((0.1, 1.0, 10.0), (1e2, 1e3, 1e4))  # times the current one; the second if none helps
_LEAST_DAMPING = 1e-10  # relative to the mean square of J's columns
_FREED = 3  # labels from whose starts errors are left free
_ANCHORED, _ANCHORS = 2, 5  # labels whose nearest anchors are tried besides, and how many of them
_BASIS_RECORDS = 256  # known records whose errors say which functions of time are needed
_RIDGE = 1e-6  # of the mean square of the errors' columns
_FREE_DAMPING, _LEAST_FREE, _MOST_FREE = 1e-2, 1e-8, 1e3  # with errors left free
_TRIAL = 6  # steps after which a start must look right
_PROMISING = 0.5  # of the answers left over that does
_EXPLAINED = 0.25  # and below which no other start is tried; valleys end at .3 to .8
_LENGTHS = (1.0, 0.4, 0.15)  # of a step
_LEFT = 0.03  # of the linear residual: where the solver may stop
_NEAR = 0.4  # relative residual from which jumping gates are what is left
_PROBE = 0.1  # of the way to the label's mean: a step that shows how gates move
_ERROR = 0.3  # of the records' own deviation, times the residual: how far a guess is off
_WIDTHS = (0.3, 3.0, 0.03)  # of smoothed gates, in standard deviations, for a guess of residual 1
_REACH = 3.0  # how far gates may move, over what a probe of the same residual moves them
_DOUBT = 0.01  # deviations below which a gate is certain
_SHARE = 1e-3  # of the residual that need not be explained
_VECTORS = 8  # of all gates, held at once


@dataclass(frozen=True, eq=False)
class SharedAdjoint:
    mlp: MLP
    descent: Descent
    initial: Tensor
    fixed: Records
    starts: Starts
    questions: Tensor  # (q, p)
    answers: Answers
    free: FreeErrors
    trainings: int = 150  # a release may cost
    exact: float = 1e-6  # residual below which nothing is left to explain in single precision

    @staticmethod
    def of(
        mlp: MLP,
        descent: Descent,
        initial: Tensor,
        fixed: Records,
        starts: Starts,
        *,
        questions: int,
        functions: int,
        chunk: int,
        trainings: int,
        key: Key,
        store: Store,
        progress: Progress,
    ) -> SharedAdjoint:
        """functions: of time, in which a record's influence is written down; chunk: questions at once."""
        still = without_gradient(descent, len(fixed))
        path, end = trajectories(mlp, still, initial, fixed, fixed.none_for(1))
        path = path[:, 0]
        basis = _time_basis(mlp, path, fixed[:_BASIS_RECORDS], functions)
        size = mlp.layout.size
        drawn = torch.randn(questions, size, generator=key.fold("questions").generator())
        asked = starts.metric.apply(drawn.to(initial) / size**0.5)
        config = [mlp, descent, questions, functions, chunk, starts.anchors.shape[1]]
        known = (digest(initial), digest(fixed))
        stage, parts = "differentiating through training", []

        def answered(some: Tensor) -> dict[str, Tensor]:
            answers = answer(mlp, descent, path, fixed, questions=some, basis=basis)
            return {"first": answers.first, "rest": answers.rest}

        for done in range(0, questions, chunk):
            progress(stage, done, questions)
            place = address("adjoint", config, known, key, done)
            parts.append(cached(store, place, partial(answered, asked[done : done + chunk])))
        progress(stage, questions, questions)
        first = torch.cat([part["first"] for part in parts], 2).to(initial.device)
        rest = torch.cat([part["rest"] for part in parts], 1).to(initial.device)
        answers = Answers(first, rest, basis)
        free = FreeErrors(mlp, answers, path, end[0], len(fixed) + 1, starts.bounds)
        return SharedAdjoint(mlp, descent, initial, fixed, starts, asked, answers, free, trainings)

    def begin(self, released: Tensor, ranked: list[Guess], iterations: int) -> Guess:
        """Where free errors say that a release (p,) begins. ranked: guesses, best first."""
        asked = self.ask(released - self.free.end)
        freed = self.free.solve(asked, self.places_to_begin(released, ranked), iterations)
        label = torch.tensor([self.free.label(freed)], device=released.device)
        return Guess(freed.record.view(1, *self.fixed.shape), label, freed.left)

    def places_to_begin(self, released: Tensor, ranked: list[Guess]) -> Iterator[Tensor]:
        """(d,) one after the other: what each label's anchors say, then more of the anchors themselves."""
        for guess in ranked[:_FREED]:
            yield guess.inputs.flatten()
            for other in self.starts.others(released, guess):
                yield other.inputs.flatten()
        for guess in ranked[:_ANCHORED]:
            nearest = self.starts.by_distance(released, int(guess.labels))
            yield from nearest[1 : 1 + _ANCHORS].flatten(1)

    def steps(
        self, target: Target, guess: Guess, residual: float, spent: Spent
    ) -> Iterator[Iterator[Guess]]:
        """Guesses under several dampings, and under larger ones if none of these helps."""
        extra = Records(guess.inputs[None], guess.labels[None], self.fixed.classes)
        path, end = trajectories(self.mlp, self.descent, self.initial, self.fixed, extra)
        spent.models += 1
        onehot = F.one_hot(guess.labels, self.mlp.outputs).to(path).expand(len(path), -1, -1)
        z = guess.inputs.flatten(1)
        jacobian = record_jacobian(self.mlp, self.answers, path, z, pushes, onehot)[0].double()
        jacobian /= len(self.fixed) + 1
        left = self.ask(target.parameters - end[0]).double()
        gram, right = jacobian.T @ jacobian, jacobian.T @ left

        def damped(factor: float) -> Guess:
            damping = max(_LEAST_DAMPING, guess.damping * factor)
            step = solve_damped(gram, right, damping).to(guess.inputs).view_as(guess.inputs)
            inputs = (guess.inputs + step).clamp(*self.starts.bounds)
            return replace(guess, inputs=inputs, damping=damping)

        for factors in _DAMPINGS:
            yield map(damped, factors)

    def ask(self, difference: Tensor) -> Tensor:
        """(p,) to the answers (q,)."""
        return self.questions @ difference


def without_gradient(descent: Descent, records: int) -> Descent:
    """Training on one record more, which has no gradient: the others count for n of n + 1."""
    share = records / (records + 1)
    decay = descent.weight_decay / share
    return replace(descent, rate=descent.rate * share, weight_decay=decay)


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


def record_jacobian(  # noqa: PLR0917
    mlp: MLP, answers: Answers, path: Tensor, z: Tensor, push: Push, given: Tensor
) -> Tensor:
    """(steps, m, p) and (m, d) to (m, q, d): how a record moves the answers, d sum_t <a_t, f_t(z)> / dz.

    The gradient of the first weights is error ⊗ z, so z acts directly, and through the first layer's
    pre-activation, on which all the rest of its gradient f_t depends. given: (steps, m, c), the last argument
    of push.
    """
    basis, first = answers.basis, answers.first
    b, k, q, d = first.shape
    layers = mlp.layout.split(path)
    before = torch.einsum("tmkd,md->tmk", layers["fc1.weight"], z) + layers["fc1.bias"]
    at_models = vmap(vmap(partial(push, mlp)))
    by_first = vmap(vmap(jacrev(partial(push, mlp), argnums=1)))
    errors, _ = at_models(path, before, given)  # (t, m, k)
    d_errors, d_rest = by_first(path, before, given)  # (t, m, k, k) and (t, m, p - k·d, k)
    spread = torch.einsum("tb,tmk->mbk", basis, errors).flatten(1)
    jacobian = (spread @ first.view(b * k, q * d)).view(-1, q, d)
    along = (first.view(b * k * q, d) @ z.T).view(b, k, q, -1)  # the answers' first weights on z
    for i in range(len(z)):
        by_time = torch.einsum("tb,bkq->tqk", basis, along[..., i])
        through = by_time @ d_errors[:, i] + answers.rest @ d_rest[:, i]  # (t, q, k)
        weights = layers["fc1.weight"][:, i].flatten(0, 1)  # (t·k, d)
        jacobian[i] += through.transpose(0, 1).flatten(1) @ weights
    return jacobian


@dataclass(frozen=True, eq=False)
class FreedRecord:
    record: Tensor  # (d,)
    errors: Tensor  # (b·c,) in functions of time
    left: float  # of the answers that it does not explain, relative
    damping: float


@dataclass(frozen=True, eq=False)
class FreeErrors:
    mlp: MLP
    answers: Answers
    path: Tensor  # (steps, p) training in which the record has no gradient
    end: Tensor  # (p,) and its end
    records: int  # of a training with the record
    bounds: tuple[float, float]

    def solve(self, asked: Tensor, starts: Iterable[Tensor], iterations: int) -> FreedRecord:
        """asked: (q,) answers about theta - theta_0; starts: (d,) each, tried until one explains them."""
        wanted, tried = self.records * asked.double(), list[FreedRecord]()
        for start in starts:
            tried.append(self._descend(start, _FREE_DAMPING, wanted, _TRIAL))
            if tried[-1].left < _PROMISING:
                last = tried[-1]
                tried[-1] = self._descend(last.record, last.damping, wanted, iterations)
                if tried[-1].left < _EXPLAINED:
                    return tried[-1]
        best = min(tried, key=lambda freed: freed.left)
        return self._descend(best.record, best.damping, wanted, iterations)

    def label(self, freed: FreedRecord) -> int:
        """The output whose errors are negative."""
        errors = self.answers.basis.double() @ freed.errors.view(-1, self.mlp.outputs)
        errors = errors - errors.mean(1, keepdim=True)
        return int(errors.sum(0).argmin())

    def _descend(self, z: Tensor, damping: float, wanted: Tensor, iterations: int) -> FreedRecord:
        """Levenberg-Marquardt; what the errors can explain is taken out of every step."""
        columns, errors, missing = self.explain(z, wanted)
        for _ in range(iterations):
            basis, path = self.answers.basis, self.path[:, None]
            given = basis @ errors.view(basis.shape[1], -1).to(basis)  # with the errors held
            given = (given - given.mean(1, keepdim=True))[:, None]
            push = pushes_of_error
            steep = record_jacobian(self.mlp, self.answers, path, z[None], push, given)[0].double()
            steep = steep - columns @ _fit(columns, steep)
            gram, right = steep.T @ steep, steep.T @ missing
            moved = False
            while not moved and damping <= _MOST_FREE:
                tried = (z + solve_damped(gram, right, damping).to(z)).clamp(*self.bounds)
                explained = self.explain(tried, wanted)
                moved = bool(explained[2].norm() < missing.norm())
                damping *= 0.1 if moved else 10
            if not moved:
                break
            damping = max(_LEAST_FREE, damping)
            z, (columns, errors, missing) = tried, explained
        left = float(missing.norm() / wanted.norm().clamp_min(1e-300))
        return FreedRecord(z, errors, left, damping)

    # What a record and its errors do to the answers

    def explain(self, z: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What errors do at a record (q, b·c), the errors that explain most, and what they leave (q,)."""
        columns = self._by_errors(z).double()
        errors = _fit(columns, wanted)
        return columns, errors, wanted - columns @ errors

    def _by_errors(self, z: Tensor) -> Tensor:
        answers, basis = self.answers, self.answers.basis
        layers = self.mlp.layout.split(self.path)
        before = layers["fc1.weight"] @ z + layers["fc1.bias"]
        nothing = z.new_zeros(len(basis), self.mlp.outputs)
        by_error = vmap(jacrev(partial(pushes_of_error, self.mlp), argnums=2))
        by_first, by_rest = by_error(self.path, before, nothing)
        b, k, q, d = answers.first.shape
        along = (answers.first.view(b * k * q, d) @ z).view(b, k, q)
        spread = torch.einsum("tb,tkc,ta->bkac", basis, by_first, basis)
        columns = torch.einsum("bkq,bkac->qac", along, spread)
        columns = columns + torch.einsum("tqc,ta->qac", answers.rest @ by_rest, basis)
        columns = columns - columns.mean(2, keepdim=True)  # the errors of a softmax add up to 0
        return columns.flatten(1)


def _fit(columns: Tensor, right: Tensor) -> Tensor:
    return solve_damped(columns.T @ columns, columns.T @ right, _RIDGE)


@dataclass(frozen=True, eq=False)
class MatrixFree:
    unrolled: Unrolled
    starts: Starts
    white: Whitening | None = None  # coordinates of images behind convolutions
    products: int = 30  # of conjugate gradients in a step
    gate_products: int = 150  # in those that have gates among their unknowns
    trainings: int = 2000  # a release may cost
    exact: float = 5e-5  # residual below which nothing is left to explain in single precision

    def steps(
        self, target: Target, guess: Guess, residual: float, spent: Spent
    ) -> Iterator[Iterator[Guess]]:
        """Steps from a guess, several where gates jump; of each, guesses in the order to be tried."""
        for solved in self._solved(target, guess, residual, spent):
            # the whole step and parts of it, then those of what the solver had before
            yield (
                replace(guess, inputs=(guess.inputs + length * step).clamp(*self.starts.bounds))
                for step in (solved.step, *solved.earlier)
                for length in _LENGTHS
            )

    def _solved(
        self, target: Target, guess: Guess, residual: float, spent: Spent
    ) -> Iterator[Solved]:
        """(e, *shape) each, on the training linearised at a guess."""
        free, gates = self.unrolled.freed()
        # whether a number for each entry of each gate in each step fits into memory, several times
        rows = sum(
            (len(free.fixed) if seen.fixed is None else len(seen.fixed)) + len(seen.unknown)
            for seen in free.steps
        )
        size = rows * free.activations * free.initial.element_size()
        jumping = gates > 0 and 0 < size * _VECTORS <= free.memory << 20
        if jumping and residual < _NEAR:
            yield self._among_gates(free, target, guess, residual, spent)
        for factor in _WIDTHS:
            unrolled, _ = self.unrolled.smoothed(factor * min(1.0, residual))
            path = unrolled.train(Unknown(guess.inputs, guess.labels))
            solved = self._solve(GatesInDoubt(unrolled, path, []), target)
            spent.models += 1 + 3 * solved.iterations
            yield solved
            if not gates:
                return
        if jumping and residual >= _NEAR:
            yield self._among_gates(free, target, guess, residual, spent)

    def _among_gates(
        self, free: Unrolled, target: Target, guess: Guess, residual: float, spent: Spent
    ) -> Solved:
        """With every gate near its kink as an unknown of its own."""
        centre = self.starts.means[guess.labels]
        probe = guess.inputs + _PROBE * (centre - guess.inputs)
        here, there = (Unknown(inputs, guess.labels) for inputs in (guess.inputs, probe))
        gates = GatesInDoubt.of(free, here, there, target.parameters)
        deviation = _ERROR * residual
        if self.white is None:
            deviation *= float(free.fixed.inputs.std())
        solved = self._solve(gates, target, deviation)
        spent.models += 2 + 4 * solved.iterations
        return solved

    def _solve(self, gates: GatesInDoubt, target: Target, deviation: float = 1.0) -> Solved:
        """By conjugate gradients. deviation: of the unknown records, in their coordinates, among gates."""
        unrolled, path, count = gates.unrolled, gates.path, gates.count
        guess, size = path.guess, path.guess.inputs.numel()
        right = self.starts.weighed(target.parameters - path.end)

        def records(unknown: Tensor) -> Tensor:
            return self._coloured(deviation * unknown[:size].view_as(guess.inputs))

        def forward(unknown: Tensor) -> Tensor:
            pushes = gates.spread(unknown[size:]) if count else None
            return self.starts.weighed(unrolled.forward(path, records(unknown), pushes))

        def adjoint(cotangent: Tensor) -> Tensor:
            pushes: Pushes = []
            weighed = self.starts.weighed(cotangent)
            pulled = unrolled.adjoint(path, weighed, pushes if count else None)
            inputs = deviation * self._coloured(pulled).flatten()
            return torch.cat([inputs, gates.gathered(pushes)]) if count else inputs

        if gates.doubts:
            iterations, left, slope = self.gate_products, 0.0, 1e-3
            damping = (_SHARE * float(right.norm())) ** 2 / len(right)
        else:
            iterations, left, slope, damping = self.products, _LEFT, 1e-4, 0.0
        solved = least_squares(
            forward, adjoint, right, iterations=iterations, damping=damping, left=left, slope=slope
        )
        earlier = tuple(records(step) for step in solved.earlier)
        return replace(solved, step=records(solved.step), earlier=earlier)

    def _coloured(self, white: Tensor) -> Tensor:
        return white if self.white is None else self.white.apply(white)


@dataclass(frozen=True, eq=False)
class GatesInDoubt:
    """A training, and which of its ReLUs near zero may be on here and off in the victim's run."""

    unrolled: Unrolled  # with free gates, if any is in doubt
    path: Path
    doubts: Pushes  # deviation of each gate's jump, 0 where certain; empty: gates are no unknowns

    @staticmethod
    def of(unrolled: Unrolled, guess: Unknown, probe: Unknown, released: Tensor) -> GatesInDoubt:
        """probe: another guess, which says how far gates move when the weights do."""
        path, other = unrolled.train(guess), unrolled.train(probe)
        apart = (other.end - path.end).norm().clamp_min(1e-30)
        reach = _REACH * float((released - path.end).norm() / apart)
        here, there = unrolled.entered(path), unrolled.entered(other)
        doubts = [
            [
                tuple(_doubt(a, b, reach) for a, b in zip(*gates, strict=True))
                for gates in zip(*blocks, strict=True)
            ]
            for blocks in zip(here, there, strict=True)
        ]
        for seen, blocks in zip(unrolled.steps, doubts, strict=True):
            if unrolled.mixes and len(seen.unknown):  # they come last; their own gates are no noise
                for gate in blocks[-1]:
                    gate[-len(seen.unknown) :] = 0
        return GatesInDoubt(unrolled, path, doubts)

    @cached_property
    def _places(self) -> list[Tensor]:
        """Entries in doubt, gate by gate."""
        return [gate.flatten().nonzero()[:, 0] for gate in _all_gates(self.doubts)]

    @property
    def count(self) -> int:
        return sum(len(places) for places in self._places)

    def spread(self, values: Tensor) -> Pushes:
        """(g,) jumps in units of their deviations to pushes of all gates."""
        parts = torch.split(values, [len(places) for places in self._places])
        rest = iter(zip(self._places, parts, strict=True))

        def jumps(gate: Tensor) -> Tensor:
            places, units = next(rest)
            return (
                torch.zeros_like(gate)
                .flatten()
                .index_copy(0, places, gate.flatten()[places] * units)
                .view_as(gate)
            )

        return [
            [tuple(jumps(gate) for gate in gates) for gates in blocks] for blocks in self.doubts
        ]

    def gathered(self, pushes: Pushes) -> Tensor:
        """The transpose of `spread`."""
        rows = zip(_all_gates(pushes), _all_gates(self.doubts), self._places, strict=True)
        return torch.cat([push.flatten()[at] * gate.flatten()[at] for push, gate, at in rows])


def _all_gates(pushes: Pushes) -> list[Tensor]:
    return [gate for blocks in pushes for gates in blocks for gate in gates]


def _doubt(entered: Tensor, other: Tensor, reach: float) -> Tensor:
    """Square roots of how likely the gates of one step flip; units (n, k) or channels (n, c, ...)."""
    over = [i for i in range(entered.ndim) if i != 1]
    moves = reach * (other - entered).square().mean(over, keepdim=True).sqrt()
    likely = torch.special.ndtr(-entered.abs() / moves.clamp_min(1e-30))
    return torch.where(likely.sqrt() > _DOUBT, likely.sqrt(), 0.0)
