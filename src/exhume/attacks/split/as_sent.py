"""Look at what a client sends: its features as pictures, before anything is trained.

A head that does little (nothing at all, a change of brightness, few filters) sends something that looks like
its input. The channel whose mean over requests resembles the mean of the attacker's own records is shown,
scaled to their brightness and contrast. Moments leave the sign open: both are candidates, the likelier first.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.releases import features_of
from exhume.core.contract import (
    Cost,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Records,
    Release,
    Status,
    Store,
    silent,
)


@dataclass(frozen=True)
class AsSent:
    """Show the features themselves as images.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: records like the client's, for brightness and contrast; features that the client sent before;
    features that are maps, or as many numbers as an input has.
    Guarantees: nothing is trained, and nothing about the truth is used. Confidence is how much the mean of
    what was sent resembles the mean of the records held.
    Reference: none; the first thing that anybody would try.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedAsSent:
        knowledge.require("looking at what was sent", "shadow", "features", "seen")
        assert knowledge.shadow is not None
        assert knowledge.seen is not None
        assert knowledge.features is not None
        shape, features = knowledge.shadow.shape, knowledge.features
        if len(shape) != 3 or (len(features) != 3 and math.prod(features) != math.prod(shape)):
            raise NotApplicable(f"features of shape {features} are no pictures", ever=False)
        return PreparedAsSent(knowledge.shadow, features, knowledge.seen)


@dataclass(frozen=True, eq=False)
class PreparedAsSent:
    held: Records
    features: tuple[int, ...]
    seen: Tensor  # (m, *features)

    def run(self, releases: Release) -> Reconstruction:
        shape, started = self.held.shape, time.perf_counter()
        wanted = f"{self.features} were expected"
        values = features_of(releases, shape, self.features, wanted)
        if isinstance(values, Reconstruction):
            return values
        maps, before = self._maps(values), self._maps(self.seen)
        alike = _alike(before.mean(0), self.held.inputs.double().mean(0))  # (sent, colours)
        colours = torch.arange(shape[0], device=values.device)
        likest = alike.abs().sum(1).argmax().expand(shape[0])
        picked = colours if maps.shape[1] == shape[0] else likest  # a channel for each colour
        signs = torch.where(alike[picked, colours] < 0, -1.0, 1.0)
        shown = [self._scaled(maps[:, picked], before[:, picked], signs * s) for s in (1, -1)]
        either = torch.stack(shown, dim=1)
        likeness = alike[picked, colours].abs().mean()
        confidence = torch.stack([likeness, -likeness]).expand(len(values), 2)
        status, cost = Status(Outcome.CONVERGED), Cost(time.perf_counter() - started)
        return Reconstruction(either.to(values.dtype), confidence, status, cost)

    def _maps(self, values: Tensor) -> Tensor:
        """(n, k, h, w) of a record's height and width."""
        shape = self.held.shape
        maps = values if len(self.features) == 3 else values.reshape(len(values), *shape)
        return F.interpolate(maps.double(), shape[1:], mode="bilinear", align_corners=False)

    def _scaled(self, maps: Tensor, before: Tensor, signs: Tensor) -> Tensor:
        """With the mean and the spread of the records held, colour by colour."""
        held = self.held.inputs.double()
        over = (0, 2, 3)
        spread = before.std(over, keepdim=True).clamp_min(1e-12)
        unit = (maps - before.mean(over, keepdim=True)) / spread
        shown = held.mean(over, keepdim=True) + signs[:, None, None] * unit * held.std(
            over, keepdim=True
        )
        return shown.clamp(0, 1)


def _alike(sent: Tensor, held: Tensor) -> Tensor:
    """(k, c) correlation of every channel's mean picture with every colour's."""
    one, other = (
        F.normalize(m.flatten(1) - m.flatten(1).mean(1, keepdim=True)) for m in (sent, held)
    )
    return one @ other.T
