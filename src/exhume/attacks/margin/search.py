"""Hyper-parameters without the truth: successive halving on what the attacker can see.

Settings are drawn at random and given a few steps, with two restarts each. What is seen is how well the
restarts agree: two searches that start apart and end at the same images have found something that is in
the weights. The better half goes on with twice the steps, until one setting is left, which is then run in
full. The residual alone would mislead: it falls below its value at the true images.

Every trial is a piece of work with an address, done here or on a Ray cluster (`scale.spread_over`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.restarts import joined
from exhume.contract import (
    ExhumeError,
    Key,
    Knowledge,
    Progress,
    Reconstruction,
    Release,
    Shard,
    Store,
    Weights,
    silent,
)
from exhume.scale import run_jobs
from exhume.store import NullStore, address, digest

__all__ = ["BlindSearch", "Space", "Trial", "agreement"]


@dataclass(frozen=True)
class Space:
    """Where settings are drawn from: uniform in the logarithm. The first trial is the base itself."""

    alpha: tuple[float, float] = (10.0, 500.0)  # the authors' range
    largest: tuple[float, float] = (0.15, 0.5)
    rate: tuple[float, float] = (0.02, 0.2)
    multiplier_rate: tuple[float, float] = (0.02, 0.2)
    candidates: tuple[float, float] = (1.0, 4.0)

    def draw(self, base: FirstLayer, key: Key) -> FirstLayer:
        generator = key.generator()

        def between(limits: tuple[float, float]) -> float:
            low, high = math.log(limits[0]), math.log(limits[1])
            return math.exp(low + (high - low) * float(torch.rand((), generator=generator)))

        largest = between(self.largest)
        return replace(
            base,
            alpha=between(self.alpha),
            largest=largest,
            contrast=0.88 * largest,  # as the defaults have it
            candidates=between(self.candidates),
            descent=replace(
                base.descent,
                rate=between(self.rate),
                multiplier_rate=between(self.multiplier_rate),
            ),
        )


@dataclass(frozen=True, eq=False)
class Trial:
    """One setting, tried."""

    attack: FirstLayer
    steps: int
    agreement: float
    residual: float


@dataclass(frozen=True)
class BlindSearch:
    """Reconstruct training records with settings chosen by the attack itself.

    Sees: `Weights`, r networks, each trained on its own unknown records.
    Assumes: what `FirstLayer` assumes.
    Guarantees: nothing about the truth is used, for the choice of settings neither. A killed search goes on
    where it was and ends with the same choice.
    Reference: Buzaglo23 tunes with the truth in sight; the search is ours.
    """

    base: FirstLayer = FirstLayer()
    trials: int = 8  # settings at first; halved each round
    steps: int = 40  # of the first round; doubled each round
    space: Space = Space()

    def __post_init__(self) -> None:
        if self.trials < 1 or self.steps < 1:
            raise ExhumeError(
                f"search: {self.trials} trials of {self.steps} steps given, at least 1 of each needed"
            )

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedSearch:
        self.base.prepare(knowledge, key=key, store=store)  # refuses what it cannot handle
        return PreparedSearch(self, knowledge, key, store, progress)


@dataclass(frozen=True, eq=False)
class PreparedSearch:
    search: BlindSearch
    knowledge: Knowledge
    key: Key
    store: Store
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        """One choice for all releases would let them influence each other: each has its own."""
        if not isinstance(releases, Weights):
            return self._full(self.search.base, releases)
        found = []
        for row in releases.parameters:
            one = Weights(row[None], releases.layout)
            found.append(self._full(self.choose(one)[-1].attack, one))
        return joined(found)

    def choose(self, release: Weights) -> list[Trial]:
        """All trials for one release, round by round; the last is the winner."""
        search = self.search
        alive = [search.base] + [
            search.space.draw(search.base, self.key.fold("trial", index))
            for index in range(1, search.trials)
        ]
        steps, seen = search.steps, list[Trial]()
        while True:
            tried = self._round(alive, steps, release)
            seen += tried
            best = sorted(tried, key=lambda trial: -trial.agreement)
            if len(best) == 1:
                return seen
            alive = [trial.attack for trial in best[: max(1, len(best) // 2)]]
            if len(alive) == 1:
                return [*seen, best[0]]
            steps *= 2

    def _round(self, attacks: list[FirstLayer], steps: int, release: Weights) -> list[Trial]:
        shared = (self.knowledge, release, self.key.fold("round"))
        short = [
            replace(attack, restarts=2, descent=replace(attack.descent, steps=steps))
            for attack in attacks
        ]
        names = [
            address("margin trial", attack, (digest(release.parameters),), self.key, 0)
            for attack in short
        ]
        known = [self.store.load(name) for name in names]
        jobs = [a if saved is None else None for a, saved in zip(short, known, strict=True)]
        stage = f"search, {steps} steps"
        self.progress(stage, 0, len(jobs))
        for index, measured in run_jobs(_try, jobs, shared=shared):
            if measured is not None:
                known[index] = trial = Shard({"numbers": measured})
                self.store.save(names[index], trial)
            self.progress(stage, index + 1, len(jobs))
        trials = []
        for attack, saved in zip(attacks, known, strict=True):
            assert saved is not None  # loaded, or just computed
            agreed, residual = saved["numbers"].tolist()
            trials.append(Trial(attack, steps, agreed, residual))
        return trials

    def _full(self, attack: FirstLayer, release: Release) -> Reconstruction:
        prepared = attack.prepare(
            self.knowledge, key=self.key, store=self.store, progress=self.progress
        )
        return prepared.run(release)


def _try(shared: tuple[Knowledge, Weights, Key], attack: FirstLayer) -> Tensor:
    """(2,): the agreement and the residual of a short attack."""
    knowledge, release, key = shared
    found = attack.prepare(knowledge, key=key, store=NullStore()).run(release)
    records = found.observed["records"]
    agreed = agreement(found.candidates[0], found.confidence[0], round(records))
    return torch.tensor([agreed, found.observed["residual"]], dtype=torch.float64)


def agreement(candidates: Tensor, confidence: Tensor, records: int) -> float:
    """Mean confidence of the `records` surest candidates that differ from one another.

    Without the last clause, finding one image many times would look like success.
    """
    flat = candidates.flatten(1)
    units = torch.nn.functional.normalize(flat - flat.mean(0), dim=1)
    kept: list[int] = []
    for index in range(len(units)):  # surest first
        if not kept or float((units[kept] @ units[index]).max()) < 0.8:
            kept.append(index)
        if len(kept) == records:
            break
    return float(confidence[kept].sum()) / records
