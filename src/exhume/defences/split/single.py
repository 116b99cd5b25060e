"""One body: no defence, fixed noise with training, dropout, a random head, and noise learned afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Progress, Store, silent
from exhume.models.split.cut import Split
from exhume.models.split.pipeline import Pipeline, SplitClient
from exhume.store.shards import digest
from exhume.train.single import (
    FEATURES,
    Schedule,
    SplitJob,
    check_dropped,
    fixed_noise,
    train_module,
    train_split,
)


def _alone(parts: Split, noise: Tensor) -> Pipeline:
    return Pipeline(SplitClient(parts.head, noise, (0,), parts.tail), (parts.body,), parts.first)


def quiet(parts: Split, job: SplitJob) -> Pipeline:
    """The pipeline without noise."""
    return _alone(parts, torch.zeros(parts.feature_shape(job.records.shape), device=job.device))


def _at_least_zero(name: str, value: float) -> None:
    if not value >= 0:
        raise ExhumeError(f"{name}: must be at least 0, got {value}")


@dataclass(frozen=True)
class Noise:
    """A fixed Gaussian map is added to the features, in training and in use ("Single").

    Sees: the network, its training records.
    Assumes: nothing about the attacker.
    Guarantees: nothing; a fixed map is the same for every input. Sigma 0 is no defence ("NONE").
    Reference: Ensembler24, Table 1 (Single: noise and retraining).
    """

    sigma: float = 0.0

    def __post_init__(self) -> None:
        _at_least_zero("sigma", self.sigma)

    @property
    def strength(self) -> float:
        return self.sigma

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        noise = fixed_noise(job.feature_shape(key), self.sigma, key).to(job.device)
        used = noise if self.sigma else None
        return _alone(train_split(job, noise=used, key=key, store=store, progress=progress), noise)


@dataclass(frozen=True)
class Dropout:
    """Features, or the body's answers, are dropped at random in training, one round of it ("DR-single").

    Sees: the network, its training records.
    Assumes: nothing about the attacker.
    Guarantees: nothing. Rate 0 is no defence. In use nothing is dropped.
    Reference: Ensembler24, Table 1 (DR-single).
    """

    rate: float = 0.0
    dropped: str = FEATURES  # "answers": before the tail, where the Ensembler has its selector

    def __post_init__(self) -> None:
        check_dropped(self.rate, self.dropped)

    @property
    def strength(self) -> float:
        return self.rate

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        parts = train_split(
            job, dropout=self.rate, dropped=self.dropped, key=key, store=store, progress=progress
        )
        return quiet(parts, job)


@dataclass(frozen=True)
class RandomHead:
    """The head keeps its random weights; body and tail are trained behind it.

    Sees: the network, its training records.
    Assumes: nothing about the attacker.
    Guarantees: nothing; the head then holds no information about the training records.
    Reference: Ensembler24, Table 3 (Random head).
    """

    frozen: bool = True

    @property
    def strength(self) -> float:
        return float(self.frozen)

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        parts = train_split(job, random_head=self.frozen, key=key, store=store, progress=progress)
        return quiet(parts, job)


@dataclass(frozen=True)
class ForeignHead:
    """A finished network whose head is replaced by one with random weights; nothing is trained behind it.

    Sees: the network, its training records.
    Assumes: nothing about the attacker.
    Guarantees: nothing; body and tail were trained behind another head, so that the answers are nearly lost.
    Reference: Ensembler24, Table 3 (Random head, by what it costs there: 65 points).
    """

    replaced: bool = True

    @property
    def strength(self) -> float:
        return float(self.replaced)

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        plain = quiet(train_split(job, key=key, store=store, progress=progress), job)
        if not self.replaced:
            return plain
        head = job.fresh(key.fold("foreign head")).head.requires_grad_(False).eval()
        return replace(plain, client=replace(plain.client, head=head))


@dataclass(frozen=True)
class Shredder:
    """A map of noise is learned for the finished network: as large as accuracy allows, nothing retrained.

    Sees: the trained network and its training records.
    Assumes: nothing about the attacker.
    Guarantees: nothing. Strength 0 is no defence.
    Reference: Ensembler24, Table 1 (Shredder); Mireshghallah et al. 2020 draw from several such maps.
    """

    sigma: float = 0.0  # of the noise it starts from
    reward: float = 1e-2  # for the mean size of the noise, against cross-entropy
    schedule: Schedule = Schedule(epochs=2, rate=1e-2, optimiser="adam", weight_decay=0.0)

    def __post_init__(self) -> None:
        _at_least_zero("sigma", self.sigma)
        _at_least_zero("reward", self.reward)

    @property
    def strength(self) -> float:
        return self.sigma

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        parts = train_split(job, key=key, store=store, progress=progress)
        shape = parts.feature_shape(job.records.shape)
        start = fixed_noise(shape, self.sigma, key).to(job.device)
        if not self.sigma:
            return _alone(parts, start)
        holder = nn.ParameterDict({"noise": nn.Parameter(start)})

        def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
            inputs, labels = job.batch(rows, generator)
            with torch.no_grad():
                features = parts.head(inputs)
            logits = parts.tail(parts.body(features + holder["noise"]))
            size: Tensor = holder["noise"].abs().mean()
            return F.cross_entropy(logits, labels) - self.reward * size

        weights = tuple(digest(t) for t in parts.body.state_dict().values())
        train_module(
            holder,
            loss,
            len(job.records),
            self.schedule,
            inputs=(*job.digests, str(self.reward), *weights),
            key=key.fold("shredder"),
            store=store,
            progress=progress,
            stage="learning the noise",
        )
        return _alone(parts, holder["noise"].detach())
