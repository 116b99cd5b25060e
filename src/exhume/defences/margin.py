"""Protecting the records on the margin, as Buzaglo23 asks: they are trained on with noise added.

    x~ = c·(x/||x|| + strength·e/||e||)       e: one draw for each record, kept for the whole training
                                              c: such that ||x~|| = ||x||, so that the rate still fits

The weights become a sum over the noisy records, so what an attack can find is those. One fixed draw is the
point: with fresh noise in every step, or with several copies, the sum averages the noise away again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from exhume.core.contract import (
    Architecture,
    ExhumeError,
    Key,
    NotApplicable,
    Progress,
    Recipe,
    Records,
    Store,
    silent,
)
from exhume.models.heads import Head, margins
from exhume.models.matrices import Dense
from exhume.train.margin import MarginDescent, Trained, train_to_margin

__all__ = ["NoisyMargin", "ProtectedDescent"]


@dataclass(frozen=True)
class NoisyMargin:
    """Train on noisy copies of the records that lie nearest to the margin.

    Sees: the recipe; at training time the records, and their margins after a training without defence.
    Assumes: training to the margin (`MarginDescent`) on records less their mean.
    Guarantees: nothing formal. The released weights depend on a protected record through its noisy copies
    only, once who is protected has been decided; that decision looks at the records themselves unless
    all are protected.
    Reference: ours; Buzaglo23 asks for a defence of the samples on the margin.
    """

    strength: float = 0.0  # norm of the noise, over the norm of the record, before both are scaled
    share: float = 1.0  # of the records, those of smallest margin; 1: all, and no first training
    colour: Literal["white", "record"] = "record"  # noise of the record's spectrum hides better
    copies: int = 1  # of each protected record; more let the noise average away
    whom: Literal["margin", "random"] = "margin"  # random: as many records, as a control

    def __post_init__(self) -> None:
        if not 0 <= self.strength < float("inf"):
            raise ExhumeError(f"strength: must be finite and at least 0, got {self.strength}")
        if not 0 < self.share <= 1:
            raise ExhumeError(f"share: must lie in (0, 1], got {self.share}")
        if self.copies < 1:
            raise ExhumeError(f"copies: must be at least 1, got {self.copies}")
        if self.colour not in ("white", "record") or self.whom not in ("margin", "random"):
            raise ExhumeError(
                f"colour, whom: {self.colour!r} and {self.whom!r} given; legal are white or record, "
                "and margin or random"
            )

    def harden(self, recipe: Recipe) -> Recipe:
        if not self.strength:
            return recipe
        if not isinstance(recipe, MarginDescent):
            raise NotApplicable(
                f"noise on the margin is there for training to the margin, not yet for: {recipe}",
                ever=True,
            )
        return ProtectedDescent(recipe, self)

    def __str__(self) -> str:
        who = {"margin": "nearest to the margin", "random": "chosen at random"}[self.whom]
        some = "all records" if self.share == 1 else f"the {self.share:.0%} of records {who}"
        times = f", {self.copies} copies of each" if self.copies > 1 else ""
        kind = "white noise" if self.colour == "white" else "noise of the record's spectrum"
        return f"{kind} of {self.strength:g} times its norm on {some}{times}"


@dataclass(frozen=True)
class ProtectedDescent:
    """Training to the margin with noisy copies in place of some records."""

    plain: MarginDescent
    defence: NoisyMargin

    @property
    def architecture(self) -> Architecture:
        return self.plain.architecture

    @property
    def network(self) -> Dense:
        return self.plain.architecture

    @property
    def head(self) -> Head:
        return self.plain.head

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        trained = []
        for index in range(len(extra.labels)):
            records = fixed.with_extra(extra, index)
            start = initial if initial.ndim == 1 else initial[index]
            own = key.fold("noisy margin", first + index)
            trained.append(self.train(start, records, key=own).parameters)
        return torch.stack(trained)

    def train(
        self,
        initial: Tensor,
        records: Records,
        *,
        key: Key,
        store: Store | None = None,
        progress: Progress = silent,
    ) -> Trained:
        """Train one network (p,) on the records, centred as they are to enter."""
        chosen = self.protected(initial, records, key=key, store=store, progress=progress)
        safer = self._with_noise(records, chosen, key)
        return train_to_margin(
            self.plain, initial, safer, key=key.fold("order"), store=store, progress=progress
        )

    def protected(
        self,
        initial: Tensor,
        records: Records,
        *,
        key: Key,
        store: Store | None = None,
        progress: Progress = silent,
    ) -> Tensor:
        """(n,) which records get noise: the same key and records, the same answer."""
        count = max(1, round(self.defence.share * len(records)))
        if count == len(records):
            return torch.ones(len(records), dtype=torch.bool)
        if self.defence.whom == "random":
            order = torch.randperm(len(records), generator=key.fold("whom").generator())
        else:
            first = train_to_margin(
                self.plain, initial, records, key=key.fold("order"), store=store, progress=progress
            )
            network = self.network.matrices(first.parameters)
            flat = records.inputs.flatten(1).to(first.parameters.dtype)
            found = margins(self.head, network.forward(flat)[1], records.labels)
            order = found.argsort(stable=True)
        chosen = torch.zeros(len(records), dtype=torch.bool)
        chosen[order[:count]] = True
        return chosen

    def _with_noise(self, records: Records, chosen: Tensor, key: Key) -> Records:
        private = records.inputs[chosen]
        copies = [
            _as_long(private + self._noise(private, key.fold("noise", index)), private)
            for index in range(self.defence.copies)
        ]
        labels = records.labels
        return Records(
            torch.cat([records.inputs[~chosen], *copies]),
            torch.cat([labels[~chosen], labels[chosen].repeat(self.defence.copies)]),
            records.classes,
        )

    def _noise(self, private: Tensor, key: Key) -> Tensor:
        """(m, *shape) a draw for each record, `strength` times as long as it."""
        noise = torch.randn(private.shape, generator=key.generator(), dtype=torch.float64)
        if self.defence.colour == "record":
            noise = _with_spectrum(private, noise)
        lengths = private.flatten(1).double().norm(dim=1) / noise.flatten(1).norm(dim=1)
        scale = self.defence.strength * lengths.reshape(-1, *[1] * (private.ndim - 1))
        scaled: Tensor = (scale * noise).to(private)
        return scaled

    def __str__(self) -> str:
        return f"{self.plain}, {self.defence}"


def _as_long(noisy: Tensor, records: Tensor) -> Tensor:
    """(m, *shape) each noisy record scaled to the norm of its own."""
    factors = records.flatten(1).norm(dim=1) / noisy.flatten(1).norm(dim=1).clamp_min(1e-12)
    scaled: Tensor = noisy * factors.reshape(-1, *[1] * (records.ndim - 1))
    return scaled


def _with_spectrum(records: Tensor, noise: Tensor) -> Tensor:
    """The noise's phases with the records' amplitudes: as smooth as they are, so no filter tells it apart.

    Over height and width of images (m, c, h, w), the phases shared by the channels; over all of a vector.
    """
    axes = (-2, -1) if records.ndim == 4 else tuple(range(1, records.ndim))
    drawn = noise[:, :1] if records.ndim == 4 else noise
    phases = torch.fft.rfftn(drawn, dim=axes)
    amplitudes = torch.fft.rfftn(records.double(), dim=axes).abs()
    sizes = [records.shape[axis] for axis in axes]
    turned = amplitudes * phases / phases.abs().clamp_min(1e-12)
    back: Tensor = torch.fft.irfftn(turned, s=sizes, dim=axes)
    return back
