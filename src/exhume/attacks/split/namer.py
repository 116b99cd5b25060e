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
from torch import Tensor

from exhume.attacks.releases import Answer, EachSent
from exhume.core.contract import Cost, Key, Knowledge, NotApplicable, Progress, Store, silent

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
    ) -> EachSent:
        knowledge.require("naming an input", "candidates")
        assert knowledge.candidates is not None
        if "head" not in knowledge.parts:
            raise NotApplicable("naming an input needs the part named head", ever=True)
        started = time.perf_counter()
        inputs, labels = knowledge.candidates.inputs, knowledge.candidates.labels
        with torch.no_grad():
            parts = [knowledge.parts["head"](part) for part in torch.split(inputs, _AT_ONCE)]
        words = torch.cat(parts)  # (K, *features) of the candidates, without fresh noise

        def answer(sent: Tensor) -> Answer:
            named, apart = likeliest(sent, words)
            return inputs[named][:, None], -apart[:, None], labels[named][:, None]

        cost, features = Cost(time.perf_counter() - started), tuple(words.shape[1:])
        shape, wanted = knowledge.candidates.shape, f"the head gives {features}"
        return EachSent(shape, features, wanted, answer, cost)


@torch.no_grad()
def likeliest(sent: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """(n, *features) sent and (K, *features) to the nearest of the latter (n,), and how far it is (n,)."""
    flat = words.flatten(1)
    found = [torch.cdist(part, flat).min(1) for part in torch.split(sent.flatten(1), _AT_ONCE)]
    return torch.cat([one.indices for one in found]), torch.cat([one.values for one in found])
