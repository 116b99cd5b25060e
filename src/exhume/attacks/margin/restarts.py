"""Restarts of a margin attack: one after the other, each kept as it is done, all pooled at the end.

They end in different local optima, but where they meet they meet at a training record: confidence is
how closely the nearest candidate of another restart agrees. With one restart it is the share of the
weights that a candidate explains, lambda_i·margin_i by Euler's theorem.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from exhume.attacks.margin.descent import RestartRun, SearchDescent
from exhume.attacks.margin.reading import Known, Reader
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
    Weights,
)
from exhume.store.shards import address, cached, digest

Once = Callable[[Tensor, Key, list[RestartRun], Callable[[int], None]], RestartRun]
"""(p,) parameters, the restart's key, the restarts before it, a callback for the steps done: one restart."""
_SAME = 0.7  # cosine above which two candidates are the same image


@runtime_checkable
class Config(Protocol):
    """What the attack says about its restarts."""

    @property
    def restarts(self) -> int: ...
    @property
    def descent(self) -> SearchDescent: ...


@dataclass(frozen=True, eq=False)
class Restarts:
    """A margin attack ready to run: restarts one after the other, each kept, all pooled."""

    config: Config  # part of the address of its work
    reader: Reader | Known
    once: Once
    key: Key
    store: Store
    progress: Progress
    pool: Callable[[list[RestartRun]], tuple[Tensor, Tensor, Tensor]]

    def run(self, releases: Release) -> Reconstruction:
        try:
            if not isinstance(releases, Weights):
                raise NotApplicable(
                    "the margin attack reads trained weights, not gradients or features", ever=False
                )
            return self._all(releases.parameters)
        except NotApplicable as why:
            return Reconstruction.none(0, tuple(self.reader.architecture.input_shape), why)

    def _all(self, parameters: Tensor) -> Reconstruction:
        pools, losses, records, stops, seconds = [], [], [], list[float](), 0.0
        for row in parameters:
            runs: list[RestartRun] = []
            for index in range(self.config.restarts):
                runs.append(self._restart(row, index, runs))
            losses += [run.loss for run in runs]
            records.append(runs[0].records)
            stops += [run.diverged for run in runs if run.diverged >= 0]
            seconds += sum(run.seconds for run in runs)
            pools.append(self.pool(runs))
        most = max(len(inputs) for inputs, _, _ in pools)
        candidates, confidence, labels = [], [], []
        for inputs, sure, said_of in pools:
            candidates.append(_fill(to_images(inputs, self.reader.centre), most, 0.0))
            confidence.append(_fill(sure, most, FILLED_UP))
            labels.append(_fill(said_of, most, -1.0))
        status = Status(Outcome.CONVERGED)
        if stops:
            status = Status(
                Outcome.STOPPED_EARLY,
                f"{len(stops)} of {len(losses)} restarts diverged, the first at step {min(stops):.0f}; their "
                "candidates are those before it; lower the rates",
            )
        return Reconstruction(
            candidates=torch.stack(candidates),
            confidence=torch.stack(confidence),
            status=status,
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

    def _restart(self, row: Tensor, index: int, earlier: list[RestartRun]) -> RestartRun:
        """One restart, loaded if it was done before. Same release, same key: same numbers."""
        stage = f"restart {index + 1} of {self.config.restarts}"
        seen: tuple[str, ...] = (digest(row), str(self.reader.architecture))
        if self.reader.labels is not None:
            seen = (*seen, digest(self.reader.labels))
        name = address("margin restart", self.config, seen, self.key, index)

        def restart() -> dict[str, Tensor]:
            started, steps = time.perf_counter(), self.config.descent.steps
            key = self.key.fold("restart", index)
            run = self.once(row, key, earlier, lambda done: self.progress(stage, done, steps))
            numbers = [run.loss, run.diverged, run.records, time.perf_counter() - started]
            parts = {"inputs": run.inputs, "labels": run.labels, "explained": run.explained}
            return {**parts, "numbers": torch.tensor(numbers, dtype=torch.float64, device="cpu")}

        saved = cached(self.store, name, restart)
        inputs, labels, explained = (
            saved[part].to(row.device) for part in ("inputs", "labels", "explained")
        )
        return RestartRun(inputs, labels, explained, *saved["numbers"].tolist())


def _fill(rows: Tensor, most: int, value: float) -> Tensor:
    """The rows and as many of `value` as are missing: releases may differ in their pools."""
    return torch.cat([rows, rows.new_full((most - len(rows), *rows.shape[1:]), value)])


def joined(results: list[Reconstruction]) -> Reconstruction:
    """One reconstruction of several releases; those with fewer candidates are filled up."""
    first, most = results[0], max(each.candidates.shape[1] for each in results)

    def filled(name: str, value: float) -> Tensor:
        rows = (row for each in results for row in getattr(each, name))
        return torch.stack([_fill(row, most, value) for row in rows])

    stopped = [each.status for each in results if each.status.outcome != Outcome.CONVERGED]
    return Reconstruction(
        candidates=filled("candidates", 0.0),
        confidence=filled("confidence", FILLED_UP),
        status=stopped[0] if stopped else first.status,
        cost=replace(first.cost, seconds=sum(each.cost.seconds for each in results)),
        labels=filled("labels", -1.0),
        observed={
            name: sum(each.observed[name] for each in results) / len(results)
            for name in first.observed
        },
    )


def pooled(runs: list[RestartRun]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (k, d), confidence (k,) and labels (k,), surest first."""
    return _ordered(runs, runs[0].explained if len(runs) == 1 else _agreement(runs))


def by_own_confidence(runs: list[RestartRun]) -> tuple[Tensor, Tensor, Tensor]:
    """Pool runs whose candidates carry their own confidence, and whose rounds are not meant to agree."""
    return _ordered(runs, torch.cat([run.explained for run in runs]))


def _ordered(runs: list[RestartRun], confidence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    inputs, labels = torch.cat([r.inputs for r in runs]), torch.cat([r.labels for r in runs])
    order = confidence.argsort(descending=True, stable=True)
    return inputs[order], confidence[order], labels[order]


def agreed(runs: list[RestartRun]) -> tuple[Tensor, Tensor]:
    """What the restarts found in common, each once: inputs (k, d) and labels (k,)."""
    inputs, labels = torch.cat([r.inputs for r in runs]), torch.cat([r.labels for r in runs])
    if len(runs) < 2:
        return inputs[:0], labels[:0]
    confidence = _agreement(runs)
    sure = (confidence >= _SAME).nonzero()[:, 0]
    once = sure[distinct(inputs[sure], confidence[sure], _SAME)[0]]
    return inputs[once], labels[once]


def distinct(inputs: Tensor, sure: Tensor, same: float) -> tuple[Tensor, Tensor]:
    """Which of (m, d) inputs to keep so that each image is there once: indices (k,), surest first, and how
    many inputs each stands for (k,)."""
    units = normalize(inputs, dim=1)
    left = torch.ones(len(units), dtype=torch.bool, device=units.device)
    kept, sizes = list[int](), list[int]()
    for index in sure.argsort(descending=True, stable=True).tolist():
        if left[index]:
            alike = (units @ units[index] > same) & left
            alike[index] = True
            left &= ~alike
            kept.append(index)
            sizes.append(int(alike.sum()))
    return left.new_tensor(kept, dtype=torch.int64), left.new_tensor(sizes, dtype=torch.int64)


def said(outputs: Tensor) -> Tensor:
    """(m,) labels by (m, c) outputs, which a network has learnt of its training records."""
    return (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)


def _agreement(runs: list[RestartRun]) -> Tensor:
    """(k,) cosine of each candidate with the nearest of another restart that has its label.

    Two restarts at a time: all pairs at once would take memory with the square of their number.
    """
    units = [normalize(run.inputs, dim=1) for run in runs]
    nearest = []
    for one, own in zip(units, runs, strict=True):
        best = torch.full_like(one[:, 0], -1.0)
        for other, theirs in zip(units, runs, strict=True):
            if theirs is not own:
                apart = own.labels[:, None] != theirs.labels
                cosines = (one @ other.T).masked_fill_(apart, -1.0)
                best = torch.maximum(best, cosines.max(1).values)
        nearest.append(best)
    return torch.cat(nearest)


def to_images(inputs: Tensor, centre: Tensor) -> Tensor:
    """(k, d) centred inputs to records in [0, 1]: the centre added, then stretched to the full range.

    The stretch, as in the authors' code, makes up for a contrast that the residual hardly determines.
    Records that are no images are left as they are.
    """
    records = inputs.reshape(-1, *centre.shape) + centre.to(inputs)
    return records if centre.ndim < 3 else stretched(records)


def stretched(records: Tensor) -> Tensor:
    """(k, *shape) each record stretched to [0, 1]."""
    low, high = records.flatten(1).aminmax(dim=1)
    room = (-1, *(1,) * (records.ndim - 1))
    return (records - low.view(room)) / (high - low).clamp_min(1e-9).view(room)
