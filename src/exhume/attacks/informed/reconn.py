"""RecoNN: a network trained on shadow models to map released weights to the missing record (Balle22 §V).

The adversary trains shadow models on the fixed records and one record of its own each, then a
network phi on the pairs (weights, record); phi of the released weights is the reconstruction.
`RecoNN()` is the paper's for MNIST; `RecoNN.convolutional()` its for CIFAR-10 (Tables IV to VII).

Memory: 4·s·p bytes for s shadows of p parameters, 16 bytes a weight of the network in training.
Cost: the shadow models; then about 4·p·h operations a shadow and epoch, h the first hidden width.

What it reads: "parameters" is Balle22's input, each parameter minus its mean over the training shadows, over
its standard deviation. "delta" (ours) first takes the change from the base model and divides it by its
length, which says how surprising the record was and nothing about what it is. Parameters that no training
shadow moves (weights from pixels that are always black) are left out: standardised they are zero.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.attacks.informed.learner import Pairs, Training, error_on, fit
from exhume.attacks.informed.shadows import LIMITS, Shadows, row_blocks, train_shadows
from exhume.attacks.releases import OneEach, read_weights
from exhume.core.contract import (
    Cost,
    ExhumeError,
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
from exhume.models.reconstructors import Deconv, Dense

FEWEST = 8  # shadows: two choose the epoch, two report, the rest train
INPUTS = ("parameters", "delta")
_ROUNDING = 10 * torch.finfo(torch.float32).eps  # relative spread below which a number is constant
_RANK = 1e-5  # singular values below this share of the largest count as zero
_AT_ONCE = 4096


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
    inputs: str = "parameters"  # as published; "delta": the normalised change, see above
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
        calibration = ErrorCalibration.of(fitted.network(aside.features), aside.records)
    observed = {
        "mae_plus_mse_on_shadows": error_on(fitted.network, pairs(parts.report)),
        "epoch": float(fitted.epoch),
        "parameters_read": float(len(features.columns)),
    }
    seconds = shadows.seconds + time.perf_counter() - started
    cost = Cost(seconds, models=len(shadows.records) + 1)
    return FittedRecoNN(
        attack, features, fitted.network, shadows.records.shape, calibration, observed, cost
    )


@dataclass(frozen=True, eq=False)
class FittedRecoNN:
    """Good for every release of the same recipe, start and fixed set."""

    attack: RecoNN
    features: ReadParameters
    network: nn.Module
    shape: tuple[int, ...]
    calibration: ErrorCalibration
    observed: dict[str, float] = field(default_factory=dict)
    cost: Cost = Cost()

    def run(self, releases: Release) -> Reconstruction:
        size, whose = len(self.features.base), "the shadow models have"
        return read_weights(
            releases, self.shape, size, self._answer, self.cost, who="RecoNN", whose=whose
        )

    @torch.no_grad()
    def _answer(self, releases: Weights) -> OneEach:
        drawn = self.network(self.features.apply(releases.parameters))
        return drawn, -self.calibration.expected(drawn), None, self.observed

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


@dataclass(frozen=True, eq=False)
class ReadParameters:
    kind: str  # one of INPUTS
    base: Tensor  # (p,) the model trained without an unknown record
    columns: Tensor  # (f,) parameters read, increasing
    centre: Tensor  # (f,)
    scale: Tensor  # (f,)
    basis: Tensor | None = None  # (f, q) of the shadows' span

    @property
    def size(self) -> int:
        return len(self.columns) if self.basis is None else self.basis.shape[1]

    def standardised(self, parameters: Tensor) -> Tensor:
        """(r, p) to (r, f): before the projection onto the span."""
        seen = _read(self.kind, parameters, self.base)[:, self.columns]
        return seen.sub_(self.centre).div_(self.scale)

    def projected(self, standardised: Tensor) -> Tensor:
        """(r, f) to (r, q), or unchanged where there is no basis."""
        return standardised if self.basis is None else standardised @ self.basis

    def apply(self, parameters: Tensor) -> Tensor:
        """(r, p) to (r, size)."""
        return self.projected(self.standardised(parameters))

    def of_rows(self, parameters: Tensor, rows: Tensor) -> Tensor:
        """(s, p) and (r,) to (r, size): the same for these rows, in blocks."""
        parts = [self.apply(block) for block in _blocks(parameters, rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def fit_features(
    kind: str,
    parameters: Tensor,
    base: Tensor,
    rows: Tensor,
    *,
    allowed: Tensor | None = None,
    span: bool,
) -> ReadParameters:
    """parameters: (s, p) shadows; rows: those to train on; allowed: (p,) bool, what may be read.

    span: of the first of these rows, `LIMITS.span` at most. They are drawn at random, so that more of them
    would add what few shadows have.
    """
    spread, centre = _moments(kind, parameters, base, rows)
    keep = spread > _ROUNDING * centre.abs()
    if allowed is not None:
        keep &= allowed
    columns = keep.nonzero()[:, 0]
    if not len(columns):
        raise NotApplicable("shadow: no parameter differs between the shadow models", ever=True)
    plain = ReadParameters(kind, base, columns, centre[columns], spread[columns])
    if not span:
        return plain
    basis = _basis(plain.of_rows(parameters, rows[: LIMITS.span]))
    return ReadParameters(kind, base, columns, plain.centre, plain.scale, basis)


def refit_features(
    features: ReadParameters, parameters: Tensor, base: Tensor, rows: Tensor
) -> ReadParameters:
    """These columns and basis with the statistics of other training shadows, rows of (s, p), and their base.

    A column that does not move there reads as zero.
    """
    spread, centre = (
        found[features.columns] for found in _moments(features.kind, parameters, base, rows)
    )
    still = spread <= _ROUNDING * centre.abs()
    return replace(features, base=base, centre=centre, scale=spread.masked_fill(still, math.inf))


def _blocks(parameters: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Copies of these rows, some at a time."""
    for part in row_blocks(len(rows), parameters.shape[1], element=4):
        yield parameters[rows[part]]


