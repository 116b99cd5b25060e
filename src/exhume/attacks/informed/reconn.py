"""RecoNN: a network trained on shadow models to map released weights to the missing record (Balle22 §V).

The adversary trains shadow models on the fixed records and one record of its own each, then a
network phi on the pairs (weights, record); phi of the released weights is the reconstruction.
`RecoNN()` is the paper's for MNIST; `RecoNN.convolutional()` its for CIFAR-10 (Tables IV to VII).

Memory: 4·s·p bytes for s shadows of p parameters, 16 bytes a weight of the network in training.
Cost: the shadow models; then about 4·p·h operations a shadow and epoch, h the first hidden width.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from exhume.attacks.informed.experience import Experience
from exhume.attacks.informed.features import INPUTS, Features, fit_features, refit_features
from exhume.attacks.informed.fitting import Pairs, error_on, fit
from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.shadows import Shadows, train_shadows
from exhume.attacks.releases import weights_of
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Status,
    Store,
    silent,
)
from exhume.models.reconstructors import Deconv, Dense

__all__ = ["FEWEST", "FittedRecoNN", "Parts", "RecoNN", "fit_reconstructor", "split_shadows"]

FEWEST = 8  # shadows: two choose the epoch, two report, the rest train


@dataclass(frozen=True)
class RecoNN:
    """Reconstruct the one unknown training record from released weights with a trained network.

    Sees: `Weights`, r models, each trained on the fixed set and one unknown record.
    Assumes: the training recipe, the initial parameters, the fixed set, and records of the same
    distribution to train shadow models on.
    Guarantees: nothing about the truth is used; the scaler is fitted on the training shadows only,
    the epoch chosen on some held-out shadows and the error reported on others. Deterministic from
    the key; a stopped run resumes from the store with the same bits.
    Reference: Balle22 §V, Tables IV to VII. The confidence is ours: minus the squared error that similar
    reconstructions have on the held-out shadows.
    """

    network: Dense | Deconv = Dense()
    training: Training = Training()
    inputs: str = "parameters"  # as published; "delta": the normalised change, see features.py
    span: bool = False  # project onto the training shadows' span (ours; for very many parameters)
    held_out: float = 0.1  # share of the shadows: half chooses the epoch, half reports the error
    chunk: int = 64  # shadow models trained at once; fixes the bits, see train.fleet

    def __post_init__(self) -> None:
        if self.inputs not in INPUTS:
            raise ExhumeError(f"inputs: {self.inputs!r} is not one of {', '.join(INPUTS)}")
        if not 0 < self.held_out < 1:
            raise ExhumeError(f"held_out: {self.held_out} given, legal is 0 < held_out < 1")

    @staticmethod
    def convolutional(*, span: bool = True, chunk: int = 64) -> RecoNN:
        """The paper's reconstructor for CIFAR-10, except for the projection onto the span."""
        training = Training(
            optimiser="adam",
            rate=1e-4,
            weight_decay=1e-4,
            epochs=1000,
            perceptual=1.0,
            adversarial=1.0,
        )
        return RecoNN(Deconv(), training, span=span, chunk=chunk)

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedRecoNN:
        shadows = train_shadows(
            knowledge,
            "RecoNN",
            fewest=FEWEST,
            chunk=self.chunk,
            key=key,
            store=store,
            progress=progress,
        )
        return fit_reconstructor(self, shadows, key=key, store=store, progress=progress)


@dataclass(frozen=True, eq=False)
class Parts:
    """Which shadows train the network, choose its epoch and report its error. Rows, each its own."""

    train: Tensor
    choose: Tensor
    report: Tensor


