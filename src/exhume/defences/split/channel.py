"""A channel between client and server that carries few bits, whoever listens and whatever they know.

The client turns its features into k numbers of length at most 1 and adds Gaussian noise that is new for every
request; the server goes on from there. Head, both ends of the channel, body and tail are trained together,
with that noise. The bounds are those of bounds/channel.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from exhume.bounds.channel import bits, sigma_for
from exhume.core.contract import ExhumeError, Key, Progress, Store, silent
from exhume.defences.split.single import quiet
from exhume.models.split.channel import ENCODED, EXPANDED, ChannelNetwork
from exhume.models.split.cut import Split
from exhume.models.split.pipeline import Pipeline
from exhume.train.single import SplitJob, train_split

_AID = 1.0  # few bits carry no more than the client can tell by itself, so that it is trained to


@dataclass(frozen=True)
class Channel:
    """k numbers of length at most 1 with fresh Gaussian noise leave the client, and nothing else.

    Sees: the network, its training records.
    Assumes: ideal Gaussian noise, fresh for every request; nothing else is sent; no statistics of a batch.
    Nothing about the attacker, who may know the head.
    Guarantees: a request tells at most (k/2) log2(1 + 1/(k sigma^2)) bits about its input, on average over
    inputs; what succeeds with probability kappa without the request succeeds with at most
    Phi(Phi^-1(kappa) + 1/sigma) with it. T requests of the same input: sqrt(T)/sigma in its place, and
    T/(k sigma^2). About training records: nothing. Sigma 0 is no defence and has no channel.
    Reference: ours; Shannon 1948 (capacity), Neyman and Pearson 1933.
    """

    sigma: float = 0.0
    numbers: int = 16  # k

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise ExhumeError(f"sigma: must be finite and at least 0, got {self.sigma}")
        if self.numbers < 1:
            raise ExhumeError(f"numbers: must be at least 1, got {self.numbers}")

    @staticmethod
    def of_bits(bits: float, numbers: int = 16) -> Channel:
        """The channel whose bound is so many bits a request."""
        return Channel(sigma_for(bits, numbers), numbers)

    @property
    def strength(self) -> float:
        return self.sigma

    @property
    def bits(self) -> float:
        """On average over inputs, for one request; infinite without noise."""
        return bits(self.numbers, self.sigma) if self.sigma else math.inf

    def job(self, job: SplitJob) -> SplitJob:
        """The job of the network with the channel in it, cut at the channel."""
        if not self.sigma:
            return job
        network = ChannelNetwork(job.network, job.first, job.second, self.numbers)
        aid = job.aid or _AID
        return replace(job, network=network, first=ENCODED, second=EXPANDED, aid=aid)

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        return self._trained(job, None, key=key, store=store, progress=progress)

    def fine_tune(
        self, job: SplitJob, trained: Split, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        """Put a channel into a network that was trained without one, and train all of it further."""
        if not self.sigma:
            return self._trained(job, trained, key=key, store=store, progress=progress)
        start = self.job(job).fresh(key)
        start.head.get_submodule("head").load_state_dict(trained.head.state_dict())
        start.body.get_submodule("body.rest").load_state_dict(trained.body.state_dict())
        start.tail.get_submodule("tail").load_state_dict(trained.tail.state_dict())
        return self._trained(job, start, key=key, store=store, progress=progress)

    def _trained(
        self, job: SplitJob, start: Split | None, *, key: Key, store: Store, progress: Progress
    ) -> Pipeline:
        own = self.job(job)
        parts = train_split(
            own, sigma=self.sigma, start=start, key=key, store=store, progress=progress
        )
        plain = quiet(parts, own)
        return replace(plain, client=replace(plain.client, sigma=self.sigma))
