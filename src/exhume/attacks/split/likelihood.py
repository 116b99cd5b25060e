"""Invert the shadow head by search: the input whose features are those that the client sent.

    min over x in [0, 1]:   ||h(x) - f||² / ||f||²  +  smooth · TV(x)

started from the mean record, or from a decoder's answer. Where the shadow is close to the client, this
needs no trained inverse; where it is not, the decoder's prior is missing and the answer shows it.

Cost: `steps` forward and backward passes of the shadow head for all inputs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.split.inversion import (
    FittedInversion,
    ShadowInversion,
    TrueHeadInversion,
    mismatch,
)
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    Progress,
    Reconstruction,
    Release,
    Store,
    silent,
)


@dataclass(frozen=True)
class Likelihood:
    """Maximum likelihood with total variation, through the head that another inversion has found.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: what the inversion it starts from assumes.
    Guarantees: nothing about the truth is used; the number of steps is fixed, and the weight of the total
    variation is the caller's.
    Reference: He et al. 2019 (regularised maximum likelihood); Ensembler24 leaves it out.
    """

    inversion: ShadowInversion | TrueHeadInversion = ShadowInversion()
    steps: int = 200
    rate: float = 0.05
    smooth: float = 0.01  # weight of the total variation
    from_decoder: bool = True  # start at the decoder's answer; False: at the mean record

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.rate > 0 or self.smooth < 0:
            raise ExhumeError(f"steps and rate must be positive, smooth at least 0: {self}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedLikelihood:
        inner = self.inversion.prepare(knowledge, key=key, store=store, progress=progress)
        return FittedLikelihood(self, inner, progress)


@dataclass(frozen=True, eq=False)
class FittedLikelihood:
    attack: Likelihood
    inner: FittedInversion
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        first = self.inner.run(releases)
        values = self.inner.read(releases)
        if isinstance(values, Reconstruction):
            return values
        started = time.perf_counter()
        start = first.candidates[:, 0]
        if not self.attack.from_decoder:
            start = self.inner.server.records.inputs.mean(0).expand_as(start)
        found = self._search(start, values)
        seconds = first.cost.seconds + time.perf_counter() - started
        return replace(
            first,
            candidates=found[:, None],
            confidence=-mismatch(self.inner.head, found, values)[:, None],
            cost=Cost(seconds, first.cost.models),
        )

    def _search(self, start: Tensor, values: Tensor) -> Tensor:
        """Adam on the logits of the pixels, all inputs at once; their problems do not touch each other."""
        inside = start.clamp(0.01, 0.99)
        logits = torch.log(inside / (1 - inside)).requires_grad_()
        optimiser = torch.optim.Adam([logits], self.attack.rate)
        size = values.flatten(1).square().sum(1).clamp_min(1e-12)
        for step in range(self.attack.steps):
            self.progress("searching", step, self.attack.steps)
            images = torch.sigmoid(logits)
            apart = (self.inner.head(images) - values).flatten(1).square().sum(1) / size
            loss = (apart + self.attack.smooth * _variation(images)).sum()
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimiser.step()
        self.progress("searching", self.attack.steps, self.attack.steps)
        return torch.sigmoid(logits.detach())


def _variation(images: Tensor) -> Tensor:
    """(n,) mean absolute difference of neighbouring pixels."""
    down = (images[:, :, 1:] - images[:, :, :-1]).abs().flatten(1).mean(1)
    across = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs().flatten(1).mean(1)
    return down + across