def _moments(kind: str, parameters: Tensor, base: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviation (p,) and mean (p,) of what is read off these rows, in blocks where they are many."""
    if 4 * len(rows) * parameters.shape[1] <= LIMITS.whole:
        return torch.std_mean(_read(kind, parameters[rows], base), dim=0)
    mean = torch.zeros_like(base, dtype=torch.float64)
    for block in _blocks(parameters, rows):
        mean += _read(kind, block, base).sum(0, dtype=torch.float64) / len(rows)
    square = torch.zeros_like(mean)
    for block in _blocks(parameters, rows):
        square += (_read(kind, block, base) - mean.to(base)).square().sum(0, dtype=torch.float64)
    return (square / (len(rows) - 1)).sqrt().to(base), mean.to(base)


def _read(kind: str, parameters: Tensor, base: Tensor) -> Tensor:
    return F.normalize(parameters - base, dim=1) if kind == "delta" else parameters


def _basis(rows: Tensor) -> Tensor:
    """(s, f) to (f, q): an orthonormal basis of the rows' span, times sqrt(q / f).

    The factor keeps the mean square of the features, and so the size of the first layer's outputs at
    the start, what it was. Within the span, a linear layer can do the same before and after.
    """
    gram = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for part in torch.split(rows, _AT_ONCE, dim=1):  # in fp64, a few columns at a time
        gram.addmm_(part.double(), part.T.double())
    values, vectors = torch.linalg.eigh(gram)
    kept = values > (_RANK**2) * values[-1]
    rotation: Tensor = (vectors[:, kept] / values[kept].sqrt()).to(rows.dtype)
    return (rows.T @ rotation).mul_(math.sqrt(int(kept.sum()) / rows.shape[1]))


@dataclass(frozen=True, eq=False)
class ErrorCalibration:
    """Reconstructions of shadows that no training has seen, and their errors."""

    drawn: Tensor  # (h, *record)
    errors: Tensor  # (h,) squared error per value

    @staticmethod
    def of(drawn: Tensor, truth: Tensor) -> ErrorCalibration:
        return ErrorCalibration(drawn, (drawn - truth).square().flatten(1).mean(1))

    def expected(self, drawn: Tensor) -> Tensor:
        """(m, *record) to (m,): the mean error of the sqrt(h) most similar reconstructions."""
        nearest = math.isqrt(len(self.errors))
        apart = torch.cdist(drawn.flatten(1), self.drawn.flatten(1))
        return self.errors[apart.topk(nearest, largest=False).indices].mean(1)
