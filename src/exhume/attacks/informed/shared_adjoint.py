"""The linearisation of full-batch descent of an MLP, shared by all releases: one adjoint, answered once.

With questions c_1 … c_q about the weights, the answers a of train/influence.py, and f_t(z) the record's
gradient at step t of the guess's own training,

    <c_i, J dz> = sum_t <a_{i,t}, d f_t(z) / dz · dz> / (n + 1).

The answers depend neither on the record nor on its label. Residuals and questions are weighed alike. A guess
is improved by Levenberg-Marquardt, each damping tried by a real training.

Where to begin: the record whose pushes explain the release, with its errors left free. A record acts on
training by its gradient at every step, which is made of the record z and of the error e_t that the outputs
make on it. How large e_t is depends on z and its label steeply: by orders of magnitude between a record that
is hard to learn and one that was learned long ago. Searches from a mean record fail at this. Written in a few
functions of time and left free, e is no obstacle:

    <c_i, theta - theta_0>  ≈  sum_t <a_{i,t}, f_t(z, e_t)> / (n + 1),     e_t = sum_b basis[t, b] e_b

is linear in e, which is solved for (variable projection), and nearly linear in z. theta_0 is training on
n + 1 records of which one has no gradient. No model is trained. What is left over tells a solution from a
valley; the output whose errors are negative is the label.

Memory: 4·b·q·k·d bytes for the answers to q questions (b functions of time). They are kept in the store,
chunk by chunk, so that a stopped run does not ask again.
Cost: q trainings once; per step a few more and q·d² operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import jacrev, vmap

from exhume.attacks.informed.starts import Guess, Spent, Starts, Target
from exhume.core.contract import Key, Progress, Records, Store
from exhume.models.mlp import MLP
from exhume.store.shards import address, cached, digest
from exhume.train.influence import Answers, answer, pushes, pushes_of_error, trajectories
from exhume.train.least_squares import solve_damped
from exhume.train.optimisers import Descent

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
        for done in range(0, questions, chunk):
            progress(stage, done, questions)
            place, some = address("adjoint", config, known, key, done), asked[done : done + chunk]
            parts.append(
                cached(store, place, partial(_asked, mlp, descent, path, fixed, some, basis))
            )
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
        for factors in _DAMPINGS:
            yield self._damped(guess, gram, right, factors)

    def _damped(
        self, guess: Guess, gram: Tensor, right: Tensor, factors: Iterable[float]
    ) -> Iterator[Guess]:
        for factor in factors:
            damping = max(_LEAST_DAMPING, guess.damping * factor)
            step = solve_damped(gram, right, damping).to(guess.inputs).view_as(guess.inputs)
            inputs = (guess.inputs + step).clamp(*self.starts.bounds)
            yield replace(guess, inputs=inputs, damping=damping)

    def ask(self, difference: Tensor) -> Tensor:
        """(p,) to the answers (q,)."""
        return self.questions @ difference


def _asked(  # noqa: PLR0917
    mlp: MLP, descent: Descent, path: Tensor, fixed: Records, questions: Tensor, basis: Tensor
) -> dict[str, Tensor]:
    """The answers to some questions, as they are kept."""
    answers = answer(mlp, descent, path, fixed, questions=questions, basis=basis)
    return {"first": answers.first, "rest": answers.rest}


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
            steep = self._by_record(z, errors).double()
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

    @cached_property
    def _layers(self) -> tuple[Tensor, Tensor]:
        layers = self.mlp.layout.split(self.path)
        return layers["fc1.weight"], layers["fc1.bias"]

    def _by_errors(self, z: Tensor) -> Tensor:
        answers, basis = self.answers, self.answers.basis
        weight, bias = self._layers
        before = weight @ z + bias
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

    def _by_record(self, z: Tensor, errors: Tensor) -> Tensor:
        """(q, d) with the errors held."""
        basis = self.answers.basis
        given = basis @ errors.view(basis.shape[1], -1).to(basis)
        given = (given - given.mean(1, keepdim=True))[:, None]
        path = self.path[:, None]
        return record_jacobian(self.mlp, self.answers, path, z[None], pushes_of_error, given)[0]


def _fit(columns: Tensor, right: Tensor) -> Tensor:
    return solve_damped(columns.T @ columns, columns.T @ right, _RIDGE)
