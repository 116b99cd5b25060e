"""Training images from the first layer of a trained network, inside its own row span.

Against eq. (6) of Buzaglo23:
1. Only the first layer is explained: the later ones keep most of their random start, which no data explain.
2. Candidates live in the span of the first layer's rows: r = n - 1 unknowns each instead of d.
3. The competitors of a class are weighted as cross-entropy weights them, not by the maximum. At the true
   records this halves the squared residual.
4. Directions are weighted alike: errors of the multipliers reach the residual through the inputs, so each
   column is divided by the spread that inputs have there, which is about the root of its singular value.
5. Multipliers have a free scale; the contrast of candidates is bounded.
6. Adam, and restarts pooled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.margin.descent import Descent, Start, descend
from exhume.attacks.margin.pool import Run, pooled, to_images
from exhume.attacks.margin.priors import Prior
from exhume.attacks.margin.reading import Reader, labels_for
from exhume.attacks.margin.residual import Residual, Span
from exhume.contract import (
    Cost,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Status,
    Store,
    silent,
)
from exhume.models.heads import Head
from exhume.store import address, digest
from exhume.train.stationarity import Others

__all__ = ["FirstLayer", "Restarts"]


@dataclass(frozen=True)
class FirstLayer:
    """Reconstruct training records from the weights of a homogeneous network.

    Sees: `Weights`, r networks, each trained on its own unknown records.
    Assumes: the architecture; optionally the labels of the training records and the mean that the
    released preprocessing subtracts.
    Guarantees: nothing about the truth is used. Every restart is a piece of work of its own: a killed
    run goes on where it was and ends with the same bits; memory does not grow with restarts.
    Reference: Buzaglo23, eq. (6); the six changes are ours.
    """

    head: Head = "multiclass"
    others: Others = "softmax"
    weights: tuple[float, ...] = (1.0,)  # of the layers' residuals, first to last
    whiten: bool = True  # weight the first layer's columns alike
    rank: int | None = None  # of the span; None: read off the spectrum, 0: all of it
    candidates: float = 2.0  # per training record, whose number is the rank + 1
    restarts: int = 4
    alpha: float = 50.0  # steepness of the smoothed derivative; the authors search 10 to 500
    contrast: float = 0.22  # standard deviation of a candidate's pixels at the start
    largest: float = 0.25  # and at most
    descent: Descent = Descent()
    prior: Prior = Prior()

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> Restarts:
        reader = Reader.of(knowledge, self.head)
        return Restarts(
            reader,
            self.restarts,
            self.descent.steps,
            self,
            self._once(reader),
            key,
            store,
            progress,
        )

    def _once(self, reader: Reader) -> Once:
        def once(parameters: Tensor, key: Key, progress: Callable[[int], None]) -> Run:
            span = reader.span(parameters, self.rank)
            count = round(self.candidates * (len(span.basis) + 1))
            labels = labels_for(count, reader, parameters)
            start, columns = self._start(span, count, key)
            problem = Residual(
                span, labels, self.head, self.others, self.alpha, self.weights, columns
            )
            start = _with_multipliers(problem, start, signed=self.head == "regression")
            found = descend(
                problem,
                start,
                self.descent,
                prior=self.prior,
                shape=reader.mlp.input_shape,
                progress=progress,
            )
            return Run(
                span.inputs(found.coordinates),
                found.multipliers * found.margins,
                found.loss,
                -1.0 if found.diverged is None else float(found.diverged),
                float(len(span.basis) + 1),
            )

        return once

    def _start(self, span: Span, count: int, key: Key) -> tuple[Start, Tensor | None]:
        spread = span.values.sqrt()
        root = math.sqrt(span.basis.shape[1])
        spread = spread * (self.contrast * root / spread.norm())
        noise = torch.randn(count, len(spread), generator=key.generator(), dtype=torch.float64)
        coordinates = noise.to(spread) * spread
        columns = torch.cat([1 / spread, torch.ones_like(spread[:1])]) if self.whiten else None
        raw = torch.zeros_like(coordinates[:, 0])
        return Start(coordinates, raw, spread, largest=self.largest * root), columns


Once = Callable[[Tensor, Key, Callable[[int], None]], Run]
"""(p,) parameters, the restart's key, and a callback for the steps done: one restart."""


