"""Gradient matching as practised: search for records whose gradient is the released one.

    min_X  1 - cos(G, grad L(X)) + w tv(X),   X in [0, 1]

Works on whatever `Architecture.build` returns, through `torch.func`. Restarts run together; the one whose own
mismatch is smallest is kept. Labels are read off the last layer where that is possible, else searched for
along with the records, as DLG does.

"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from exhume.attacks.gradient.colours import (
    gap,
    outputs_and_moments,
    recoloured,
    statistics_of,
)
from exhume.attacks.releases import BatchAnswer, EachGradient, architecture_of, goes_on
from exhume.core.contract import (
    Architecture,
    Attack,
    ClientTraining,
    ExhumeError,
    Key,
    Knowledge,
    Layout,
    NotApplicable,
    Prepared,
    Progress,
    Reconstruction,
    Release,
    Store,
    silent,
)
from exhume.core.records import total_variation

_BETAS = (0.9, 0.999)
_EXPLAINED = 0.05  # mismatch above which a search has not converged: 10% of the squared gradient
_SETTLED = 1e-3  # mismatch below which it has, and need not stand still
_LAST, _FALLING = 0.75, 0.9  # what it loses in the last quarter of its steps, if it still falls
_LABELLING = 40  # steps for the labels of a start
_RECOLOURED = (0.25, 0.5, 0.75)  # of the steps: when colours are fitted to what batch norm saw
_EVERY = 10  # steps between two reports of progress
_SLOW_TOGETHER = (nn.Conv2d, nn.Conv1d, nn.MultiheadAttention)  # under vmap: one after another
_PROBES = 64


@dataclass(frozen=True)
class GradientMatching:
    """Search for the batch whose gradient matches.

    Sees: `Gradient`, all layers; what batch norm saw, where the client sends it.
    Assumes: the architecture, the mean loss, the batch size (or an attack to start from, which finds it).
    Guarantees: none: the search may stop in a local minimum. Confidence is minus its own mismatch;
    `explained` is the share of the squared update that the answer accounts for.
    Reference: Zhu et al. 2019, Geiping et al. 2020 (signs, total variation), Yin et al. 2021 (batch-norm
    statistics); Wang23 starts it from the tensor estimate.
    """

    variation: float = 0.0  # weight of the total variation of images; Geiping et al.: 1e-4 to 1e-1
    falls: float = 1.0  # what is left of that weight at the end; published: 1
    steps: int = 300
    rate: float = 0.1  # of Adam, falling to a tenth; of signs, to nothing
    signed: bool = False  # Adam on the signs of the slopes: better for images behind deep networks
    restarts: int = 4  # from noise; one, if there is an attack to start from
    statistics: float = 0.1  # weight of the mismatch of batch-norm statistics, where they are seen
    polish: int = 0  # steps of L-BFGS at the end, kept where they lower the mismatch
    start: Attack | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1:
            raise ExhumeError(
                f"steps, restarts: must be at least 1, got {self.steps}, {self.restarts}"
            )

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedMatching:
        architecture = architecture_of(knowledge, "gradient matching")
        started = None
        if self.start is not None:
            started = self.start.prepare(knowledge, key=key.fold("start"), store=store)
        elif knowledge.batch_size is None:
            raise NotApplicable("gradient matching needs the batch size", ever=True)
        size = knowledge.batch_size
        return PreparedMatching(self, architecture, size, started, key, progress, knowledge.local)


@dataclass(frozen=True, eq=False)
class PreparedMatching:
    attack: GradientMatching
    architecture: Architecture
    batch_size: int | None
    start: Prepared | None
    key: Key
    progress: Progress
    local: ClientTraining | None = None

    def run(self, releases: Release) -> Reconstruction:
        before = cache(lambda: None if self.start is None else self.start.run(releases))

        def invert(values: Tensor, at: Tensor, index: int) -> BatchAnswer:
            guess = self._starts(index, before(), values)
            seen = statistics_of(releases, index, values)
            with sdpa_kernel(SDPBackend.MATH):  # the other kernels have no second derivative
                return self._search(values, at, guess, seen)

        shape, stage = tuple(self.architecture.input_shape), "matching gradients"
        return EachGradient(shape, invert, "gradient matching", stage, self.progress).run(releases)

    def _search(
        self, values: Tensor, at: Tensor, guess: Tensor, seen: dict[str, Tensor]
    ) -> BatchAnswer:
        architecture = self.architecture
        squared = self.local is not None and self.local.squared  # labels are numbers then
        labels = None if squared else infer_labels(values, at, architecture, guess.shape[1])
        zeros, named = at.new_zeros(2, *architecture.input_shape), architecture.layout.split(at)
        # the last trained layer need not be the last one
        outputs = functional_call(architecture.build(), named, (zeros,)).shape[1]
        soft = guess.new_zeros(*guess.shape[:2], outputs)
        if labels is not None:
            hard = labels[:, None] if outputs == 1 else F.one_hot(labels, outputs)
            soft = hard.to(guess.dtype).expand(soft.shape)
        objective = Objective(
            architecture.build(),
            architecture.layout,
            values,
            at,
            labels is None,
            self.local,
            seen,
            self.attack.statistics,
        )
        records, soft, observed = _Search(self.attack, objective, self.progress).run(guess, soft)
        mismatch = observed["mismatch"]
        settled = mismatch <= _SETTLED or observed["fell"] < 1 - _FALLING
        complete = mismatch <= _EXPLAINED and settled
        confidence = torch.full((len(records),), -mismatch, dtype=torch.float64)
        if labels is None and not squared:
            labels = (soft[:, 0] > 0).long() if outputs == 1 else soft.argmax(1)
        return BatchAnswer(records, confidence, observed, labels, complete=complete)

    def _starts(self, index: int, before: Reconstruction | None, like: Tensor) -> Tensor:
        """(restarts, b, *shape)"""
        shape = self.architecture.input_shape
        if before is not None:
            candidates = before.found(index).to(like.dtype)
            if len(candidates):
                return candidates.reshape(1, -1, *shape).clamp(0, 1)
            if self.batch_size is None:
                raise ExhumeError(
                    f"release {index}: the start found no record, and no batch size is known"
                )
        assert self.batch_size is not None  # checked in prepare
        noise = torch.rand(
            self.attack.restarts,
            self.batch_size,
            *shape,
            generator=self.key.fold("noise", index).generator(),
        )
        return noise.to(like.dtype)


@dataclass(frozen=True, eq=False)
class _Search:
    """The search behind one gradient."""

    attack: GradientMatching
    objective: Objective
    progress: Progress

    def run(self, guess: Tensor, soft: Tensor) -> tuple[Tensor, Tensor, dict[str, float]]:
        """(restarts, b, *shape) and (restarts, b, outputs) to the best one's, and how it went."""
        records, soft, earlier = self._descended(guess, soft)
        ends = self._mismatches(records, soft)
        best = int(ends.argmin())
        nearest, left = records[best], float(ends[best])
        if self.attack.polish:
            nearest, left = self._polished(nearest, soft[best], left)
        observed = {
            "mismatch": left,
            "fell": 1 - left / max(float(earlier[best]), 1e-30),
            "explained": max(0.0, 1 - left) ** 2,
        }
        return nearest, soft[best], observed

    def _descended(self, guess: Tensor, soft: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Records and labels of all restarts, and their mismatches before the last quarter."""
        attack = self.attack
        if attack.start is not None and self.objective.searched:
            # labels that suit a good start: while they are wrong, other records fit better than the true
            adam, alone = _Adam(soft), replace(self.objective, statistical=0.0)
            matching = replace(self, objective=alone)
            for step in range(_LABELLING):
                across = matching._slopes(guess, soft, 0.0)[1]
                soft = soft - 0.5 * 0.1 ** (step / _LABELLING) * adam.move(across)
        state = [_Adam(guess, signed=attack.signed), _Adam(soft)]
        records, earlier = guess.clone(), self._mismatches(guess, soft)
        recolourings = {int(share * attack.steps) for share in _RECOLOURED}
        for step in range(attack.steps):
            done = step / attack.steps
            if step % _EVERY == 0 and not goes_on(self.progress, "searching", step, attack.steps):
                break
            if step == int(_LAST * attack.steps):
                earlier = self._mismatches(records, soft)
            if step in recolourings:
                records = self._recoloured(records)
            along, across = self._slopes(records, soft, attack.variation * attack.falls**done)
            rate = attack.rate * (
                (1 + math.cos(math.pi * done)) / 2 if attack.signed else 0.1**done
            )
            records = (records - rate * state[0].move(along)).clamp(0, 1)
            if self.objective.searched:
                soft = soft - rate * state[1].move(across)
        self.progress("searching", attack.steps, attack.steps)
        return self._recoloured(records), soft, earlier

    def _recoloured(self, records: Tensor) -> Tensor:
        """All restarts with the colours that batch norm saw, where it is known."""
        aim = self.objective
        if not aim.statistics:
            return records
        named = aim.layout.split(aim.at)
        each = [recoloured(aim.module, named, batch, aim.statistics) for batch in records]
        return torch.stack(each).clamp(0, 1)

    def _polished(self, records: Tensor, soft: Tensor, left: float) -> tuple[Tensor, float]:
        """L-BFGS from there, unless the mismatch grows."""
        moved = records.clone().requires_grad_(True)
        solver = torch.optim.LBFGS(
            [moved], max_iter=self.attack.polish, history_size=20, line_search_fn="strong_wolfe"
        )

        def closure() -> float:
            variation = self.attack.variation * self.attack.falls
            value = self.objective.cost(moved, soft, variation)
            moved.grad = torch.autograd.grad(value, moved)[0]
            return float(value.detach())

        solver.step(closure)  # type: ignore[no-untyped-call]
        ended = moved.detach().clamp(0, 1)
        after = float(self.objective.mismatch(ended, soft))
        return (ended, after) if after < left else (records, left)  # NaN is not less

    def _slopes(self, records: Tensor, soft: Tensor, variation: float) -> tuple[Tensor, Tensor]:
        cost = partial(self.objective.cost, variation=variation)
        slopes: tuple[Tensor, Tensor] = self._of_all(grad(cost, argnums=(0, 1)))(records, soft)
        return slopes

    def _mismatches(self, records: Tensor, soft: Tensor) -> Tensor:
        each: Tensor = self._of_all(self.objective.mismatch)(records, soft)
        return each

    def _of_all(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one restart, of all of them: side by side, or in turn where that is faster."""
        if not any(isinstance(part, _SLOW_TOGETHER) for part in self.objective.module.modules()):
            return vmap(function)

        def in_turn(*stacked: Tensor) -> Any:
            each = [function(*restart) for restart in zip(*stacked, strict=True)]
            if isinstance(each[0], tuple):
                return tuple(torch.stack(part) for part in zip(*each, strict=True))
            return torch.stack(each)

        return in_turn


class _Adam:
    """Directions of Adam for one tensor."""

    def __init__(self, like: Tensor, *, signed: bool = False) -> None:
        self.first, self.second, self.steps = torch.zeros_like(like), torch.zeros_like(like), 0
        self.signed = signed

    def move(self, slope: Tensor) -> Tensor:
        self.steps += 1
        slope = slope.sign() if self.signed else slope
        self.first = _BETAS[0] * self.first + (1 - _BETAS[0]) * slope
        self.second = _BETAS[1] * self.second + (1 - _BETAS[1]) * slope.square()
        first = self.first / (1 - _BETAS[0] ** self.steps)
        second = self.second / (1 - _BETAS[1] ** self.steps)
        return first / (second.sqrt() + 1e-12)


@dataclass(frozen=True, eq=False)
class Objective:
    """How far records (b, *shape) with targets (b, outputs) are from one released gradient."""

    module: nn.Module
    layout: Layout
    values: Tensor  # (p,) the released gradient
    at: Tensor  # (p,)
    searched: bool  # targets are logits of labels that nobody knows
    local: ClientTraining | None = None  # how records became an update; None: one plain step
    statistics: dict[str, Tensor] = field(default_factory=dict)  # of batch norm, as in `Gradient`
    statistical: float = 0.0  # weight of the mismatch of these

    def mismatch(self, records: Tensor, targets: Tensor) -> Tensor:
        """() how far the gradient of these records is from the released one."""
        return self._compared(records, targets)[0]

    def cost(self, records: Tensor, targets: Tensor, variation: float) -> Tensor:
        """() the mismatch and all else. variation: weight of the records' total variation."""
        value, seen = self._compared(records, targets)
        if seen:
            value = value + self.statistical * gap(seen, self.statistics)
        return value + variation * total_variation(records).mean() if variation else value

    def _compared(self, records: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        seen: dict[str, Tensor] = {}

        def slope(*given: Tensor) -> Tensor:
            change: Tensor
            change, moments = grad(self._loss, has_aux=True)(*given)
            seen.update(moments)  # statistics are known of one step only
            return change

        how = slope if self.local is None else partial(self.local.simulated, slope)
        made = how(self.at, records, targets)
        size = self.values.norm().clamp_min(1e-30)
        return 1 - (made @ self.values) / (made.norm() * size).clamp_min(1e-30), seen

    def _loss(
        self, flat: Tensor, records: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        named = self.layout.split(flat)
        outputs, seen = outputs_and_moments(self.module, named, records, self.statistics)
        if self.local is not None and self.local.squared:
            return F.mse_loss(outputs, targets), seen
        if outputs.shape[1] == 1:
            share = torch.sigmoid(targets) if self.searched else targets
            return F.binary_cross_entropy_with_logits(outputs, share), seen
        share = torch.softmax(targets, 1) if self.searched else targets
        return -(share * torch.log_softmax(outputs, 1)).sum(1).mean(), seen


def infer_labels(
    values: Tensor, at: Tensor, architecture: Architecture, batch: int
) -> Tensor | None:
    """(b,) sorted labels, or None where the last layer has no bias to read.

    For a mean cross-entropy dL/db_c = mean_i (p_c(x_i) - [y_i = c]), so B (p_c - dL/db_c) counts the records
    of class c. The probabilities are those of the network on noise: exact enough while it is untrained.
    """
    layout = architecture.layout
    if len(layout.shapes[-1]) != 1:
        return None
    slope = layout.split(values)[layout.names[-1]].double()
    generator = Key.from_seed(0).fold("probes").generator()
    probes = torch.rand(_PROBES, *architecture.input_shape, generator=generator).to(at.dtype)
    logits = functional_call(architecture.build(), layout.split(at), (probes,)).double()
    if len(slope) != logits.shape[1]:
        return None  # a bias of another layer
    if len(slope) == 1:
        ones = round(float(batch * (torch.sigmoid(logits).mean() - slope[0])))
        ones = min(max(ones, 0), batch)
        return torch.tensor([0] * (batch - ones) + [1] * ones)
    counts = batch * (torch.softmax(logits, 1).mean(0) - slope)
    labels: list[int] = []
    for _ in range(batch):  # the largest count that is left takes the next record
        labels.append(int(counts.argmax()))
        counts[labels[-1]] -= 1
    return torch.tensor(sorted(labels))
