"""Several shadows, one answer: the mean of what their decoders draw."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from exhume.attacks.split.inversion import FittedInversion, ShadowInversion
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Store,
    silent,
)


@dataclass(frozen=True)
class Committee:
    """Several inversions, of different bodies or from different starts; agreement is the confidence.

    One that is given twice starts differently the second time.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: what the inversion assumes.
    Guarantees: nothing about the truth is used.
    Reference: ours; Ensembler24 leaves it out.
    """

    inversions: tuple[ShadowInversion, ...] = (ShadowInversion(),) * 3

    def __post_init__(self) -> None:
        if len(self.inversions) < 2:
            raise ExhumeError(
                f"inversions: at least 2 make a committee, got {len(self.inversions)}"
            )

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedCommittee:
        members = []
        for index, inversion in enumerate(self.inversions):
            again = inversion in self.inversions[:index]
            own = key.fold("member", index) if again else key
            members.append(inversion.prepare(knowledge, key=own, store=store, progress=progress))
        return FittedCommittee(tuple(members))


@dataclass(frozen=True, eq=False)
class FittedCommittee:
    members: tuple[FittedInversion, ...]

    def run(self, releases: Release) -> Reconstruction:
        found = [member.run(releases) for member in self.members]
        if found[0].status.outcome is Outcome.NOT_APPLICABLE:
            return found[0]
        drawn = torch.stack([one.candidates for one in found])
        apart = drawn.var(0).flatten(2).mean(2)
        return replace(
            found[0],
            candidates=drawn.mean(0),
            confidence=-apart,
            cost=Cost(sum(f.cost.seconds for f in found), sum(f.cost.models for f in found)),
            observed={
                f"{name}.{index}": value
                for index, one in enumerate(found)
                for name, value in one.observed.items()
            },
        )
