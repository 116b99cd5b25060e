"""The tokens that a language model was asked for, where the texts themselves do not say it.

    L = 1/N sum_i log sum_v exp z_iv - z_iy(i)

is linear in what each place i is asked for. Of a place whose target is open, the row y of the output weight
has the gradient -h_i/N, h_i being what that weight is multiplied with. Where the weight is the embedding too,
the tokens that were fed have another gradient there; so the answer is put in, and what is left is read again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from exhume.models.own.language import NO_TARGET, LanguageModel

__all__ = ["Asked", "as_trained", "asked_for", "heights"]

_ROUNDS = 8
_ENOUGH = 1e-3  # relative: what may be left of the output weight's gradient
_LIKELY = 8  # tokens of a place that are tried last
_SURE = 0.8  # weight of a token, 1 where it was asked for


@dataclass(frozen=True, eq=False)
class Asked:
    targets: Tensor  # (n, l) tokens, or `NO_TARGET`
    sure: Tensor  # (n,) bool: the open ones stand out
    residual: float  # relative: of the gradient that these texts and targets give


def asked_for(
    net: LanguageModel, values: Tensor, at: Tensor, fed: Tensor, targets: Tensor, *, opened: Tensor
) -> Asked:
    """One gradient (p,) and all its texts (n, l), with their targets where `opened` (n, l) is False."""
    targets = targets.masked_fill(opened, NO_TARGET)
    count = int((targets != NO_TARGET).sum() + opened.sum())
    named = {n: t.detach().clone().requires_grad_() for n, t in net.layout.split(at).items()}
    outputs = functional_call(net.module, named, (fed,))
    wanted = net.layout.split(values).get(net.output)
    places = opened.nonzero()
    sure = ~opened.any(1)
    if len(places):
        if wanted is None or len(places) > wanted.shape[1]:
            return Asked(targets, sure, float("inf"))
        known = _Known(net, fed, targets, opened, outputs, named[net.output], wanted, count)
        found, certain = known.solved()
        targets = _filled(targets, places, found)
        sure = torch.ones(len(fed), dtype=torch.bool)
        sure[places[~certain, 0]] = False
    loss = _summed(outputs, targets, torch.zeros_like(opened)) / count
    slopes = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    again = torch.cat(
        [
            (torch.zeros_like(p) if s is None else s).flatten()
            for p, s in zip(named.values(), slopes, strict=True)
        ]
    )
    size = values.norm().clamp_min(1e-30)
    return Asked(targets, sure, float((again - values).norm() / size))


@dataclass(frozen=True, eq=False)
class _Known:
    """Everything but what the open places are asked for."""

    net: LanguageModel
    fed: Tensor  # (n, l)
    targets: Tensor
    opened: Tensor
    outputs: Tensor  # (n, l, v)
    weight: Tensor  # (v, d) of the outputs
    wanted: Tensor  # (v, d) its gradient
    count: int  # places that are asked for a token

    def solved(self) -> tuple[Tensor, Tensor]:
        """(u,) tokens, and whether each stands out."""
        places = self.opened.nonzero()
        basis = heights(self.outputs, self.weight, places, self.fed)
        never = torch.tensor([n for n in (self.net.mask, self.net.padding) if n is not None]).long()
        shared = self.net.output == self.net.embedding
        used = torch.unique(self.fed) if shared else never
        nobody = torch.full((len(places),), -1)
        weights = self._weights(basis, nobody)
        rest = weights.index_fill(1, torch.cat([used, never]), -1.0)  # exact where nothing was fed
        clear = rest.amax(1) > _SURE
        found = torch.where(clear, rest.argmax(1), nobody)
        for _ in range(_ROUNDS):
            weights = self._weights(basis, found)
            better = weights.index_fill(1, never, -1.0).argmax(1)
            better = torch.where(clear, found, better)
            if torch.equal(better, found):
                break
            found = better
        likely = weights.index_fill(1, never, -1.0).topk(min(_LIKELY, weights.shape[1]), 1).indices
        found = self._refined(found, (~clear).nonzero()[:, 0], likely)
        certain = self._weights(basis, found).gather(1, found[:, None])[:, 0] > _SURE
        return found, certain

    def _left(self, found: Tensor) -> Tensor:
        """(v, d) what the rows lack with these answers; -1: none yet."""
        goals = _filled(self.targets, self.opened.nonzero(), found)
        loss = _summed(self.outputs, goals, self.opened) / self.count
        (slope,) = torch.autograd.grad(loss, self.weight, retain_graph=True)
        return self.count * (slope - self.wanted).double()

    def _weights(self, basis: Tensor, found: Tensor) -> Tensor:
        """(u, v) how much of each token every open place was asked for: 1 or 0."""
        solved = torch.linalg.lstsq(basis.T, self._left(found).T).solution
        own = F.one_hot(found.clamp_min(0), len(self.weight)) * (found >= 0)[:, None]
        weights: Tensor = (solved + own)[:, : self.net.vocabulary]
        return weights

    def _refined(self, found: Tensor, doubtful: Tensor, likely: Tensor) -> Tensor:
        """Single answers changed to another likely one (u, k), while that leaves less of the gradient."""
        left = float(self._left(found).norm())
        enough = _ENOUGH * self.count * float(self.wanted.double().norm())
        for place in doubtful.tolist():
            for token in likely[place].tolist():
                if left < enough:
                    return found
                tried = found.clone()
                tried[place] = token
                apart = float(self._left(tried).norm())
                if apart < left:
                    found, left = tried, apart
        return found


def as_trained(net: LanguageModel, values: Tensor, at: Tensor, fed: Tensor) -> Tensor:
    """(n, l) texts as fed to those that were trained on: with what their masks hide."""
    texts = fed.long()
    if net.loss != "masked":
        return fed
    opened = torch.isin(texts, torch.tensor([net.mask]))
    asked = asked_for(net, values, at, texts, torch.full_like(texts, NO_TARGET), opened=opened)
    hidden = torch.where(asked.targets >= 0, asked.targets + net.vocabulary, texts)
    return hidden.to(fed.dtype)


def _summed(outputs: Tensor, targets: Tensor, opened: Tensor) -> Tensor:
    """() the loss of all places that have a target, and of open ones what does not depend on it."""
    flat, goals = outputs.flatten(0, 1), targets.flatten()
    known = F.cross_entropy(flat, goals, reduction="sum", ignore_index=NO_TARGET)
    rest = opened.flatten() & (goals == NO_TARGET)
    return known + torch.logsumexp(flat[rest], 1).sum()


def _filled(targets: Tensor, places: Tensor, found: Tensor) -> Tensor:
    own = targets.clone()
    there = found >= 0
    own[places[there, 0], places[there, 1]] = found[there]
    return own


def heights(outputs: Tensor, weight: Tensor, places: Tensor, fed: Tensor) -> Tensor:
    """(u, d) what the output weight is multiplied with at places (u, 2): the slope of an unused row."""
    used = set(fed.flatten().tolist())
    row = next((v for v in range(outputs.shape[2]) if v not in used), 0)
    found = []
    for text, place in places.tolist():
        (slope,) = torch.autograd.grad(outputs[text, place, row], weight, retain_graph=True)
        found.append(slope[row].double())
    return torch.stack(found)
