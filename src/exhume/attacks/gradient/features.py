"""A batch of images from the update of a convolutional network: features first, then one image for each.

    min_x  |phi(x) - phi_i|_1 / |phi_i|_1 + w TV(x),   w falling

phi_i, what entered the first fully connected layer, is exact (`gates.py`), so that every record is decoded on
its own. Absolute differences: with ReLU and max pooling most numbers can be met exactly, and squares would
spread the error of those that are not yet. What comes back to phi_i is exact too, so that the gradient of the
convolution just below is a function of the records alone; where it has several equations for every pixel of
the batch, all records are polished together against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from exhume.attacks.gradient.chains import convolution_below, features_of
from exhume.attacks.gradient.colours import (
    gap,
    outputs_and_moments,
    recoloured,
    statistics_of,
)
from exhume.attacks.gradient.gates import (
    ROUNDS,
    Layers,
    chain_for,
    features_behind,
    likely_records,
    records_behind,
)
from exhume.attacks.gradient.local_steps import at_path_midpoint
from exhume.attacks.releases import BatchAnswer, EachGradient, architecture_of, goes_on
from exhume.core.contract import (
    Architecture,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Reconstruction,
    Release,
    Store,
    silent,
)
from exhume.core.records import total_variation
from exhume.models.probes import inputs_of
from exhume.train.local import LocalTraining

_FITS = 0.05  # relative misfit of the features, below which a record counts as decoded
_FALLS = 0.05  # what is left of the weight of the total variation at the end
_EVERY = 25  # steps between two reports of progress
_EQUATIONS = 4  # of the convolution below, for every pixel, or polishing leads astray


@dataclass(frozen=True)
class FeatureDecoding:
    """Decode what entered the first fully connected layer, record by record.

    Sees: `Gradient`, the fully connected layers at the end of the network.
    Assumes: the architecture; as `GateAttack`, or a batch of one; records within [0, 1]. Of several
    local steps, how they were made and the batch size: features are those at the middle of the way.
    Uses what batch norm saw in train mode, where the client sends it: it fixes the colours.
    Guarantees: the features are certified as by `GateAttack`; confidence is minus the misfit of a record's.
    Reference: Geiping et al. 2020 for total variation; features first is ours.
    """

    steps: int = 1000
    rate: float = 0.1  # of Adam, falling to nothing
    variation: float = 0.5  # weight of the total variation at the start

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedDecoding:
        architecture = architecture_of(knowledge, "decoding features")
        return PreparedDecoding(self, architecture, knowledge, key, progress)


@dataclass(frozen=True, eq=False)
class PreparedDecoding:
    attack: FeatureDecoding
    architecture: Architecture
    knowledge: Knowledge
    key: Key
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        def invert(gradient: Tensor, parameters: Tensor, index: int) -> BatchAnswer:
            sent = statistics_of(releases, index, gradient)
            return self._answer(gradient, parameters, sent, self.key.fold(index))

        shape = tuple(self.architecture.input_shape)
        who = "decoding features"
        return EachGradient(shape, invert, who, who, self.progress).run(releases)

    def _answer(
        self, gradient: Tensor, parameters: Tensor, sent: dict[str, Tensor], key: Key
    ) -> BatchAnswer:
        seen = Layers(self.architecture, gradient, parameters, progress=self.progress)
        search = records_behind
        local, count = self.knowledge.local, self.knowledge.batch_size
        if isinstance(local, LocalTraining) and count and len(local.rates(count)) > 1:
            seen, search = at_path_midpoint(seen, local, count), likely_records
        chain = chain_for(seen, key)
        if chain.whole:
            raise NotApplicable(
                "what enters the first fully connected layer is the record", ever=False
            )
        features = features_behind(seen, chain, ROUNDS, key, search)
        layer = chain.layers[0]
        width = features.inputs.shape[1]
        wanted = _Wanted(
            self.architecture,
            seen.parameters,
            gradient,
            layer.name,
            features.inputs.to(gradient.dtype),
            (features.deltas @ seen.weights(layer)[:, :width]).to(gradient.dtype),
            sent if features.complete else {},  # of the whole batch
        )
        records = self._decoded(wanted, key)
        observed = {"batch_size": float(features.rank)}
        if search is records_behind and wanted.below is not None:  # of one step
            records, observed["left_over"] = self._polished(wanted, records)
        with torch.no_grad():
            misfit = wanted.misfits(records)
        observed["misfit"] = float(misfit.mean())
        complete = features.complete and bool((misfit < _FITS).all())
        return BatchAnswer(records, -misfit.double(), observed, complete=complete)

    def _decoded(self, wanted: _Wanted, key: Key) -> Tensor:
        """(n, *shape) one record for each features."""
        attack = self.attack
        drawn = torch.randn(
            len(wanted.features),
            *self.architecture.input_shape,
            generator=key.fold("start").generator(),
        )
        start = (0.5 + 0.05 * drawn).to(wanted.features.dtype)
        records = self._descended(start, wanted.cost, attack.rate, attack.variation)
        return self._recoloured(wanted, records)

    def _recoloured(self, wanted: _Wanted, records: Tensor) -> Tensor:
        """With the colours that batch norm saw, and descended from there, where these are sent."""
        if not wanted.statistics:
            return records
        attack = self.attack
        again = recoloured(wanted.module, wanted.named, records, wanted.statistics).clamp(0, 1)
        return self._descended(again, wanted.cost, attack.rate / 2, 0.4 * attack.variation)

    def _polished(self, wanted: _Wanted, records: Tensor) -> tuple[Tensor, float]:
        """With the convolution below, unless it explains its gradient no better or the features less."""
        attack, count = self.attack, len(records)

        def cost(moved: Tensor) -> Tensor:
            misfits, left_over = wanted.both(moved)
            return misfits.sum() + count * left_over

        moved = self._descended(records, cost, attack.rate / 2, 0.4 * attack.variation)
        before, (misfits, left) = float(wanted.both(records)[1].detach()), wanted.both(moved)
        after = float(left.detach())
        better = bool((misfits < _FITS).all()) and after < before
        return (moved, after) if better else (records, before)

    def _descended(
        self, start: Tensor, cost: Callable[[Tensor], Tensor], rate: float, variation: float
    ) -> Tensor:
        """Adam with falling rate and total variation, within the range of records."""
        attack = self.attack
        records = start.clone().requires_grad_(True)
        adam = torch.optim.Adam([records], lr=rate)
        for step in range(attack.steps):
            done = step / attack.steps
            stage = "decoding features"
            if step % _EVERY == 0 and not goes_on(self.progress, stage, step, attack.steps):
                break
            for group in adam.param_groups:
                group["lr"] = rate * (1 + math.cos(math.pi * done)) / 2
            weight = variation * _FALLS**done
            adam.zero_grad()
            (cost(records) + weight * total_variation(records).sum()).backward()
            adam.step()
            with torch.no_grad():
                records.clamp_(0, 1)
        return records.detach()


@dataclass(frozen=True, eq=False)
class _Wanted:
    """What the records must give: their features, and the gradient of the convolution below these."""

    architecture: Architecture
    parameters: Tensor
    gradient: Tensor
    layer: str  # takes the features
    features: Tensor  # (n, f)
    back: Tensor  # (n, f) what comes back to them
    statistics: dict[str, Tensor]  # what batch norm saw of these records

    @cached_property
    def module(self) -> nn.Module:
        return self.architecture.build().requires_grad_(False)

    @cached_property
    def named(self) -> dict[str, Tensor]:
        return self.architecture.layout.split(self.parameters)

    @cached_property
    def below(self) -> str | None:
        """The convolution below, if its gradient has equations enough."""
        name = convolution_below(self.architecture, self.parameters, self.layer)
        unknowns = len(self.features) * math.prod(self.architecture.input_shape)
        enough = name is not None and self.named[name].numel() >= _EQUATIONS * unknowns
        return name if enough else None

    def misfits(self, records: Tensor) -> Tensor:
        """(n,) relative, of the features."""
        return self._apart(features_of(self.module, self.named, self.layer, records))

    def cost(self, records: Tensor) -> Tensor:
        """() the misfits, and how far what batch norm sees is from what it saw."""
        if not self.statistics:
            return self.misfits(records).sum()
        with inputs_of(self.module, self.layer) as entered:
            seen = outputs_and_moments(self.module, self.named, records, self.statistics)[1]
        return self._apart(entered[-1]).sum() + len(records) * gap(seen, self.statistics)

    def both(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """The misfits, and () what is left over of the gradient of the convolution below, relative."""
        assert self.below is not None  # asked before
        weight = self.named[self.below].detach().clone().requires_grad_(True)
        given = features_of(self.module, self.named | {self.below: weight}, self.layer, records)
        made = torch.autograd.grad((given * self.back).sum(), weight, create_graph=True)[0]
        seen = self.architecture.layout.split(self.gradient)[self.below]
        left_over = (made - seen).abs().sum() / seen.abs().sum().clamp_min(1e-30)
        return self._apart(given), left_over

    def _apart(self, given: Tensor) -> Tensor:
        return (given - self.features).abs().sum(1) / self.features.abs().sum(1).clamp_min(1e-30)
