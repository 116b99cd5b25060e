"""Buzaglo23's attack as published: eq. (6), all layers, momentum, lambda = a² + lambda_min.

The search lives in the whole row space of the first layer, min(k, d) directions. Eq. (6) alone never
leaves it: a candidate's gradient is a combination of the rows. The box on pixels does where |x| exceeds 1,
and of its pull only what lies in the row space is followed; with k >= d nothing is lost. The settings are the
first of the authors' published points. As in their code the sum over candidates is a mean, which decides what
the rates mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from exhume.attacks.margin.descent import (
    Prior,
    RestartRun,
    SearchDescent,
    Start,
    StationarityResidual,
    descend,
)
from exhume.attacks.margin.reading import Reader, check_homogeneous, labels_for
from exhume.attacks.margin.restarts import Restarts, pooled
from exhume.core.contract import Key, Knowledge, Progress, Store, silent
from exhume.models.heads import Head
from exhume.train.margin import Others


@dataclass(frozen=True)
class Equation6:
    """Reconstruct training records by minimising eq. (6).

    Sees: `Weights`, r networks, each trained on its own unknown records.
    Assumes: the architecture and about how many records there were; optionally their labels and the mean
    that the released preprocessing subtracts.
    Guarantees: nothing about the truth is used. Restarts are kept one by one.
    Reference: Buzaglo23, eq. (6), and the settings of the authors' public code.
    """

    candidates: int = 200  # m; authors: twice the number of records
    head: Head = "multiclass"
    others: Others = "max"
    scale: float = 6.2e-5  # of the initial candidates; search: 1e-6 to .1
    lambda_min: float = 0.203  # search: .01 to .5
    multipliers: Literal["squared", "penalty"] = "squared"  # a² + lambda_min; penalty: the code's
    alpha: float = 39.5  # search: 10 to 500
    descent: SearchDescent = SearchDescent(
        "momentum", steps=50_000, rate=1.36e-3, multiplier_rate=0.479, falling=False
    )
    prior: Prior = Prior(box=1.0)
    restarts: int = 1

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> Restarts:
        reader = Reader.of(knowledge, self.head)
        check_homogeneous(reader.mlp)
        return Restarts(self, reader, partial(self._once, reader), key, store, progress, pooled)

    def _once(
        self,
        reader: Reader,
        parameters: Tensor,
        key: Key,
        _: list[RestartRun],
        progress: Callable[[int], None],
    ) -> RestartRun:
        span = reader.span(parameters, 0)
        labels = labels_for(self.candidates, reader, parameters)
        weights = (1.0,) * (1 + len(span.network.later))
        problem = StationarityResidual(span, labels, self.head, self.others, self.alpha, weights)
        start, shape = self._start(span.values, key), reader.mlp.input_shape
        found = descend(
            problem, start, self.descent, prior=self.prior, shape=shape, progress=progress
        )
        return found.run(span, labels, records=self.candidates / 2)

    def _start(self, like: Tensor, key: Key) -> Start:
        shape = (self.candidates, len(like))
        noise = torch.randn(shape, generator=key.fold("x").generator(), dtype=torch.float64)
        raw = torch.rand(self.candidates, generator=key.fold("a").generator(), dtype=torch.float64)
        return Start(
            self.scale * noise.to(like),
            raw.to(like),
            torch.ones_like(like),
            "free" if self.head == "regression" else self.multipliers,
            self.lambda_min,
            share=1 / self.candidates,
            absolute=True,
        )
