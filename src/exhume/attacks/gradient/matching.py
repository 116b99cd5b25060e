"""Gradient matching as practised: search for records whose gradient is the released one.

    min_X  || G - grad L(X) ||^2          DLG (Zhu et al. 2019)
    min_X  1 - cos(G, grad L(X)) + tv(X)    inverting gradients (Geiping et al. 2020)

Works on whatever `Architecture.build` returns, through `torch.func`. All restarts run at once under vmap;
the one whose own mismatch is smallest is kept. Labels are read off the last layer where that is possible,
else searched for along with the records, as DLG does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from exhume.attacks.gradient.gathering import Batch, EachGradient
from exhume.attacks.gradient.labels import infer_labels
from exhume.contract import (
    Architecture,
    Attack,
    ClientTraining,
    ExhumeError,
    GradientOf,
    Key,
    Knowledge,
    NotApplicable,
    Prepared,
    Progress,
    Reconstruction,
    Release,
    Store,
    silent,
)

__all__ = ["GradientMatching", "PreparedMatching", "total_variation"]

_BETAS = (0.9, 0.999)
_EXPLAINED = 0.05  # mismatch above which a search has not converged: 10% of the squared gradient
_SETTLED = 1e-3  # mismatch below which it has, and need not stand still
_LAST, _FALLING = 0.75, 0.9  # what it loses in the last quarter of its steps, if it still falls


@dataclass(frozen=True)
class GradientMatching:
    """Search for the batch whose gradient matches.

    Sees: `Gradient`, all layers.
    Assumes: the architecture, the mean loss, the batch size (or an attack to start from, which finds it).
    Guarantees: none: the search may stop in a local minimum. Confidence is minus its own mismatch.
    Reference: Zhu et al. 2019, Geiping et al. 2020; Wang23 starts it from the tensor estimate.
    """

    mismatch: str = "cosine"  # or "l2"
    variation: float = 0.0  # weight of the total variation of images; Geiping et al.: 1e-4 to 1e-1
    steps: int = 300
    rate: float = 0.1  # of Adam, falling to a tenth
    restarts: int = 4  # from noise; one, if there is an attack to start from
    start: Attack | None = None
    low: float = 0.0  # records are kept within [low, high]
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.mismatch not in ("cosine", "l2"):
            raise ExhumeError(f"mismatch: {self.mismatch!r} is not one of cosine, l2")
        if self.steps < 1 or self.restarts < 1:
            raise ExhumeError(
                f"steps, restarts: must be at least 1, got {self.steps}, {self.restarts}"
            )

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedMatching:
        architecture = knowledge.architecture
        if architecture is None:
            raise NotApplicable("gradient matching needs the architecture", ever=True)
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

        def invert(values: Tensor, at: Tensor, index: int) -> Batch:
            guess = self._starts(index, before(), values)
            labels = None
            if not self._squared:
                labels = infer_labels(values, at, self.architecture, guess.shape[1])
            return self._search(values, at, guess, labels)

        shape, stage = tuple(self.architecture.input_shape), "matching gradients"
        return EachGradient(shape, invert, "gradient matching", stage, self.progress).run(releases)

    def _starts(self, index: int, before: Reconstruction | None, like: Tensor) -> Tensor:
        """(restarts, b, *shape)"""
        shape, low, high = self.architecture.input_shape, self.attack.low, self.attack.high
        if before is not None:
            found = before.found(index).to(like.dtype)
            if len(found):
                return found.reshape(1, -1, *shape).clamp(low, high)
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
        return (low + (high - low) * noise).to(like.dtype)

    def _search(self, values: Tensor, at: Tensor, guess: Tensor, labels: Tensor | None) -> Batch:
        outputs = self._outputs(at)
        if labels is None:
            soft = guess.new_zeros(*guess.shape[:2], outputs)
        else:
            soft = _targets(labels, outputs).to(guess.dtype).expand(*guess.shape[:2], outputs)
        cost = self._cost(values, at, searched=labels is None)
        slopes = vmap(grad(cost, argnums=(0, 1)))
        state = [_Adam(guess), _Adam(soft)]
        records = guess.clone()
        plain = vmap(self._cost(values, at, searched=labels is None, plain=True))
        earlier = plain(records, soft)
        for step in range(self.attack.steps):
            if step == int(_LAST * self.attack.steps):
                earlier = plain(records, soft)
            rate = self.attack.rate * 0.1 ** (step / self.attack.steps)
            along, across = slopes(records, soft)
            records = (records - rate * state[0].move(along)).clamp(
                self.attack.low, self.attack.high
            )
            if labels is None:
                soft = soft - rate * state[1].move(across)
        ends = plain(records, soft)
        best = int(ends.argmin())
        found = labels
        if found is None and not self._squared:
            found = _hard(soft[best])
        confidence = (-ends[best]).double().expand(guess.shape[1])
        mismatch, before = float(ends[best]), float(earlier[best])
        settled = mismatch <= _SETTLED or mismatch > _FALLING * before
        complete = mismatch <= _EXPLAINED and settled
        observed = {"mismatch": mismatch, "fell": 1 - mismatch / max(before, 1e-30)}
        return Batch(records[best], confidence, observed, found, complete=complete)

    @property
    def _squared(self) -> bool:
        return self.local is not None and self.local.squared

    def _outputs(self, at: Tensor) -> int:
        """Classes: the last trained layer need not be the last one."""
        zeros = at.new_zeros(2, *self.architecture.input_shape)
        named = self.architecture.layout.split(at)
        found: int = functional_call(self.architecture.build(), named, (zeros,)).shape[1]
        return found

    def _update(self, gradient: GradientOf, at: Tensor, records: Tensor, targets: Tensor) -> Tensor:
        """(p,) what a client sends that trains on the records."""
        if self.local is None:
            return gradient(at, records, targets)
        return self.local.simulated(gradient, at, records, targets)

    def _cost(
        self, values: Tensor, at: Tensor, *, searched: bool, plain: bool = False
    ) -> Callable[[Tensor, Tensor], Tensor]:
        module, layout = self.architecture.build(), self.architecture.layout
        scale = values.norm().clamp_min(1e-30)

        def loss(flat: Tensor, records: Tensor, targets: Tensor) -> Tensor:
            outputs = functional_call(module, layout.split(flat), (records,))
            if self._squared:
                return F.mse_loss(outputs, targets)
            if outputs.shape[1] == 1:
                share = torch.sigmoid(targets) if searched else targets
                return F.binary_cross_entropy_with_logits(outputs, share)
            share = torch.softmax(targets, 1) if searched else targets
            value: Tensor = -(share * torch.log_softmax(outputs, 1)).sum(1).mean()
            return value

        def cost(records: Tensor, targets: Tensor) -> Tensor:
            own = self._update(grad(loss), at, records, targets)
            if self.attack.mismatch == "cosine":
                value: Tensor = 1 - (own @ values) / (own.norm() * scale).clamp_min(1e-30)
            else:
                value = ((own - values) / scale).square().sum()
            return value if plain else value + self.attack.variation * total_variation(records)

        return cost


class _Adam:
    """Directions of Adam for one tensor."""

    def __init__(self, like: Tensor) -> None:
        self.first, self.second, self.steps = torch.zeros_like(like), torch.zeros_like(like), 0

    def move(self, slope: Tensor) -> Tensor:
        self.steps += 1
        self.first = _BETAS[0] * self.first + (1 - _BETAS[0]) * slope
        self.second = _BETAS[1] * self.second + (1 - _BETAS[1]) * slope.square()
        first = self.first / (1 - _BETAS[0] ** self.steps)
        second = self.second / (1 - _BETAS[1] ** self.steps)
        return first / (second.sqrt() + 1e-12)


def total_variation(records: Tensor) -> Tensor:
    """() mean absolute difference of neighbouring pixels; 0 for records that are no images."""
    if records.ndim < 4:
        return records.new_zeros(())
    down = (records[..., 1:, :] - records[..., :-1, :]).abs().mean()
    right = (records[..., 1:] - records[..., :-1]).abs().mean()
    return down + right


def _targets(labels: Tensor, outputs: int) -> Tensor:
    return labels[:, None].double() if outputs == 1 else F.one_hot(labels, outputs).double()


def _hard(soft: Tensor) -> Tensor:
    return (soft[:, 0] > 0).long() if soft.shape[1] == 1 else soft.argmax(1)
