"""Restarts of a margin attack: one after the other, each kept as it is done, all pooled at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.known import Background, weights_of
from exhume.attacks.margin.pool import Run, pooled, to_images
from exhume.core.contract import (
    FILLED_UP,
    Cost,
    Key,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Status,
    Store,
)
from exhume.store.shards import address, digest

__all__ = ["Once", "Restarts", "joined"]

Once = Callable[[Tensor, Key, list[Run], Callable[[int], None]], Run]
"""(p,) parameters, the restart's key, the restarts before it, a callback for the steps done: one restart."""


@runtime_checkable
class Config(Protocol):
    """What the attack says about its restarts."""

    @property
    def restarts(self) -> int: ...
    @property
    def descent(self) -> Descent: ...


@dataclass(frozen=True, eq=False)
class Restarts:
    """A margin attack ready to run: restarts one after the other, each kept, all pooled."""

    config: Config  # part of the address of its work
    reader: Background
    once: Once
    key: Key
    store: Store
    progress: Progress
    pool: Callable[[list[Run]], tuple[Tensor, Tensor, Tensor]] = pooled

    def run(self, releases: Release) -> Reconstruction:
        try:
            return self._all(weights_of(releases))
        except NotApplicable as why:
            return Reconstruction.none(0, tuple(self.reader.architecture.input_shape), why)

    def _all(self, parameters: Tensor) -> Reconstruction:
        pools, losses, records, stops, seconds = [], [], [], list[float](), 0.0
        for row in parameters:
            runs: list[Run] = []
            for index in range(self.config.restarts):
                runs.append(self._restart(row, index, runs))
            losses += [run.loss for run in runs]
            records.append(runs[0].records)
            stops += [run.diverged for run in runs if run.diverged >= 0]
            seconds += sum(run.seconds for run in runs)
            pools.append(self.pool(runs))
        most = max(len(inputs) for inputs, _, _ in pools)
        candidates, confidence, labels = [], [], []
        for inputs, sure, own in pools:
            candidates.append(_fill(to_images(inputs, self.reader.centre), most, 0.0))
            confidence.append(_fill(sure, most, FILLED_UP))
            labels.append(_fill(own, most, -1.0))
        return Reconstruction(
            candidates=torch.stack(candidates),
            confidence=torch.stack(confidence),
            status=_status(stops, len(losses)),
            cost=Cost(seconds),
            labels=torch.stack(labels),
            observed={
                "residual": min(losses),
                "residual_mean": sum(losses) / len(losses),
                "restarts": float(self.config.restarts),
                "candidates": float(most),
                "records": max(records),
            },
        )

    def _restart(self, row: Tensor, index: int, earlier: list[Run]) -> Run:
        """One restart, loaded if it was done before. Same release, same key: same numbers."""
        stage = f"restart {index + 1} of {self.config.restarts}"
        seen: tuple[str, ...] = (digest(row), str(self.reader.architecture))
        if self.reader.labels is not None:
            seen = (*seen, digest(self.reader.labels))
        name = address("margin restart", self.config, seen, self.key, index)
        saved = self.store.load(name)
        if saved is None:
            started = time.perf_counter()
            own, steps = self.key.fold("restart", index), self.config.descent.steps
            run = self.once(row, own, earlier, lambda done: self.progress(stage, done, steps))
            run = replace(run, seconds=time.perf_counter() - started)
            numbers = torch.tensor(
                [run.loss, run.diverged, run.records, run.seconds], dtype=torch.float64
            )
            kept = {"inputs": run.inputs, "labels": run.labels, "explained": run.explained}
            self.store.save(name, {**kept, "numbers": numbers})
            return run
        inputs, labels, explained = (
            saved[part].to(row.device) for part in ("inputs", "labels", "explained")
        )
        return Run(inputs, labels, explained, *saved["numbers"].tolist())


def _status(stops: list[float], restarts: int) -> Status:
    if not stops:
        return Status(Outcome.CONVERGED)
    return Status(
        Outcome.STOPPED_EARLY,
        f"{len(stops)} of {restarts} restarts diverged, the first at step {min(stops):.0f}; their "
        "candidates are those before it; lower the rates",
    )


def _fill(rows: Tensor, most: int, value: float) -> Tensor:
    """The rows and as many of `value` as are missing: releases may differ in their pools."""
    return torch.cat([rows, rows.new_full((most - len(rows), *rows.shape[1:]), value)])


def joined(found: list[Reconstruction]) -> Reconstruction:
    """One reconstruction of several releases; those with fewer candidates are filled up."""
    most = max(one.candidates.shape[1] for one in found)
    labels = [row for one in found if one.labels is not None for row in one.labels]
    mean = {
        name: sum(one.observed[name] for one in found) / len(found) for name in found[0].observed
    }
    return Reconstruction(
        candidates=torch.stack([_fill(row, most, 0.0) for one in found for row in one.candidates]),
        confidence=torch.stack(
            [_fill(row, most, FILLED_UP) for one in found for row in one.confidence]
        ),
        status=next(
            (o.status for o in found if o.status.outcome != Outcome.CONVERGED), found[0].status
        ),
        cost=replace(found[0].cost, seconds=sum(one.cost.seconds for one in found)),
        labels=torch.stack([_fill(row, most, -1.0) for row in labels]),
        observed=mean,
    )