def _with_multipliers(problem: Residual, start: Start, *, signed: bool) -> Start:
    """The same start with one multiplier for all: the scale that explains most.

    loss(s) = loss(0) - 2 s a + s² q, so two evaluations give the best s. Where the random candidates point
    away from the weights (a < 0), a tenth of the weights' norm is a start that can still grow.
    """
    zero = torch.zeros_like(start.raw)
    none, one = problem.at(start.coordinates, zero), problem.at(start.coordinates, zero + 1)
    a = -0.5 * float(none.multipliers.sum())
    q = max(one.loss - none.loss + 2 * a, 1e-12)
    if signed:
        return replace(start, raw=zero + a / q, multiplier="free")
    return replace(start, raw=zero + math.log(max(a / q, 0.1 / math.sqrt(q))), multiplier="log")


@dataclass(frozen=True, eq=False)
class Restarts:
    """A margin attack ready to run: restarts one after the other, each kept, all pooled."""

    reader: Reader
    restarts: int
    steps: int  # of one restart
    config: object  # of the attack: part of the address of its work
    once: Once
    key: Key
    store: Store
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        shape = self.reader.mlp.input_shape
        try:
            parameters = self.reader.released(releases)
        except NotApplicable as why:
            return Reconstruction.none(0, shape, why)
        pools, losses, records, stops, seconds = [], [], [], list[float](), 0.0
        for row in parameters:
            runs = [self._restart(row, index) for index in range(self.restarts)]
            losses += [run.loss for run in runs]
            records.append(runs[0].records)
            stops += [run.diverged for run in runs if run.diverged >= 0]
            seconds += sum(run.seconds for run in runs)
            pools.append((runs[0].inputs.shape[0], *pooled(runs)))
        most = max(len(inputs) for _, inputs, _, _ in pools)
        candidates, confidence, labels = [], [], []
        for count, inputs, sure, order in pools:
            own = labels_for(count, self.reader, order)[order % count]
            candidates.append(_fill(to_images(inputs, self.reader.centre), most))
            confidence.append(_fill(sure, most, float("-inf")))
            labels.append(_fill(own, most))
        return Reconstruction(
            candidates=torch.stack(candidates),
            confidence=torch.stack(confidence),
            status=_status(stops, len(losses)),
            cost=Cost(seconds),
            labels=torch.stack(labels),
            observed={
                "residual": min(losses),
                "residual_mean": sum(losses) / len(losses),
                "restarts": float(self.restarts),
                "candidates": float(most),
                "records": max(records),
            },
        )

    def _restart(self, row: Tensor, index: int) -> Run:
        """One restart, loaded if it was done before. Same release, same key: same numbers."""
        stage = f"restart {index + 1} of {self.restarts}"
        inputs: tuple[str, ...] = (digest(row), str(self.reader.mlp))
        if self.reader.labels is not None:
            inputs = (*inputs, digest(self.reader.labels))
        name = address("margin restart", self.config, inputs, self.key, index)
        saved = self.store.load(name)
        if saved is None:
            started = time.perf_counter()
            run = self.once(row, self.key.fold("restart", index), self._steps_done(stage))
            run = replace(run, seconds=time.perf_counter() - started)
            numbers = torch.tensor(
                [run.loss, run.diverged, run.records, run.seconds], dtype=torch.float64
            )
            self.store.save(
                name, {"inputs": run.inputs, "explained": run.explained, "numbers": numbers}
            )
            return run
        return Run(saved["inputs"], saved["explained"], *saved["numbers"].tolist())

    def _steps_done(self, stage: str) -> Callable[[int], None]:
        return lambda done: self.progress(stage, done, self.steps)


def _status(stops: list[float], restarts: int) -> Status:
    if not stops:
        return Status(Outcome.CONVERGED)
    return Status(
        Outcome.STOPPED_EARLY,
        f"{len(stops)} of {restarts} restarts diverged, the first at step {min(stops):.0f}; their "
        "candidates are those before it; lower the rates",
    )


def _fill(rows: Tensor, most: int, value: float | None = None) -> Tensor:
    """Repeat the last row (or a value) until there are so many: releases may differ in their pools."""
    missing = most - len(rows)
    if not missing:
        return rows
    last = rows[-1:] if value is None else torch.full_like(rows[-1:], value)
    return torch.cat([rows, last.expand(missing, *rows.shape[1:])])