def split_shadows(count: int, held_out: float, key: Key) -> Parts:
    """Set at least two shadows aside each for choosing and for reporting."""
    order = torch.randperm(count, generator=key.fold("held out").generator())
    half = min(max(2, round(held_out * count / 2)), (count - 2) // 2)
    return Parts(order[2 * half :], order[:half], order[half : 2 * half])


def fit_reconstructor(
    attack: RecoNN,
    shadows: Shadows,
    *,
    key: Key,
    store: Store,
    progress: Progress = silent,
    allowed: Tensor | None = None,
    start: FittedRecoNN | None = None,
) -> FittedRecoNN:
    """Train phi on given shadows; allowed: (p,) bool, the parameters it may read.

    With a `start`, the training begins with its network (fine-tuning), which reads the same parameters.
    """
    started = time.perf_counter()
    low, high = float(shadows.records.inputs.min()), float(shadows.records.inputs.max())
    if attack.network.output == "sigmoid" and (low < 0 or high > 1):
        raise NotApplicable(
            f'shadow: values from {low:g} to {high:g}; a sigmoid output draws 0 to 1, choose "linear"',
            ever=True,
        )
    parts = split_shadows(len(shadows.records), attack.held_out, key)
    device = shadows.parameters.device
    models, base, train = shadows.parameters, shadows.base, parts.train.to(device)
    if start is None:
        features = fit_features(
            attack.inputs, models, base, train, allowed=allowed, span=attack.span
        )
    else:
        features = refit_features(start.features, models, base, train)
    network = attack.network.build(features.size, shadows.records.shape, key).to(device)
    if start is not None:
        network.load_state_dict(start.network.state_dict())

    def pairs(rows: Tensor) -> Pairs:
        rows = rows.to(device)
        return Pairs(features.of_rows(models, rows), shadows.records.inputs[rows])

    fitted = fit(
        network,
        attack.training,
        pairs(parts.train),
        pairs(parts.choose),
        key=key.fold("reconstructor"),
        store=store,
        progress=progress,
    )
    aside = pairs(torch.cat([parts.choose, parts.report]))
    with torch.no_grad():
        experience = Experience.of(fitted.network(aside.features), aside.records)
    observed = {
        "mae_plus_mse_on_shadows": error_on(fitted.network, pairs(parts.report)),
        "epoch": float(fitted.epoch),
        "parameters_read": float(len(features.columns)),
    }
    seconds = shadows.seconds + time.perf_counter() - started
    cost = Cost(seconds, models=len(shadows.records) + 1)
    return FittedRecoNN(
        attack, features, fitted.network, shadows.records.shape, experience, observed, cost
    )


@dataclass(frozen=True, eq=False)
class FittedRecoNN:
    """The reconstructor: good for every release of the same recipe, start and fixed set."""

    attack: RecoNN
    features: Features
    network: nn.Module
    shape: tuple[int, ...]
    experience: Experience
    observed: dict[str, float] = field(default_factory=dict)
    cost: Cost = Cost()

    def run(self, releases: Release) -> Reconstruction:
        size, whose = len(self.features.base), "the shadow models have"
        released = weights_of(releases, self.shape, size, who="RecoNN", whose=whose)
        if isinstance(released, Reconstruction):
            return released
        started = time.perf_counter()
        with torch.no_grad():
            found = self.network(self.features.apply(released.parameters))
        seconds = self.cost.seconds + time.perf_counter() - started
        return Reconstruction(
            candidates=found[:, None],
            confidence=-self.experience.expected(found)[:, None],
            status=Status(Outcome.CONVERGED),
            cost=Cost(seconds, self.cost.models),
            observed=self.observed,
        )

    def fine_tune(
        self,
        knowledge: Knowledge,
        *,
        epochs: int,
        rate: float | None = None,
        key: Key,
        store: Store,
        progress: Progress = silent,
    ) -> FittedRecoNN:
        """This reconstructor for another fixed set, from few shadows of it (Balle22 Fig. 11).

        The scaler is fitted on the new shadows: models of another fixed set lie elsewhere, by far more
        than one record moves them. `epochs=0` is zero-shot transfer: the new shadows then give the
        scaler and measure the error, but no record of theirs is learned from.
        """
        training = replace(self.attack.training, epochs=epochs)
        if rate is not None:
            training = replace(training, rate=rate)
        attack = replace(self.attack, training=training)
        shadows = train_shadows(
            knowledge,
            "RecoNN",
            fewest=FEWEST,
            chunk=attack.chunk,
            key=key,
            store=store,
            progress=progress,
        )
        if shadows.base.shape != self.features.base.shape:
            raise NotApplicable(
                f"recipe: models of {len(shadows.base)} parameters, this reconstructor was trained on "
                f"{len(self.features.base)}",
                ever=False,
            )
        if shadows.records.shape != self.shape:
            raise NotApplicable(
                f"shadow: records of shape {shadows.records.shape}, this reconstructor draws {self.shape}",
                ever=False,
            )
        return fit_reconstructor(
            attack, shadows, key=key, store=store, progress=progress, start=self
        )
