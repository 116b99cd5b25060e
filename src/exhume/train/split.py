"""Training a network that will be cut: head, fixed noise, body, tail, end to end."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Progress, Records, Store, silent
from exhume.models.drawing import he_normal
from exhume.models.split.blueprint import Blueprint, Network
from exhume.models.split.channel import FreshNoise
from exhume.models.split.cut import Split, cut
from exhume.models.split.pipeline import Pipeline
from exhume.store.shards import describe, digest
from exhume.train.single import Schedule, train_module

__all__ = [
    "ANSWERS",
    "FEATURES",
    "Network",
    "SplitDefence",
    "SplitJob",
    "apply_dropout",
    "augmented_images",
    "check_dropped",
    "fixed_noise",
    "train_split",
]

FEATURES, ANSWERS = "features", "answers"
"""Where dropout works: on what the client sends, or on what the bodies answer."""

_SHIFT = 4  # pixels that an augmented image moves by at most, unless told otherwise


@dataclass(frozen=True, eq=False)
class SplitJob:
    """What is to be trained, on what, and where it will be cut."""

    network: Network
    first: str  # last layer of the head
    second: str  # last layer of the body
    records: Records
    schedule: Schedule = Schedule()
    augment: bool = True  # images are moved and mirrored at random
    shift: int = _SHIFT  # pixels that they are moved by at most
    aid: float = (
        0.0  # weight of the loss of a dense layer that reads what is sent, in training only
    )

    @property
    def blueprint(self) -> Blueprint:
        return Blueprint(self.network, self.first, self.second)

    def fresh(self, key: Key) -> Split:
        return cut(self.network.module(key).to(self.device), self.first, self.second)

    @property
    def device(self) -> torch.device:
        """Where the records are: all that is trained on them goes there."""
        return self.records.inputs.device

    def feature_shape(self, key: Key) -> tuple[int, ...]:
        return self.fresh(key).feature_shape(self.records.shape)

    def batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some rows, augmented."""
        inputs = self.records.inputs[rows]
        if self.augment and inputs.ndim == 4:
            inputs = augmented_images(inputs, generator, self.shift)
        return inputs, self.records.labels[rows]

    @property
    def digests(self) -> tuple[str, ...]:
        """All that a loss on this job's batches depends on."""
        moved = () if self.shift == _SHIFT else (f"shift {self.shift}",)
        aided = (f"aid {self.aid}",) if self.aid else ()
        return (
            digest(self.records),
            str(describe(self.network)),
            str(self.augment),
            *moved,
            *aided,
        )


@runtime_checkable
class SplitDefence(Protocol):
    """A way to train a split network. Strength zero is plain training."""

    @property
    def strength(self) -> float: ...
    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline: ...


def augmented_images(images: Tensor, generator: torch.Generator, shift: int = _SHIFT) -> Tensor:
    """(n, c, h, w): mirrored with probability one half, moved by up to `shift` pixels, borders black."""
    n, _, height, width = images.shape
    device = images.device
    mirrored = (torch.rand(n, generator=generator) < 0.5).to(device)
    moves = torch.randint(0, 2 * shift + 1, (2, n), generator=generator).to(device)
    padded = F.pad(torch.where(mirrored[:, None, None, None], images.flip(3), images), [shift] * 4)
    down = (moves[0][:, None] + torch.arange(height, device=device))[:, None, :, None]
    across = (moves[1][:, None] + torch.arange(width, device=device))[:, None, None, :]
    which, channel = (
        torch.arange(n, device=device)[:, None, None, None],
        torch.arange(images.shape[1], device=device)[:, None, None],
    )
    return padded[which, channel, down, across]


def fixed_noise(shape: tuple[int, ...], sigma: float, key: Key) -> Tensor:
    """One map of N(0, sigma), the same for every input (eq. 2)."""
    return sigma * torch.randn(shape, generator=key.fold("noise map").generator())


def apply_dropout(values: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Each value dropped with this probability, the others scaled up so that the mean stays."""
    if not rate:
        return values
    kept = (torch.rand(values.shape, generator=generator) >= rate).to(values.device)
    return values * kept / (1 - rate)


def check_dropped(rate: float, dropped: str) -> None:
    if not 0 <= rate < 1:
        raise ExhumeError(f"rate: must lie in [0, 1), got {rate}")
    if dropped not in (FEATURES, ANSWERS):
        raise ExhumeError(f"dropped: {dropped!r} is not one of {FEATURES}, {ANSWERS}")


def train_split(
    job: SplitJob,
    *,
    noise: Tensor | None = None,
    dropout: float = 0.0,
    dropped: str = FEATURES,
    random_head: bool = False,
    sigma: float = 0.0,
    start: Split | None = None,
    key: Key,
    store: Store,
    progress: Progress = silent,
    stage: str = "training the split network",
) -> Split:
    """Cross-entropy of tail(body(head(x) + noise)), features or the body's answers dropped if asked.

    random_head: the head stays as it was drawn, except for batch-norm statistics.
    sigma: of Gaussian noise on the features that is new at every step. start: where training begins; it is
    copied. None: weights drawn from the key. With the job's aid, a dense layer that is thrown away afterwards
    also names the classes from what is sent, so that the head learns to tell them apart by itself: what few
    bits carry is what the client knows.
    """
    parts = job.fresh(key)
    if start is not None:
        parts = copy.deepcopy(start)
        parts.whole.requires_grad_(True)
    if random_head:
        parts.head.requires_grad_(False)
    added = torch.zeros(()) if noise is None else noise.to(job.device)
    fresh = FreshNoise(sigma)
    whole, reader = parts.whole, _reader(job, parts, key)
    if reader is not None:
        whole["reader"] = reader

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        inputs, labels = job.batch(rows, generator)
        features = parts.head(inputs) + added
        if sigma:
            features = fresh(features, generator)
        if dropped == FEATURES:
            features = apply_dropout(features, dropout, generator)
        answer = parts.body(features)
        if dropped == ANSWERS:
            answer = apply_dropout(answer, dropout, generator)
        entropy = F.cross_entropy(parts.tail(answer), labels)
        if reader is None:
            return entropy
        return entropy + job.aid * F.cross_entropy(reader(features.flatten(1)), labels)

    train_module(
        whole,
        loss,
        len(job.records),
        job.schedule,
        inputs=(
            *job.digests,
            digest(added),
            str(dropout) if dropped == FEATURES else f"{dropped} {dropout}",
            str(random_head),
            job.first,
            job.second,
            *([f"fresh {sigma}"] if sigma else []),
        ),
        key=key,
        store=store,
        progress=progress,
        stage=stage,
    )
    return parts


def _reader(job: SplitJob, parts: Split, key: Key) -> nn.Module | None:
    if not job.aid:
        return None
    size, classes = math.prod(parts.feature_shape(job.records.shape)), len(job.records.classes)
    return he_normal(lambda: nn.Linear(size, classes), key.fold("reader")).to(job.device)
