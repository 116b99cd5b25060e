"""What the Ensembler's idea suggests next: hide the head better. Each still sends as much as before.

Fresh noise on the features, a secret rotation of their channels, and a head that is trained against a
decoder. None of them bounds what a request tells; `Channel` does. The
study `split-repairs` says what each leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Progress, Store, silent
from exhume.defences.split.single import quiet
from exhume.models.split.cut import cut
from exhume.models.split.inverter import Decoder
from exhume.models.split.networks import KeyedNetwork
from exhume.models.split.pipeline import Pipeline
from exhume.train.single import SplitJob, train_module, train_split


@dataclass(frozen=True)
class Fresh:
    """Gaussian noise on every feature, new for every request; the network is trained with it.

    Sees: the network, its training records.
    Assumes: nothing about the attacker.
    Guarantees: nothing that is stated here: the features have no bounded length. Sigma 0 is no defence.
    Reference: ours; Ensembler24's noise is one fixed map, which is read off.
    """

    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not self.sigma >= 0:
            raise ExhumeError(f"sigma: must be at least 0, got {self.sigma}")

    @property
    def strength(self) -> float:
        return self.sigma

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        parts = train_split(job, sigma=self.sigma, key=key, store=store, progress=progress)
        plain = quiet(parts, job)
        return replace(plain, client=replace(plain.client, sigma=self.sigma))


@dataclass(frozen=True)
class Rotation:
    """Another network whose features at its first cut are mixed: an orthogonal matrix of their channels.

    learned: the matrix is trained, as an attacker who knows the form trains its own.
    """

    network: KeyedNetwork
    first: str  # last layer of the head
    second: str
    learned: bool = False

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.network.input_shape

    def module(self, key: Key) -> nn.Sequential:
        parts = cut(self.network.module(key), self.first, self.second)
        channels = parts.feature_shape(self.input_shape)[0]
        drawn = torch.randn(channels, channels, generator=key.fold("rotation").generator())
        mixing = nn.Conv2d(channels, channels, 1, bias=False)
        mixing.weight = nn.Parameter(torch.linalg.qr(drawn)[0][:, :, None, None].contiguous())
        mixing.requires_grad_(self.learned)
        chain: OrderedDict[str, nn.Module] = OrderedDict()
        chain["head"] = nn.Sequential(OrderedDict(plain=parts.head, mixing=mixing))
        chain["body"], chain["tail"] = parts.body, parts.tail
        return nn.Sequential(chain)


@dataclass(frozen=True)
class Rotated:
    """The channels of the features are rotated by a matrix that only the client knows.

    Sees: the network, its training records.
    Assumes: the servers do not learn the matrix.
    Guarantees: nothing. What is sent tells as much as before.
    Reference: ours.
    """

    rotated: bool = True

    @property
    def strength(self) -> float:
        return float(self.rotated)

    def job(self, job: SplitJob) -> SplitJob:
        """The job of the network with the rotation in its head."""
        if not self.rotated:
            return job
        network = Rotation(job.network, job.first, job.second)
        return replace(job, network=network, first="head", second="body")

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        own = self.job(job)
        return quiet(train_split(own, key=key, store=store, progress=progress), own)


@dataclass(frozen=True)
class Adversarial:
    """The head is trained so that a decoder, trained beside it, draws its inputs badly.

        head, body, tail:  min  cross-entropy - weight · mse(decoder(head(x)), x)
        decoder:           min  mse(decoder(head(x)), x)

    Sees: the network, its training records.
    Assumes: attackers whose decoder is no better than the one it is trained against.
    Guarantees: nothing. Weight 0 is no defence.
    Reference: ours, in the manner of adversarial representations; Ensembler24 does not try it.
    """

    weight: float = 0.0
    decoder: Decoder = Decoder(32)

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ExhumeError(f"weight: must be at least 0, got {self.weight}")

    @property
    def strength(self) -> float:
        return self.weight

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        if not self.weight:
            return quiet(train_split(job, key=key, store=store, progress=progress), job)
        parts = job.fresh(key)
        shape = job.records.shape
        features = parts.feature_shape(shape)
        decoder = self.decoder.module(features, shape, key.fold("opponent")).to(job.device)
        whole = nn.ModuleDict({"parts": parts.whole, "decoder": decoder})

        def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
            inputs, labels = job.batch(rows, generator)
            sent = parts.head(inputs)
            drawn = decoder(_reversed(sent, self.weight))
            entropy = F.cross_entropy(parts.tail(parts.body(sent)), labels)
            return entropy + F.mse_loss(drawn, inputs)

        train_module(
            whole,
            loss,
            len(job.records),
            job.schedule,
            inputs=(*job.digests, str(self.weight), job.first, job.second),
            key=key,
            store=store,
            progress=progress,
            stage="training against a decoder",
        )
        return quiet(parts, job)


def _reversed(values: Tensor, weight: float) -> Tensor:
    """The values as they are; gradients come back negated and scaled."""
    return (1 + weight) * values.detach() - weight * values
