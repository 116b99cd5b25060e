"""The Ensembler: N bodies answer, the client secretly reads P of them (Ensembler24).

1. N pipelines are trained, each with a fixed noise map of its own (eq. 2). They are independent jobs.
2. The client picks P of the N bodies. Bodies frozen, a new head, noise map and tail are trained on
   Concat[S_i body_i(head(x) + g)], S_i = 1/P (eq. 1), with the loss (eq. 3)

       cross-entropy + lambda · max over the selected i of cos(head(x), head_i(x)),

   so that the new head looks like none of the heads which the bodies were trained behind.

Eq. 3's outer sum is ambiguous in the paper; this is one maximum for every input, averaged over the batch.

Cost: N trainings, then one of head and tail through P bodies. Memory: N networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Progress, Store, silent
from exhume.models.split.cut import Split, wider_tail
from exhume.models.split.pipeline import Pipeline, SplitClient
from exhume.store.scale import Cluster, run_jobs, where_now
from exhume.store.shards import NullStore, address, digest
from exhume.train.single import Schedule, SplitJob, fixed_noise, train_module, train_split


@dataclass(frozen=True)
class Ensembler:
    """N bodies, of which only the client knows the P that count.

    Sees: the network, its training records.
    Assumes: the servers do not learn the selection, and do not query the client.
    Guarantees: nothing that is proved; a selection is one of C(N, P).
    Reference: Ensembler24, eqs 1 to 3; N = 10, P = 4, sigma = 0.1 for CIFAR-10.
    """

    bodies: int = 10  # N
    selected: int = 4  # P
    sigma: float = 0.1
    likeness: float = 1.0  # lambda of eq. 3; not stated in the paper
    schedule: Schedule | None = None  # of stage 2; None: the job's own

    def __post_init__(self) -> None:
        if not 1 <= self.selected <= self.bodies:
            raise ExhumeError(
                f"selected: {self.selected} of {self.bodies} bodies; legal is 1 <= P <= N"
            )
        if self.sigma < 0 or self.likeness < 0:
            raise ExhumeError(f"sigma and likeness must be at least 0: {self}")

    @property
    def strength(self) -> float:
        return float(self.bodies)

    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline:
        parts = self.stage_one(job, key=key, store=store, progress=progress)
        return self.stage_two(job, parts, self.choose(key), key=key, store=store, progress=progress)

    def choose(self, key: Key) -> tuple[int, ...]:
        """The secret selection. A client that deploys it draws the key from the system's randomness."""
        order = torch.randperm(self.bodies, generator=key.fold("selector").generator())
        return tuple(sorted(order[: self.selected].tolist()))

    def stage_one(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> tuple[Split, ...]:
        """N networks of their own, each trained behind its own noise; finished ones are kept."""
        far = isinstance(where_now(), Cluster)
        names = [
            address(
                "stage_one",
                job.schedule,
                (*job.digests, str(self.sigma), job.first, job.second),
                key,
                index,
            )
            for index in range(self.bodies)
        ]
        parts = [job.fresh(key.fold("body", index)) for index in range(self.bodies)]
        kept = [store.load(name) for name in names]
        for split, state in zip(parts, kept, strict=True):
            if state is not None:
                split.whole.load_state_dict(state)
        done = sum(state is not None for state in kept)
        progress("training the bodies", done, self.bodies)
        jobs = [index if state is None else None for index, state in enumerate(kept)]
        shared = _Shared(job, self.sigma, key, NullStore() if far else store)
        for index, trained in run_jobs(_train_one, jobs, shared=shared):
            if trained is not None:
                store.save(names[index], trained)
                parts[index].whole.load_state_dict(trained)
                done += 1
                progress("training the bodies", done, self.bodies)
        for split in parts:
            split.whole.requires_grad_(False).eval()
        return tuple(parts)

    def stage_two(
        self,
        job: SplitJob,
        parts: tuple[Split, ...],
        chosen: tuple[int, ...],
        *,
        key: Key,
        store: Store,
        progress: Progress = silent,
    ) -> Pipeline:
        """A new head and tail around the frozen bodies. Called again it rotates the selector."""
        key = key.fold("stage two", *chosen)
        fresh = job.fresh(key)
        shape = fresh.feature_shape(job.records.shape)
        noise = fixed_noise(shape, self.sigma, key).to(job.device)
        bodies = tuple(part.body for part in parts)
        heads = [parts[i].head for i in chosen]
        tail = wider_tail(fresh, bodies[0], shape, len(chosen))
        client = SplitClient(fresh.head, noise, chosen, tail)
        trained = nn.ModuleDict({"head": fresh.head, "tail": tail})

        def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
            inputs, labels = job.batch(rows, generator)
            sent = fresh.head(inputs)
            answers = {i: bodies[i](sent + noise) for i in chosen}
            share = 1 / len(chosen)
            logits = tail(torch.cat([share * answers[i] for i in chosen], 1))
            entropy = F.cross_entropy(logits, labels)
            if not self.likeness:
                return entropy
            with torch.no_grad():
                others = [head(inputs) for head in heads]
            return entropy + self.likeness * _alike(sent, others)

        weights = tuple(
            digest(tensor)
            for i in chosen
            for module in (parts[i].head, parts[i].body)
            for tensor in module.state_dict().values()
        )
        train_module(
            trained,
            loss,
            len(job.records),
            self.schedule or job.schedule,
            inputs=(*job.digests, digest(noise), str(self.likeness), *weights),
            key=key,
            store=store,
            progress=progress,
            stage="training head and tail",
        )
        return Pipeline(client, bodies, job.first)


@torch.no_grad()
def likeness(pipeline: Pipeline, parts: Sequence[Split], inputs: Tensor) -> float:
    """What eq. 3 keeps small: how alike the client's head is to the likest of those it replaced."""
    client = pipeline.client
    return float(_alike(client.head(inputs), [parts[i].head(inputs) for i in client.selected]))


def _alike(sent: Tensor, others: Sequence[Tensor]) -> Tensor:
    """The largest cosine of each input, averaged."""
    cosines = [F.cosine_similarity(sent.flatten(1), other.flatten(1), 1) for other in others]
    return torch.stack(cosines).max(0).values.mean()


@dataclass(frozen=True, eq=False)
class _Shared:
    job: SplitJob
    sigma: float
    key: Key
    store: Store  # keeps epochs where the job runs on this machine


def _train_one(shared: _Shared, index: int) -> dict[str, Tensor]:
    key = shared.key.fold("body", index)
    noise = fixed_noise(shared.job.feature_shape(key), shared.sigma, key)
    split = train_split(shared.job, noise=noise, key=key, store=shared.store)
    return dict(split.whole.state_dict())
