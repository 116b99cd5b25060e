"""Refining by retraining: the adversary can train on its own guess and see what it would have made of that.

    z <- z + damping · (f(theta) - f(train(D- + z)))       f the reconstructor, theta the release

The bracket estimates the reconstructor's bias at z. How far train(D- + z) is from theta can be observed, so
a step that does not bring them closer is taken back and tried again half as long, release by release.

Cost: one trained model a release and step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.informed.closed_form import ClosedForm
from exhume.core.contract import (
    Attack,
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Prepared,
    Progress,
    Reconstruction,
    Records,
    Release,
    Store,
    Weights,
    silent,
)
from exhume.store.shards import NullStore
from exhume.train.fleet import train_fleet

__all__ = ["Refined"]


@dataclass(frozen=True)
class Refined:
    """Correct another attack's reconstruction by training on it.

    Sees: `Weights`, r models, each trained on the fixed set and one unknown record.
    Assumes: what the attack to be refined assumes, and that it infers labels; the training recipe, the
    initial parameters and the fixed set.
    Guarantees: nothing about the truth is used. A model trained on the refined record is at least as close
    to the release as one trained on the unrefined record. That does not make the record better: see docs.
    Reference: ours.
    """

    attack: Attack = ClosedForm()
    steps: int = 3  # at least 1
    damping: float = 0.5  # in (0, 1]
    chunk: int = 64  # models trained at once

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ExhumeError(f"steps: {self.steps} given, at least 1 needed")
        if not 0 < self.damping <= 1:
            raise ExhumeError(f"damping: {self.damping} given, legal is 0 < damping <= 1")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedRefined:
        knowledge.require("refining", "recipe", "initial", "fixed")
        inner = self.attack.prepare(knowledge, key=key, store=store, progress=progress)
        return FittedRefined(self, inner, knowledge, key.fold("refining"))


@dataclass(frozen=True, eq=False)
class FittedRefined:
    attack: Refined
    inner: Prepared
    knowledge: Knowledge
    key: Key

    def run(self, releases: Release) -> Reconstruction:
        first = self.inner.run(releases)
        if first.status.outcome is Outcome.NOT_APPLICABLE:
            return first
        assert isinstance(releases, Weights)  # the inner attack has read it
        if first.labels is None:
            why = NotApplicable("refining needs an attack that infers labels", ever=True)
            return Reconstruction.none(len(releases.parameters), first.candidates.shape[2:], why)
        started = time.perf_counter()
        found, distances = self._refine(releases, first.candidates[:, 0], first.labels[:, 0])
        seconds = first.cost.seconds + time.perf_counter() - started
        models = first.cost.models + (1 + self.attack.steps) * len(found)
        return replace(
            first,
            candidates=found[:, None],
            cost=Cost(seconds, models),
            observed={
                **first.observed,
                "distance_before": float(distances[0].mean()),
                "distance_after": float(distances[-1].mean()),
            },
        )

    def _refine(
        self, release: Weights, first: Tensor, labels: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """(r, *record) better records, and after each step the distances (r,) to the release."""
        held = self.knowledge.fixed
        assert held is not None  # `prepare` has seen to it
        low, high = float(held.inputs.min()), float(held.inputs.max())
        records = first
        trained = self._train(records, labels)
        distances = [_distance(trained, release.parameters)]
        length = torch.full_like(distances[0], self.attack.damping)
        step = _bias(self.inner, first, trained, release)
        for _ in range(self.attack.steps):
            wide = length.reshape(-1, *[1] * (first.ndim - 1)).to(first.dtype)
            proposal = (records + wide * step).clamp(low, high)
            tried = self._train(proposal, labels)
            distance = _distance(tried, release.parameters)
            closer = distance < distances[-1]
            pick = closer.reshape(wide.shape)
            records = torch.where(pick, proposal, records)
            trained = torch.where(closer[:, None], tried, trained)
            length = torch.where(closer, length, length / 2)
            distances.append(torch.where(closer, distance, distances[-1]))
            step = _bias(self.inner, first, trained, release)
        return records, distances

    def _train(self, records: Tensor, labels: Tensor) -> Tensor:
        """(r, *record) to the models (r, p) that training on them gives."""
        known = self.knowledge
        assert known.recipe is not None
        assert known.initial is not None
        assert known.fixed is not None
        fleet = train_fleet(
            known.recipe,
            known.initial,
            known.fixed,
            Records(records, labels, known.fixed.classes).one_each(),
            key=self.key,
            store=NullStore(),  # guesses are not worth keeping
            chunk=self.attack.chunk,
            stage="training on the guesses",
        )
        return torch.cat(list(fleet))


def _bias(inner: Prepared, first: Tensor, trained: Tensor, release: Weights) -> Tensor:
    """f(theta) - f(train(z)), (r, *record)."""
    again = inner.run(Weights(trained, release.layout))
    return first - again.candidates[:, 0]


def _distance(trained: Tensor, release: Tensor) -> Tensor:
    far: Tensor = torch.linalg.vector_norm((trained - release).double(), dim=1)
    return far
