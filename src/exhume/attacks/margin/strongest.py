"""The attack to use on weights: what the second layer shows decides which.

Where weight decay has removed its random start, hidden activations span it and records come back one by
one (`HiddenSpan`). Where it keeps its start, only the first layer is a sum over records (`FirstLayer`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.hidden_span import HiddenSpan, second_layer
from exhume.attacks.margin.reading import Reader
from exhume.attacks.margin.restarts import Restarts, joined
from exhume.contract import (
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Reconstruction,
    Release,
    Store,
    Weights,
    silent,
)
from exhume.models.heads import Head

__all__ = ["Strongest"]


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
        hidden = None
        if len(Reader.of(knowledge, self.first.head).mlp.hidden) > 1:
            hidden = self.hidden.prepare(knowledge, key=key, store=store, progress=progress)
        return PreparedStrongest(first, hidden)


@dataclass(frozen=True, eq=False)
class PreparedStrongest:
    first: Restarts
    hidden: Restarts | None

    def run(self, releases: Release) -> Reconstruction:
        if not isinstance(releases, Weights):
            return self.first.run(releases)
        rows = [Weights(row[None], releases.layout) for row in releases.parameters]
        return joined([self.choice(row).run(row) for row in rows])

    def choice(self, release: Weights) -> Restarts:
        """Which attack one release gets: its own choice, so that releases do not influence each other."""
        if self.hidden is not None and self._lost_its_start(self.hidden, release):
            return self.hidden
        return self.first

    def _lost_its_start(self, hidden: Restarts, release: Weights) -> bool:
        assert isinstance(hidden.config, HiddenSpan)
        assert isinstance(hidden.reader, Reader)
        try:
            second_layer(hidden.reader.span(release.parameters[0], None), hidden.config.widen)
        except NotApplicable:
            return False
        return True
