"""Several bodies without a secret: dropout on features or answers, one training ("DR-ensemble")."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Progress, Store, silent
from exhume.models.split.cut import wider_tail
from exhume.models.split.pipeline import Pipeline, SplitClient
from exhume.train.single import (
    ANSWERS,
    FEATURES,
    SplitJob,
    apply_dropout,
    check_dropped,
    train_module,
)


@dataclass(frozen=True)
class DropoutEnsemble:
    """N bodies behind one head; features or answers are dropped at random in training, all bodies count.

    Sees: the network, its training records.
    Assumes: nothing about the attacker.
    Guarantees: nothing. One body without dropout is no defence.
    Reference: Ensembler24, Table 1 (DR-ensemble): the ensemble without stage 1 and without a selector.
    """

    bodies: int = 10
    rate: float = 0.5
    dropped: str = FEATURES  # "answers": before the tail, where the Ensembler has its selector

    def __post_init__(self) -> None:
        if self.bodies < 1:
            raise ExhumeError(f"bodies must be at least 1: {self}")
        check_dropped(self.rate, self.dropped)

    @property
    def strength(self) -> float:
        return self.bodies - 1 + self.rate

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        first = job.fresh(key)
        shape = first.feature_shape(job.records.shape)
        others = [job.fresh(key.fold("body", i)).body for i in range(1, self.bodies)]
        bodies = (first.body, *others)
        tail = wider_tail(first, first.body, shape, self.bodies)
        everything = tuple(range(self.bodies))
        client = SplitClient(first.head, torch.zeros(shape, device=job.device), everything, tail)
        whole = nn.ModuleDict({"head": first.head, "bodies": nn.ModuleList(bodies), "tail": tail})

        def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
            inputs, labels = job.batch(rows, generator)
            features = first.head(inputs)
            if self.dropped == FEATURES:
                features = apply_dropout(features, self.rate, generator)
            answers = [body(features) for body in bodies]
            if self.dropped == ANSWERS:
                answers = [apply_dropout(answer, self.rate, generator) for answer in answers]
            return F.cross_entropy(client.finish(answers), labels)

        train_module(
            whole,
            loss,
            len(job.records),
            job.schedule,
            inputs=(*job.digests, str(self.rate), self.dropped, job.first, job.second),
            key=key,
            store=store,
            progress=progress,
            stage="training the ensemble",
        )
        return Pipeline(client, bodies, job.first)
