"""Mnemonist: find the superparameters that memorise, and reconstruct from those alone (Mnemonist23, Alg. 1).

1. train shadow models; 2. train RecoNN phi on all parameters; 3. read the importance of every
superparameter off phi; 4. keep the important ones; 5. retrain RecoNN on those.

A superparameter is one neuron's incoming row, weights and bias together, or one filter (our reading): a row
of an inactive ReLU neuron receives no gradient from a record, a row of an active one stores a scaled copy of
it. The share is taken of every hidden layer; the last layer has no activation that could be off and is always
kept. So a random selection of the same share has the same size to the parameter: the null.

Importance is gradient x input: the first-order change of the reconstruction phi if a row were set to its
mean,

    I_r = sqrt( mean_i sum_o ( sum_{j in r} d phi_o / d x_ij  x_ij )^2 )

with x the standardised parameters of held-out shadow i; the sum over the outputs o is estimated with
random signs u, since E_u ( sum_o u_o a_o )^2 = sum_o a_o^2. Permutation, the check: by how much the
error on held-out shadows grows when a row's values are those of other shadows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.informed.learner import Pairs, error_on
from exhume.attacks.informed.reconn import (
    FEWEST,
    FittedRecoNN,
    RecoNN,
    fit_reconstructor,
    split_shadows,
)
from exhume.attacks.informed.shadows import Shadows, train_shadows
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    Layout,
    Progress,
    Reconstruction,
    Release,
    Store,
    silent,
)

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
        for name, legal in (("selection", SELECTIONS), ("importance", IMPORTANCES)):
            if getattr(self, name) not in legal:
                raise ExhumeError(
                    f"{name}: {getattr(self, name)!r} is not one of {', '.join(legal)}"
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
        kept, random = [], key.fold("random rows")
        for layer, values in rows.per_layer(measured).items():
            share = 1.0 if layer == rows.layers[-1] else self.share
            drawn = random.fold(layer) if self.selection == "random" else None
            kept.append(select(values, share, drawn))
        chosen = torch.cat(kept)
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

    def _measure(
        self, first: FittedRecoNN, rows: Superparameters, shadows: Shadows, key: Key
    ) -> Tensor:
        parts = split_shadows(len(shadows.records), self.reconn.held_out, key)
        # The shadows that chose the epoch also choose the rows; the reporting ones stay unseen.
        held = parts.choose.to(shadows.parameters.device)
        parameters, here = shadows.parameters[held], key.fold("importance")
        if self.importance == "gradient":
            return gradient_importance(first, rows, parameters, here).cpu()
        return permutation_importance(first, rows, parameters, shadows.records.inputs[held], here)


@dataclass(frozen=True, eq=False)
class FittedMnemonist:
    """A reconstructor that reads the chosen superparameters."""

    reconstructor: FittedRecoNN
    rows: Superparameters
    importance: Tensor  # (rows,) as measured on all parameters; zero for a random selection
    chosen: Tensor  # (rows,) bool

    def run(self, releases: Release) -> Reconstruction:
        reconstruction = self.reconstructor.run(releases)
        share = float(self.chosen.double().mean())
        return replace(
            reconstruction, observed={**reconstruction.observed, "superparameters_kept": share}
        )


def gradient_importance(
    fitted: FittedRecoNN, rows: Superparameters, parameters: Tensor, key: Key, *, probes: int = 8
) -> Tensor:
    """parameters: (h, p) held-out shadows; returns (rows,), 0 for rows that are not read."""
    features = fitted.features
    inputs = features.standardised(parameters)
    mine = rows.of.to(inputs.device)[features.columns]
    total = inputs.new_zeros(rows.count, dtype=torch.float64)
    for probe in range(probes):
        leaf = inputs.detach().requires_grad_(True)
        drawn = fitted.network(features.projected(leaf)).flatten(1)
        generator = key.fold("probe", probe).generator()
        signs = torch.randint(0, 2, drawn.shape, generator=generator).to(drawn) * 2 - 1
        (gradient,) = torch.autograd.grad((drawn * signs).sum(), leaf)
        effect = inputs.new_zeros(len(inputs), rows.count).index_add_(1, mine, gradient * inputs)
        total += effect.double().square().mean(0)
    return (total / probes).sqrt()


def permutation_importance(
    fitted: FittedRecoNN, rows: Superparameters, parameters: Tensor, records: Tensor, key: Key
) -> Tensor:
    """(rows,): growth of MAE + MSE over (h, p) held-out shadows and their (h, *shape) records."""
    features = fitted.features
    inputs = features.standardised(parameters)
    mine = rows.of.to(inputs.device)[features.columns]

    def error(seen: Tensor) -> float:
        return error_on(fitted.network, Pairs(features.projected(seen), records))

    before = error(inputs)
    growth = torch.zeros(rows.count, dtype=torch.float64)
    for row in torch.unique(mine).tolist():
        # A cyclic shift of a random order moves every shadow's row to another shadow.
        order = torch.randperm(len(inputs), generator=key.fold("row", row).generator())
        donor = torch.empty_like(order)
        donor[order] = order.roll(1)
        columns = (mine == row).nonzero()[:, 0]
        shuffled = inputs.clone()
        shuffled[:, columns] = inputs[donor.to(inputs.device)][:, columns]
        growth[row] = error(shuffled) - before
    return growth


@dataclass(frozen=True, eq=False)
class Superparameters:
    """Which row each parameter belongs to. Rows are numbered through, layer after layer."""

    of: Tensor  # (p,) int64
    layers: tuple[str, ...]
    sizes: tuple[int, ...]  # rows per layer

    @property
    def count(self) -> int:
        return sum(self.sizes)

    def sum(self, values: Tensor) -> Tensor:
        """(..., p) to (..., rows): sums over each row's parameters."""
        total = values.new_zeros(*values.shape[:-1], self.count)
        return total.index_add_(-1, self.of.to(values.device), values)

    def per_layer(self, values: Tensor) -> dict[str, Tensor]:
        """(rows,) to one (neurons,) per layer."""
        return dict(zip(self.layers, torch.split(values, list(self.sizes)), strict=True))


def rows_of(layout: Layout) -> Superparameters:
    """A parameter's layer is its name up to the last dot; its row, its first index.

    Parameters of one module with other numbers of rows are layers of their own, under their whole name.
    """
    parts: list[Tensor] = []
    layers: list[str] = []
    sizes: list[int] = []
    before = ""
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        layer, count = name.rpartition(".")[0], shape[0] if shape else 1
        if not layers or before != layer or sizes[-1] != count:
            layers.append(name if layer in layers else layer)
            sizes.append(count)
        before, first = layer, sum(sizes[:-1])
        parts.append(torch.arange(first, first + count).repeat_interleave(math.prod(shape[1:])))
    return Superparameters(torch.cat(parts), tuple(layers), tuple(sizes))


def select(importance: Tensor, share: float, key: Key | None = None) -> Tensor:
    """(k,) bool: the most important share of a layer's rows, at least one; with a key, random ones."""
    if not 0 < share <= 1:
        raise ExhumeError(f"share: {share} given, legal is 0 < share <= 1")
    count = max(1, round(share * len(importance)))
    if key is None:
        order = importance.argsort(descending=True, stable=True)
    else:
        order = torch.randperm(len(importance), generator=key.generator()).to(importance.device)
    chosen = torch.zeros(len(importance), dtype=torch.bool, device=importance.device)
    chosen[order[:count]] = True
    return chosen
