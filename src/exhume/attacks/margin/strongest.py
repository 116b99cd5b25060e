"""The attack to use on weights: what the second layer shows decides which.

Where weight decay has removed its random start and it has neurons to spare, hidden activations span it and
records come back one by one (`HiddenSpan`). Whether they did is seen without the truth: starts that have
nothing to do with each other end at the same records, and far nearer to the span than random inputs are.
Where too few do, or the second layer keeps its start, the first layer alone is a sum over records
(`FirstLayer`); in doubt both are run and pooled. Meeting alone is not enough: with two classes starts meet at
places where no record is, at a fifth of the distance of random inputs; records are at a thousandth. Behind
smooth activations there is always doubt: starts slide below the records' own distance and meet there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.hidden_span import HiddenSpan, second_layer
from exhume.attacks.margin.reading import Reader
from exhume.attacks.margin.restarts import Restarts, distinct, joined
from exhume.core.contract import (
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Store,
    Weights,
    silent,
)
from exhume.models.heads import Head

_OFTEN = 3  # starts that end at the same record
_ENOUGH = 0.5  # of the records must be met so often, or the other attack is run too
_APART = (
    0.05  # of a random input's distance from the span: a place that is met is a record below it
)


@dataclass(frozen=True)
class Strongest:
    """Reconstruct training records with the attack that the released weights allow.

    Sees: `Weights`, r networks, each trained on its own unknown records.
    Assumes: the architecture; optionally the mean that the released preprocessing subtracts.
    Guarantees: nothing about the truth is used, for the choice of the attack neither.
    Reference: ours; Buzaglo23 for the setting.
    """

    first: FirstLayer = FirstLayer()
    hidden: HiddenSpan = HiddenSpan()

    def of_head(self, head: Head) -> Strongest:
        return Strongest(replace(self.first, head=head), replace(self.hidden, head=head))

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedStrongest:
        first = self.first.prepare(knowledge, key=key, store=store, progress=progress)
        try:
            hidden = self.hidden.prepare(knowledge, key=key, store=store, progress=progress)
        except NotApplicable:  # one hidden layer
            return PreparedStrongest(first, None)
        return PreparedStrongest(first, hidden)


@dataclass(frozen=True, eq=False)
class PreparedStrongest:
    first: Restarts
    hidden: Restarts | None  # needs two hidden layers

    def run(self, releases: Release) -> Reconstruction:
        if not isinstance(releases, Weights):
            return self.first.run(releases)
        rows = [Weights(row[None], releases.layout) for row in releases.parameters]
        found = [self._one(row) for row in rows]
        refused = [one for one in found if one.status.outcome is Outcome.NOT_APPLICABLE]
        return refused[0] if refused else joined(found)

    def choice(self, release: Weights) -> Restarts:
        """Which attack one release gets first: its own choice, so that releases do not touch each other."""
        return self.hidden if self.hidden and _readable(self.hidden, release) else self.first

    def _one(self, release: Weights) -> Reconstruction:
        chosen = self.choice(release)
        reconstruction = chosen.run(release)
        if chosen is self.first:
            return reconstruction
        assert isinstance(chosen.config, HiddenSpan)
        assert isinstance(chosen.reader, Reader)
        if chosen.reader.mlp.matrices(release.parameters[0]).act.curve is None:  # a kink
            apart = chosen.config.random_distance(chosen.reader, release.parameters[0], chosen.key)
            certain = met(reconstruction, chosen.reader.centre, _APART * apart)
            if certain >= _ENOUGH * reconstruction.observed["records"]:
                return reconstruction
        return _pooled(reconstruction, self.first.run(release))


def met(result: Reconstruction, centre: Tensor, limit: float = math.inf) -> int:
    """Places at which several starts of one release ended, not further from the span than `limit`."""
    if result.status.outcome is Outcome.NOT_APPLICABLE or not len(result.candidates):
        return 0
    inputs = (result.candidates[0] - centre.to(result.candidates)).flatten(1)
    kept, sizes = distinct(inputs, result.confidence[0], HiddenSpan.same)
    near = -result.confidence[0][kept] <= limit
    return int(((sizes >= _OFTEN) & near).sum())


def _readable(hidden: Restarts, release: Weights) -> bool:
    assert isinstance(hidden.config, HiddenSpan)
    assert isinstance(hidden.reader, Reader)
    try:
        second_layer(hidden.reader.span(release.parameters[0], None), hidden.config.widen)
    except NotApplicable:
        return False
    return True


def _pooled(one: Reconstruction, other: Reconstruction) -> Reconstruction:
    """The candidates of two attacks on one release, taken in turn: their confidences do not compare."""
    candidates = torch.cat([one.candidates, other.candidates], 1)
    ranks = [torch.arange(part.candidates.shape[1], dtype=torch.float64) for part in (one, other)]
    rank = torch.cat([ranks[0], ranks[1] + 0.5]).to(candidates.device)
    order = rank.argsort(stable=True)
    labels = None
    if one.labels is not None and other.labels is not None:
        labels = torch.cat([one.labels, other.labels], 1)[:, order]
    return replace(
        one,
        candidates=candidates[:, order],
        confidence=-rank[order].to(one.confidence)[None],
        cost=replace(one.cost, seconds=one.cost.seconds + other.cost.seconds),
        labels=labels,
        observed={**one.observed, "candidates": float(candidates.shape[1])},
    )
