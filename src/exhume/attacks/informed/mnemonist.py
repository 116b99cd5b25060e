"""Mnemonist: find the superparameters that memorise, and reconstruct from those alone (Mnemonist23, Alg. 1).

1. train shadow models; 2. train RecoNN phi on all parameters; 3. read the importance of every
superparameter off phi; 4. keep the important ones; 5. retrain RecoNN on those.

The share is taken of every hidden layer; the last layer has no activation that could be off and is
always kept. So a random selection of the same share has the same size to the parameter: the null.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.informed.importance import gradient_importance, permutation_importance
from exhume.attacks.informed.reconn import (
    FEWEST,
    FittedRecoNN,
    RecoNN,
    fit_reconstructor,
    split_shadows,
)
from exhume.attacks.informed.shadows import Shadows, train_shadows
from exhume.attacks.informed.superparameters import Rows, rows_of, select
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

__all__ = ["FittedMnemonist", "Mnemonist"]

SELECTIONS = ("mnemonist", "random", "all")
IMPORTANCES = ("gradient", "permutation")


@dataclass(frozen=True)
class Mnemonist:
    """Reconstruct the unknown record from the superparameters that a first RecoNN relied on.

    Sees: `Weights`, r models, each trained on the fixed set and one unknown record.
    Assumes: what RecoNN assumes.
    Guarantees: nothing about the truth is used; importances are measured on held-out shadows.
    Deterministic from the key; with a store, the first RecoNN is trained once for all selections.
    Reference: Mnemonist23 Algorithm 1; the formula of the importance is ours, the excerpt has none.
    """

    reconn: RecoNN = RecoNN()
    share: float = 0.5  # of each hidden layer's rows that are kept; not stated in the paper
    selection: str = "mnemonist"  # "random": same size, the null; "all": plain RecoNN
    importance: str = "gradient"  # or "permutation", the check

    def __post_init__(self) -> None:
        if self.selection not in SELECTIONS:
            raise ExhumeError(
                f"selection: {self.selection!r} is not one of {', '.join(SELECTIONS)}"
            )
        if self.importance not in IMPORTANCES:
            raise ExhumeError(
                f"importance: {self.importance!r} is not one of {', '.join(IMPORTANCES)}"
            )
        if not 0 < self.share <= 1:
            raise ExhumeError(f"share: {self.share} given, legal is 0 < share <= 1")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedMnemonist:
        shadows = train_shadows(
            knowledge,
            "Mnemonist",
            fewest=FEWEST,
            chunk=self.reconn.chunk,
            key=key,
            store=store,
            progress=progress,
        )
        return self.fit(shadows, key=key, store=store, progress=progress)

    def fit(
        self, shadows: Shadows, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedMnemonist:
        """The part after the shadow models."""
        rows = rows_of(shadows.layout)
        if self.selection == "random":
            measured = torch.zeros(rows.count, dtype=torch.float64)
            first = None
        else:
            first = fit_reconstructor(self.reconn, shadows, key=key, store=store, progress=progress)
            measured = self._measure(first, rows, shadows, key)
        if self.selection == "all":
            assert first is not None
            every = torch.ones(rows.count, dtype=torch.bool)
            return FittedMnemonist(first, rows, measured, every)
        chosen = self._choose(rows, measured, key.fold("random rows"))
        second = fit_reconstructor(
            self.reconn,
            shadows,
            key=key,  # the same split, so that the reporting shadows have chosen no row
            store=store,
            progress=progress,
            allowed=chosen[rows.of].to(shadows.parameters.device),
        )
        seconds = second.cost.seconds + (
            first.cost.seconds - shadows.seconds if first is not None else 0.0
        )
        second = replace(second, cost=Cost(seconds, second.cost.models))
        return FittedMnemonist(second, rows, measured, chosen)

    def _measure(self, first: FittedRecoNN, rows: Rows, shadows: Shadows, key: Key) -> Tensor:
        parts = split_shadows(len(shadows.records), self.reconn.held_out, key)
        # The shadows that chose the epoch also choose the rows; the reporting ones stay unseen.
        held = parts.choose.to(shadows.parameters.device)
        parameters, here = shadows.parameters[held], key.fold("importance")
        if self.importance == "gradient":
            return gradient_importance(first, rows, parameters, here).cpu()
        return permutation_importance(first, rows, parameters, shadows.records.inputs[held], here)

    def _choose(self, rows: Rows, measured: Tensor, key: Key) -> Tensor:
        layers = rows.per_layer(measured)
        chosen = []
        for layer, values in layers.items():
            last = layer == rows.layers[-1]
            random = key.fold(layer) if self.selection == "random" else None
            chosen.append(select(values, 1.0 if last else self.share, random))
        return torch.cat(chosen)


@dataclass(frozen=True, eq=False)
class FittedMnemonist:
    """A reconstructor that reads the chosen superparameters."""

    reconstructor: FittedRecoNN
    rows: Rows
    importance: Tensor  # (rows,) as measured on all parameters; zero for a random selection
    chosen: Tensor  # (rows,) bool

    def run(self, releases: Release) -> Reconstruction:
        found = self.reconstructor.run(releases)
        kept = float(self.chosen.double().mean())
        return replace(found, observed={**found.observed, "superparameters_kept": kept})
