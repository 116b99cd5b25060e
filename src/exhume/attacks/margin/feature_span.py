"""Training images of a convolutional network, from the row span of its first fully connected layer.

Weight decay removes what that layer was at the start. What is left is a sum over the training records,
W = sum_i s_i phi(x_i)ᵀ with phi(x) what the convolutions make of a record, so the features of every training
record lie in its row span. As for fully connected networks (`HiddenSpan`) that is a condition on one
input at a time, but nothing says in which span the inputs lie, so that candidates are whole images:

    min_x  log f(x) + w·(TV(x) + TV(colours of x)/2),   w falling
    f(x) = sum_j w_j (v_jᵀ phi(x))² / |phi(x) - FᵀF phi(x)|²,                w_j, v_j: `reading.py`

F spans what says nothing: the leading directions of W, which all records share, and the features of images of
one colour, which are close to every span. In later rounds it also has what was found.

Memory: m·(d + f) numbers for m starts of d pixels and f features, and what the convolutions keep of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.attacks.gradient.chains import features_of
from exhume.attacks.margin.descent import RestartRun, SearchDescent, fall
from exhume.attacks.margin.reading import (
    Known,
    RowSpace,
    first_connected,
    orthonormal,
    records_by,
    row_space,
    without,
)
from exhume.attacks.margin.restarts import Restarts, by_own_confidence, distinct, said
from exhume.core.contract import (
    Architecture,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Store,
    silent,
)
from exhume.core.records import total_variation

_SHARED = 3  # leading directions of the layer that all records have in common
_COLOURS = (0.0, 0.35, 0.65, 1.0)  # of images of one colour, in every channel
_FLAT = 0.01  # singular value, relative, above which such images span a direction


@dataclass(frozen=True)
class FeatureSpan:
    """Reconstruct training images whose features span the first fully connected layer.

    Sees: `Weights`, r networks, each trained on its own unknown images with weight decay.
    Assumes: the architecture, convolutions in front of a fully connected layer that takes one vector a
    record; optionally the mean that the released preprocessing subtracts; images within [0, 1].
    Guarantees: nothing about the truth is used. Every round is a piece of work of its own: a killed run
    goes on where it was and ends with the same bits. A layer that keeps its start is refused.
    Reference: ours; Buzaglo23 for the setting, Geiping et al. 2020 for total variation.
    """

    restarts: int = 6  # rounds
    starts: float = 1.2  # of a round, per training record
    widen: float = 2.0  # directions per training record that the layer must lie in
    contrast: float = 0.22  # standard deviation of a start's pixels
    largest: float = 0.25  # and at most
    variation: float = 30.0  # weight of the total variation at the start
    falls: float = 0.1  # and what is left of it at the end
    same: float = 0.9  # cosine above which two candidates are one image
    trust: float = 10.0  # found: f below so many times the smallest
    descent: SearchDescent = SearchDescent(steps=400, rate=0.1)

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> Restarts:
        if knowledge.architecture is None:
            raise NotApplicable("the span of features needs the architecture", ever=True)
        reader = Known.of(knowledge.architecture, knowledge)
        shape = tuple(reader.architecture.input_shape)
        if len(shape) != 3:
            raise NotApplicable(
                f"records of shape {shape}: the span of features is for images", ever=False
            )
        layer_of = lru_cache(maxsize=1)(partial(_Layer.of, reader, widen=self.widen))
        once = partial(self._once, reader, layer_of)
        return Restarts(self, reader, once, key, store, progress, by_own_confidence)

    def _once(  # noqa: PLR0917
        self,
        reader: Known,
        layer_of: Callable[[Tensor], _Layer],
        parameters: Tensor,
        key: Key,
        earlier: list[RestartRun],
        progress: Callable[[int], None],
    ) -> RestartRun:
        layer = layer_of(parameters)
        nothing = layer.uninformative
        images = self._start(reader, round(self.starts * layer.records), parameters, key)
        beside = self._found(earlier, layer, nothing)
        images, lost = self._descend(images, layer, beside, progress)
        with torch.no_grad():
            distance = layer.distance(images, nothing)
            labels = layer.labels(images)
        inputs = (images - layer.centre).flatten(1)
        return RestartRun(
            inputs, labels, -distance, float(distance.median()), lost, float(layer.records)
        )

    def _start(self, reader: Known, count: int, like: Tensor, key: Key) -> Tensor:
        """(m, c, h, w) smooth noise about the centre, in [0, 1]."""
        channels, height, width = reader.centre.shape
        coarse = (count, channels, max(2, height // 4), max(2, width // 4))
        noise = torch.rand(coarse, generator=key.generator(), dtype=torch.float64).to(like) - 0.5
        smooth = F.interpolate(noise, size=(height, width), mode="bilinear")
        centre = reader.centre.to(like)
        return (centre + self.contrast * smooth / smooth.std()).clamp(0, 1)

    def _descend(
        self, start: Tensor, layer: _Layer, beside: Tensor, progress: Callable[[int], None]
    ) -> tuple[Tensor, float]:
        """(m, c, h, w) where the starts end, and the step at which they stopped being finite or -1."""
        images = start.clone().requires_grad_(True)
        adam = torch.optim.Adam([images], lr=self.descent.rate)
        largest = self.largest * math.sqrt(start[0].numel())
        kept = start
        for step in range(self.descent.steps):
            weight = self.variation * self.falls ** (step / self.descent.steps)
            distance = layer.distance(images, beside)
            if not bool(torch.isfinite(distance).all()):
                return kept, float(step)
            kept = images.detach().clone()
            adam.zero_grad()
            # channels of an image have the same edges
            grey = images - images.mean(1, keepdim=True)
            rough = total_variation(images) + 0.5 * total_variation(grey)
            (distance.clamp_min(1e-12).log() + weight * rough).sum().backward()
            for group in adam.param_groups:
                group["lr"] = self.descent.rate * fall(self.descent, step)
            adam.step()
            with torch.no_grad():
                apart = images.clamp(0, 1) - layer.centre
                norms = apart.flatten(1).norm(dim=1).clamp_min(1e-12)
                apart.mul_((largest / norms).clamp(max=1).view(-1, 1, 1, 1))
                images.copy_(layer.centre + apart)
            progress(step + 1)
        return images.detach(), -1.0

    def _found(self, earlier: list[RestartRun], layer: _Layer, nothing: Tensor) -> Tensor:
        """F (f, features): what says nothing, and the features of what the earlier rounds found."""
        if not earlier:
            return nothing
        inputs = torch.cat([run.inputs for run in earlier])
        sure = torch.cat([run.explained for run in earlier])
        near = sure >= self.trust * float(sure.max())  # negative, as -f is
        kept, _ = distinct(inputs[near], sure[near], self.same)
        images = inputs[near][kept].reshape(-1, *layer.centre.shape) + layer.centre
        with torch.no_grad():
            return orthonormal(torch.cat([nothing, layer.features(images)]))


@dataclass(frozen=True, eq=False)
class _Layer:
    """The first fully connected layer of one network, and the way to it."""

    architecture: Architecture
    parameters: Tensor  # (p,)
    name: str
    rows: RowSpace
    records: int
    centre: Tensor  # (*shape)

    @staticmethod
    def of(reader: Known, parameters: Tensor, widen: float) -> _Layer:
        """Refuses a network without convolutions, and a layer that keeps its start."""
        architecture = reader.architecture
        name, weights = first_connected(architecture, parameters)
        rows = row_space(
            weights, lambda values: round(widen * records_by(values)), f"{name}.weight"
        )
        records, centre = records_by(rows.values), reader.centre.to(parameters)
        return _Layer(architecture, parameters, name, rows, records, centre)

    @cached_property
    def module(self) -> nn.Module:
        return self.architecture.build().to(self.parameters.device).requires_grad_(False).eval()

    @cached_property
    def named(self) -> dict[str, Tensor]:
        return self.architecture.layout.split(self.parameters)

    def features(self, images: Tensor) -> Tensor:
        """(m, f)."""
        return features_of(self.module, self.named, self.name, images - self.centre)

    def distance(self, images: Tensor, beside: Tensor) -> Tensor:
        """f (m,): the share of the features outside the span, of what `beside` (orthonormal) leaves."""
        features = self.features(images)
        outside, new = self.rows.outside(features), without(features, beside)
        return outside.square().sum(1) / new.square().sum(1).clamp_min(1e-30)

    def labels(self, images: Tensor) -> Tensor:
        """(m,) what the network says: it has learnt its training records."""
        outputs = torch.func.functional_call(self.module, self.named, (images - self.centre,))
        return said(outputs)

    @cached_property
    def uninformative(self) -> Tensor:
        """(u, f) orthonormal: the leading directions of the layer, and the features of flat images."""
        channels = self.centre.shape[0]
        levels = torch.tensor(_COLOURS, dtype=self.centre.dtype, device=self.centre.device)
        colours = torch.cartesian_prod(*[levels] * channels).view(-1, channels, 1, 1)
        flat = colours.expand(-1, *self.centre.shape)
        with torch.no_grad():
            features = self.features(torch.cat([flat, 0.4 * flat + 0.6 * self.centre]))
        _, values, rows = torch.linalg.svd(features.double(), full_matrices=False)
        flat_rows = rows[values > _FLAT * values[0]].to(features)
        return orthonormal(torch.cat([self.rows.basis[:_SHARED], flat_rows]))
