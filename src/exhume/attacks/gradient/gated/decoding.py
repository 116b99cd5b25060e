"""A batch of images from the update of a convolutional network: features first, then one image for each.

    min_x  |phi(x) - phi_i|_1 / |phi_i|_1 + w TV(x),   w falling

phi_i, what entered the first fully connected layer, is exact (`attack.py`), so that every record is decoded
on its own and nothing of the batch gets mixed up. Absolute differences: with ReLU and max pooling most
numbers can be met exactly, and squares would spread the error of those that are not yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.gated.attack import ROUNDS, Layers, chain_for, features_behind
from exhume.attacks.gradient.gated.layers import features_of
from exhume.attacks.gradient.gated.local_steps import halfway
from exhume.attacks.gradient.gated.search import likely_records, records_behind
from exhume.attacks.gradient.gathering import Batch, EachGradient
from exhume.attacks.gradient.matching import total_variation
from exhume.contract import (
    Architecture,
    ClientTraining,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Store,
    silent,
)
from exhume.train.local import LocalTraining

__all__ = ["FeatureDecoding"]

_FITS = 0.05  # relative misfit of the features, below which a record counts as decoded
_EVERY = 25  # steps between two reports of progress


@dataclass(frozen=True)
class FeatureDecoding:
    """Decode what entered the first fully connected layer, record by record.

    Sees: `Gradient`, the fully connected layers at the end of the network.
    Assumes: the architecture; as `GateAttack`, or a batch of one; records within [low, high]. Of several
    local steps, how they were made and the batch size: features are those at the middle of the way.
    Guarantees: the features are certified as by `GateAttack`; confidence is minus the misfit of a record's.
    Reference: Geiping et al. 2020 for total variation; features first is ours.
    """

    steps: int = 1000
    rate: float = 0.1  # of Adam, falling to nothing
    variation: float = 0.5  # weight of the total variation at the start
    falls: float = 0.05  # and what is left of it at the end
    rounds: int = ROUNDS
    low: float = 0.0
    high: float = 1.0

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        architecture = knowledge.architecture
        if architecture is None:
            raise NotApplicable("decoding features needs the architecture", ever=True)
        known = knowledge.local, knowledge.batch_size
        invert = _Decoding(self, architecture, key, progress, *known).one
        shape = tuple(architecture.input_shape)
        return EachGradient(shape, invert, "decoding features", "decoding features", progress)


@dataclass(frozen=True, eq=False)
class _Decoding:
    attack: FeatureDecoding
    architecture: Architecture
    key: Key
    progress: Progress
    local: ClientTraining | None = None
    batch_size: int | None = None

    def one(self, gradient: Tensor, parameters: Tensor, index: int) -> Batch:
        shape = tuple(self.architecture.input_shape)
        key = self.key.fold(index)
        seen, search = Layers(self.architecture, gradient, parameters), records_behind
        local, count = self.local, self.batch_size
        if isinstance(local, LocalTraining) and count and len(local.rates(count)) > 1:
            seen, search = halfway(seen, local, count), likely_records
        try:
            chain = chain_for(seen, key)
            if chain.whole:
                raise NotApplicable(
                    "what enters the first fully connected layer is the record", ever=False
                )
            found = features_behind(seen, chain, self.attack.rounds, key, search)
        except NotApplicable as why:
            return Batch(gradient.new_zeros(0, *shape), torch.zeros(0), {}, refused=why)
        wanted = found.inputs.to(gradient.dtype)
        records, misfit = self._decoded(seen.parameters, chain.layers[0].name, wanted, key)
        confidence = torch.where(found.explained > 0, -misfit.double(), -1.0)
        observed = {"batch_size": float(found.rank), "misfit": float(misfit.mean())}
        complete = found.complete and bool((misfit < _FITS).all())
        return Batch(records, confidence, observed, complete=complete)

    def _decoded(
        self, parameters: Tensor, layer: str, wanted: Tensor, key: Key
    ) -> tuple[Tensor, Tensor]:
        """(n, f) features to (n, *shape) records and (n,) relative misfits."""
        module = self.architecture.build().requires_grad_(False)
        named = self.architecture.layout.split(parameters)
        size = wanted.abs().sum(1).clamp_min(1e-30)
        attack = self.attack

        def misfits(records: Tensor) -> Tensor:
            return (features_of(module, named, layer, records) - wanted).abs().sum(1) / size

        drawn = torch.randn(
            len(wanted), *self.architecture.input_shape, generator=key.fold("start").generator()
        )
        middle, width = (attack.low + attack.high) / 2, attack.high - attack.low
        records = (middle + 0.05 * width * drawn).to(wanted.dtype).requires_grad_(True)
        adam = torch.optim.Adam([records], lr=attack.rate * width)
        for step in range(attack.steps):
            done = step / attack.steps
            if step % _EVERY == 0:
                self.progress("decoding features", step, attack.steps)
            for group in adam.param_groups:
                group["lr"] = attack.rate * width * (1 + math.cos(math.pi * done)) / 2
            weight = attack.variation * attack.falls**done / width
            smooth = sum(total_variation(one[None]) for one in records)
            adam.zero_grad()
            (misfits(records).sum() + weight * smooth).backward()
            adam.step()
            with torch.no_grad():
                records.clamp_(attack.low, attack.high)
        with torch.no_grad():
            return records.detach(), misfits(records)
