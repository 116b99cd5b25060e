"""Reconstruction from a model trained with noise: learn what records do without it, and weigh the noise in.

Most of what a few hundred shadows with noise of their own teach is noise. But the adversary who knows the
recipe can also leave it out. Both fleets have the same records, so their difference is the noise, and what a
record does is learned exactly from the other one. Given its label y, record and change are taken as jointly
Gaussian:

    delta = theta - theta_base;  w = (delta + noise) / sigma       sigma_j: the noise's spread in parameter j
    E[z | w, y]  = mean_y + k(w)^T (K_y + n_y f I)^-1 Z_y             K_y: centred quiet shadows of label y
    log p(w | y) = -(|w|^2 - k(w)^T (K_y + n_y f I)^-1 k(w)) / 2f - log det(I + K_y / n_y f) / 2 + const

and the answer is the mean over labels, each weighted by its probability. The factor f on the noise and a
tempering of the probabilities are chosen by the error on every other noisy shadow, of a model fitted to
the rest; the final one is fitted to all.

Memory: 32·s·p bytes for s shadows of p parameters. Cost: twice the shadow models; fitting takes seconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from exhume.attacks.informed.shadows import Shadows, train_shadows
from exhume.attacks.releases import OneEach, read_weights
from exhume.core.contract import (
    Cost,
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
from exhume.train.recipe import FullBatch

_FACTORS = (0.3, 1.0, 3.0, 10.0)  # 1 if everything were Gaussian
_TEMPERS = (0.1, 0.3, 1.0)
_FEWEST = 4  # shadows a label needs: two to fit, two to choose by


@dataclass(frozen=True)
class NoiseAware:
    """Reconstruct the one unknown training record from the weights of a privately trained model.

    Sees: `Weights`, r models, each trained with noise on the fixed set and one unknown record.
    Assumes: the recipe with its noise level but not the draw, the initial parameters, the fixed set, and
    records of the same distribution to train shadow models on.
    Guarantees: nothing about the truth is used; all choices are made on the shadows. Where the noise
    drowns everything the answer tends to the average record.
    Reference: Balle22 (setting); the two fleets and the Gaussian model are ours.
    """

    chunk: int = 64  # shadow models trained at once; fixes the bits, see train.fleet

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedNoiseAware:
        recipe = knowledge.recipe
        if recipe is not None and not (isinstance(recipe, FullBatch) and recipe.privacy.noise):
            raise NotApplicable("recipe: it adds no noise; the closed form is for that", ever=False)

        def fleet(known: Knowledge) -> Shadows:
            return train_shadows(
                known,
                "the noise-aware attack",
                fewest=_FEWEST,
                chunk=self.chunk,
                key=key,
                store=store,
                progress=progress,
            )

        noisy = fleet(knowledge)
        assert isinstance(recipe, FullBatch)  # or train_shadows has said what is lacking
        still = replace(recipe, privacy=recipe.privacy.still())
        quiet = fleet(replace(knowledge, recipe=still))
        started = time.perf_counter()
        fitted = _fit(noisy, quiet)
        seconds = noisy.seconds + quiet.seconds + time.perf_counter() - started
        return replace(fitted, cost=Cost(seconds, models=2 * len(noisy.records) + 1))


@dataclass(frozen=True, eq=False)
class _Label:
    """One label's quiet shadows, whitened and centred."""

    anchors: Tensor  # (n, p)
    centre: Tensor  # (p,)
    records: Tensor  # (n, q), centred
    mean: Tensor  # (q,)
    values: Tensor  # (n,) of the kernel
    vectors: Tensor  # (n, n)

    @staticmethod
    def of(changes: Tensor, records: Tensor) -> _Label:
        centre, mean = changes.mean(0), records.mean(0)
        anchors = changes - centre
        values, vectors = torch.linalg.eigh(anchors @ anchors.T)
        return _Label(anchors, centre, records - mean, mean, values.clamp_min(0), vectors)

    def apply(self, changes: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """(m, p) to records (m, q) and log-likelihoods (m,)."""
        left, noise = changes - self.centre, len(self.anchors) * factor
        rotated = (left @ self.anchors.T) @ self.vectors
        weighted = rotated / (self.values + noise)
        records = weighted @ (self.vectors.T @ self.records) + self.mean
        misfit = left.square().sum(1) - (rotated * weighted).sum(1)
        return records, -misfit / (2 * factor) - (self.values / noise).log1p().sum() / 2


@dataclass(frozen=True, eq=False)
class FittedNoiseAware:
    """Good for every release of the same recipe, start and fixed set."""

    base: Tensor  # (p,) the model trained without the unknown record; the noise's mean effect included
    spread: Tensor  # (p,) of the noise
    labels: dict[int, _Label]
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    factor: float = 1.0
    temper: float = 1.0
    held_out_error: float = 0.0  # on half of the noisy shadows, fitted to the other half
    held_out_accuracy: float = 0.0
    cost: Cost = Cost()

    def answer(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """(m, p) to records (m, q) and probabilities of the labels (m, c)."""
        changes = (parameters.double() - self.base) / self.spread
        both = [label.apply(changes, self.factor) for label in self.labels.values()]
        total = sum(len(label.anchors) for label in self.labels.values())
        prior = torch.tensor([len(label.anchors) / total for label in self.labels.values()])
        scores = self.temper * torch.stack([likely for _, likely in both], dim=1)
        probability = torch.softmax(scores + prior.to(scores).log(), dim=1)
        mixed = torch.einsum(
            "mc,cmq->mq", probability, torch.stack([records for records, _ in both])
        )
        return mixed.clamp(*self.bounds), probability

    def run(self, releases: Release) -> Reconstruction:
        who, whose, size = "the noise-aware attack", "the shadow models have", len(self.base)
        return read_weights(
            releases, self.shape, size, self._answer, self.cost, who=who, whose=whose
        )

    def _answer(self, releases: Weights) -> OneEach:
        records, probability = self.answer(releases.parameters)
        sure, which = probability.max(1)
        labels = torch.tensor(list(self.labels), device=which.device)[which]
        observed = {
            "label_accuracy_on_shadows": self.held_out_accuracy,
            "mse_on_shadows": self.held_out_error,
        }
        return records.to(releases.parameters.dtype), sure, labels, observed


def _fit(with_noise: Shadows, without: Shadows) -> FittedNoiseAware:
    """Both fleets are of the same records."""
    noisy, quiet = with_noise.parameters.double(), without.parameters.double()
    base, shadow = without.base.double(), with_noise.records
    spread, drift = torch.std_mean(noisy - quiet, dim=0)
    spread = spread.clamp_min(torch.finfo(spread.dtype).tiny)
    changes, records = (quiet - base) / spread, shadow.inputs.flatten(1).double()
    rows = {label: (shadow.labels == label).nonzero()[:, 0] for label in range(len(shadow.classes))}
    rows = {label: own for label, own in rows.items() if len(own) >= _FEWEST}
    if not rows:
        raise NotApplicable(f"shadow: no label has {_FEWEST} records", ever=True)

    def fitted(step: int) -> FittedNoiseAware:
        used = {label: own[::step] for label, own in rows.items()}
        labels = {label: _Label.of(changes[own], records[own]) for label, own in used.items()}
        bounds = (float(records.min()), float(records.max()))
        return FittedNoiseAware(base + drift, spread, labels, shadow.shape, bounds)

    asked = torch.cat([own[1::2] for own in rows.values()])
    half, truth, names = fitted(2), records[asked], torch.tensor(list(rows)).to(asked.device)
    best: FittedNoiseAware | None = None
    for factor, temper in product(_FACTORS, _TEMPERS):
        tried = replace(half, factor=factor, temper=temper)
        drawn, probability = tried.answer(noisy[asked])
        error = float((drawn - truth).square().mean())
        right = float((names[probability.argmax(1)] == shadow.labels[asked]).double().mean())
        if best is None or error < best.held_out_error:
            best = replace(tried, held_out_error=error, held_out_accuracy=right)
    assert best is not None  # there are factors and tempers
    return replace(best, labels=fitted(1).labels)
