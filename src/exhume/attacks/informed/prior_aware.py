"""Naming the record among candidates: the game that reconstruction robustness bounds (Hayes et al. 2023).

The adversary knows that the unknown record is one of K candidates. Two views of private training:

Every step (`Weights.trail`). The sums of gradients behind the steps follow from the parameters seen,

    v_t = (theta_t - theta_{t+1}) / rate;   sum_t = N (v_t - m v_{t-1} - decay theta_t),

exact but for their rounding, of the order of N / rate · 1e-7 of them. The fixed records' part can be
computed, and what is left is the record's clipped gradient plus Gaussian noise of known size. The
log-likelihood of candidate k is, up to what they share, exactly

    sum_t l_kt,    l_kt = (<left_t, g_k(theta_t)> - |g_k(theta_t)|^2 / 2) / (sigma C)^2

so its largest value is the best answer there is, to an adversary as strong as the bound assumes. Where steps
draw their records with probability q, the record's own draws stay hidden:

    sum_t log(1 - q + q e^l_kt)

That is exact where the draws of the fixed records are seen (`Weights.drawn`). Where they are not, the fixed
records' part is what it is on average, and its variance is added to the noise's, as if it were isotropic.

The final weights only. Each candidate's model trained without noise says where the weights should be; models
trained with noise say by how much, and how far, they stray from there:

    -sum_j ((theta - theta_k - drift)_j / spread_j)^2 / 2

which takes the noise in the weights as Gaussian and independent: an approximation. With every candidate as
likely, confidence is the posterior of the answer under these likelihoods.

Memory: 4·r·T·p bytes for every step of r releases.
Cost: every step: one more training of each release; the end only: K + `draws` models.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.releases import OneEach, read_weights
from exhume.core.contract import (
    Architecture,
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Reconstruction,
    Records,
    Release,
    Store,
    Weights,
    silent,
)
from exhume.models.activations import activation
from exhume.models.mlp import MLP
from exhume.train.dp import KnownDraw, Privacy
from exhume.train.fleet import train_fleet
from exhume.train.functional import record_gradients
from exhume.train.optimisers import Descent, Optimiser
from exhume.train.recipe import FullBatch

_LEAST_SPREAD = 1e-6  # of the weights; without noise, what rounding leaves


@dataclass(frozen=True)
class PriorAware:
    """Say which of the candidates was the unknown training record.

    Sees: `Weights`, r models, each trained on the fixed set and one of the candidates; with a trail, every
    step of their training.
    Assumes: the recipe with its noise level but not the draw, the initial parameters, the fixed set and the
    list of candidates; full-batch training, or Poisson sampling.
    Guarantees: nothing about the truth is used. With a trail of gradient descent, no adversary has a larger
    probability of naming the record.
    Reference: Hayes et al. 2023 (prior-aware attack); the view of the final weights is ours.
    """

    draws: int = 64  # models trained with noise, to learn how far it carries the final weights
    chunk: int = 64  # models trained at once; fixes the bits, see train.fleet

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise ExhumeError(f"draws: {self.draws} given, at least 2 needed")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedPriorAware:
        recipe, initial, fixed, candidates = knowledge.require(
            "the prior-aware attack", "recipe", "initial", "fixed", "candidates"
        )
        if not isinstance(recipe, FullBatch):
            raise NotApplicable(f"recipe: full-batch training is needed, not {recipe}", ever=True)
        started = time.perf_counter()

        def fleet(which: FullBatch, records: Records, stage: str) -> Tensor:
            trained = train_fleet(
                which,
                initial,
                fixed,
                records.one_each(),
                key=key.fold(stage),
                store=store,
                chunk=self.chunk,
                stage=stage,
                progress=progress,
            )
            return torch.cat(list(trained)).double()

        still = replace(recipe, privacy=recipe.privacy.still())
        quiet = fleet(still, candidates, "training each candidate's model")
        drift, spread = torch.zeros_like(quiet[0]), torch.full_like(quiet[0], _LEAST_SPREAD)
        models = len(candidates)
        if recipe.privacy.random:
            turns = torch.arange(self.draws) % len(candidates)
            noisy = fleet(recipe, candidates[turns], "training models with noise")
            spread, drift = torch.std_mean(noisy - quiet[turns], dim=0)
            spread, models = spread.clamp_min(_LEAST_SPREAD), models + self.draws
        return FittedPriorAware(
            recipe,
            fixed,
            candidates,
            quiet + drift,
            spread,
            self.chunk,
            Cost(time.perf_counter() - started, models),
        )


@dataclass(frozen=True, eq=False)
class FittedPriorAware:
    """Good for every release of the same recipe, start, fixed set and candidates."""

    recipe: FullBatch
    fixed: Records
    candidates: Records
    expected: (
        Tensor  # (K, p) where each candidate takes the weights, the noise's mean effect included
    )
    spread: Tensor  # (p,) of the noise around there
    chunk: int
    cost: Cost

    def among(self, part: slice) -> FittedPriorAware:
        """This attack with a shorter list: some of the candidates."""
        return replace(self, candidates=self.candidates[part], expected=self.expected[part])

    def run(self, releases: Release) -> Reconstruction:
        size, who, whose = (
            self.expected.shape[1],
            "the prior-aware attack",
            "the candidates' models have",
        )
        return read_weights(
            releases, self.candidates.shape, size, self._answer, self.cost, who=who, whose=whose
        )

    def _answer(self, releases: Weights) -> OneEach:
        if releases.trail is None:
            scores = self.by_end(releases.parameters)
        else:
            scores = self.by_steps(releases.trail, releases.parameters, releases.drawn)
        sure, best = torch.softmax(scores, dim=1).max(1)
        observed = {
            "candidates": float(len(self.candidates)),
            "saw_every_step": float(releases.trail is not None),
        }
        named = self.candidates[best]
        return named.inputs, sure, named.labels, observed

    def by_end(self, parameters: Tensor) -> Tensor:
        """(r, p) final weights to (r, K) log-likelihoods."""
        whitened, places = parameters.double() / self.spread, self.expected / self.spread
        return (
            -torch.cdist(whitened, places, compute_mode="donot_use_mm_for_euclid_dist").square() / 2
        )

    def by_steps(self, trail: Tensor, final: Tensor, drawn: Tensor | None = None) -> Tensor:
        """(r, T, p), (r, p) and perhaps (r, T, n) to (r, K) log-likelihoods."""
        recipe, privacy = self.recipe, self.recipe.privacy
        counted = privacy.sampling * (len(self.fixed) + 1)  # what the sums were divided by
        sums = sums_behind(recipe.descent, trail, final, counted)
        (r, steps, p), scores = trail.shape, []
        pieces = [torch.split(x.reshape(-1, p), self.chunk) for x in (trail, sums)]
        taken: list[Tensor | None] = [None] * len(pieces[0])
        if drawn is not None:
            taken = [*torch.split(drawn.reshape(r * steps, -1), self.chunk)]
        network, rate = recipe.architecture, privacy.sampling
        for at, total, drawn_here in zip(*pieces, taken, strict=True):
            expected = clipped_sum(recipe, at, self.fixed, drawn_here)
            variance = privacy.deviation**2
            if privacy.samples and drawn_here is None:
                expected = rate * expected
                # what the draws of the fixed records add: q (1 - q) sum_i |g_i|^2 / p
                _, squared = projected(network, at, torch.zeros_like(at), self.fixed, privacy)
                variance = variance + rate * (1 - rate) * float(squared.sum(1).mean()) / p
            along, squared = projected(network, at, total - expected, self.candidates, privacy)
            scores.append((along - squared / 2).double() / (variance or 1.0))
        likely = torch.cat(scores)
        if rate < 1:  # log(1 - q + q e^l): whether the record was drawn is not known
            missed = torch.full_like(likely, math.log1p(-rate))
            likely = torch.logaddexp(likely + math.log(rate), missed)
        return likely.reshape(r, steps, -1).sum(1)


def sums_behind(optimiser: Optimiser, trail: Tensor, final: Tensor, records: int | float) -> Tensor:
    """(r, T, p) parameters before each step and (r, p) after the last: (r, T, p) sums of gradients."""
    if not isinstance(optimiser, Descent):
        raise NotApplicable(
            f"optimiser: {optimiser}: its steps cannot be undone, those of gradient descent can",
            ever=True,
        )
    after = torch.cat([trail[:, 1:], final[:, None]], dim=1)
    velocity = (trail - after) / optimiser.rate
    gradient = velocity - optimiser.weight_decay * trail
    gradient[:, 1:] -= optimiser.momentum * velocity[:, :-1]
    return gradient * records


def clipped_sum(
    recipe: FullBatch, parameters: Tensor, records: Records, drawn: Tensor | None = None
) -> Tensor:
    """(s, p) models: (s, p) sums over the records of their gradients, each clipped, without noise.

    drawn: (s, n) those that count; None: all. One step of rate 1 of the recipe's own engine, so that it is
    the sum which training took.
    """
    step = replace(
        recipe,
        descent=Descent(steps=1, rate=1.0, momentum=0.0),
        privacy=Privacy(recipe.privacy.clip),
    )
    none = records.none_for(len(parameters))
    sampler = None if drawn is None else KnownDraw(drawn)
    moved = step.fit(parameters, records, none, Key.from_seed(0), sampler=sampler)
    return (parameters - moved) * len(records)


def projected(
    architecture: Architecture,
    parameters: Tensor,
    directions: Tensor,
    records: Records,
    privacy: Privacy,
) -> tuple[Tensor, Tensor]:
    """(s, p) models, (s, p) directions, n shared records: <direction, g> and |g|^2, (s, n) each.

    For MLPs gradients are never formed: that of a record is, in every layer, its error times the layer's
    input and a 1 for the bias, so both follow from the two factors.
    """
    if isinstance(architecture, MLP):
        along, squared = _by_layers(architecture, parameters, directions, records)
    else:
        each = record_gradients(architecture, parameters, records)
        along = torch.einsum("sp,snp->sn", directions, each)
        squared = each.square().sum(2)
    if not privacy.clips:
        return along, squared
    factors = privacy.factors(squared)
    return along * factors, squared * factors.square()


def _by_layers(
    mlp: MLP, parameters: Tensor, directions: Tensor, records: Records
) -> tuple[Tensor, Tensor]:
    weights, biases = _pairs(mlp, parameters)
    act = activation(mlp.activation)
    inputs = [records.inputs.flatten(1).T.expand(len(parameters), -1, -1)]  # (s, k, n) each
    before: list[Tensor] = []
    for weight, bias in zip(weights, biases, strict=True):
        before.append(torch.matmul(weight, inputs[-1]) + bias[:, :, None])
        inputs.append(act.apply(before[-1]))
    onehot = F.one_hot(records.labels, mlp.outputs).T.to(parameters)
    error = torch.softmax(before[-1], 1) - onehot
    along = squared = parameters.new_zeros(())
    for layer, (towards, offset) in reversed(
        list(enumerate(zip(*_pairs(mlp, directions), strict=True)))
    ):
        below = inputs[layer]
        moved = torch.matmul(towards, below) + offset[:, :, None]
        along = along + (error * moved).sum(1)
        squared = squared + error.square().sum(1) * (below.square().sum(1) + 1)
        if layer:
            slope = act.slope(before[layer - 1], below)
            error = torch.matmul(weights[layer].transpose(1, 2), error) * slope
    return along, squared


def _pairs(mlp: MLP, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    layers = list(mlp.layout.split(flat).values())
    return layers[::2], layers[1::2]
