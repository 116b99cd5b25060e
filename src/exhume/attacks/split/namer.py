"""Name the input behind what a client sent, with everything known but the noise: the best that can be done.

For K equally likely inputs u_1 … u_K behind Gaussian noise, the likeliest one is the nearest one,

    argmin_i || y - u_i ||²,

and no rule names more of them (Bayes). Beside it stands the bound of bounds/channel.py for all rules and all
sets of inputs.

Cost: one forward pass of the head for every candidate; n x K distances, some at a time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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

_AT_ONCE = 500


@dataclass(frozen=True)
class BayesNamer:
    """Answer with the candidate whose own features are nearest to what was sent.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: the candidates, each as likely; the part named head. Gaussian noise of equal size on all numbers.
    Guarantees: under these, no rule names more inputs rightly. Nothing about the truth is used. An upper
    bound for naming, not an attack of the paper's setting.
    Reference: none; Bayes' rule.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedNamer:
        knowledge.require("naming an input", "candidates")
        assert knowledge.candidates is not None
        if "head" not in knowledge.parts:
            raise NotApplicable("naming an input needs the part named head", ever=True)
        started = time.perf_counter()
        words = _features(knowledge.parts["head"], knowledge.candidates.inputs)
        cost = Cost(time.perf_counter() - started)
        return FittedNamer(knowledge.candidates, words, cost)


@dataclass(frozen=True, eq=False)
class FittedNamer:
    candidates: Records
    words: Tensor  # (K, *features) of the candidates, without fresh noise
    cost: Cost

    def run(self, releases: Release) -> Reconstruction:
        features = tuple(self.words.shape[1:])
        wanted = f"the head gives {features}"
        values = features_of(releases, self.candidates.shape, features, wanted)
        if isinstance(values, Reconstruction):
            return values
        started = time.perf_counter()
        named, apart = likeliest(values, self.words)
        return Reconstruction(
            candidates=self.candidates.inputs[named][:, None],
            confidence=-apart[:, None],
            status=Status(Outcome.CONVERGED),
            cost=Cost(self.cost.seconds + time.perf_counter() - started),
            labels=self.candidates.labels[named][:, None],
        )


@torch.no_grad()
def likeliest(sent: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """(n, *features) sent and (K, *features) to the nearest of the latter (n,), and how far it is (n,)."""
    flat = words.flatten(1)
    found = [torch.cdist(part, flat).min(1) for part in torch.split(sent.flatten(1), _AT_ONCE)]
    return torch.cat([one.indices for one in found]), torch.cat([one.values for one in found])


@torch.no_grad()
def _features(head: nn.Module, inputs: Tensor) -> Tensor:
    return torch.cat([head(part) for part in torch.split(inputs, _AT_ONCE)])
