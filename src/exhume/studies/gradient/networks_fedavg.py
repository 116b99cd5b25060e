"""Rows of `update-networks` for clients that train as FedAvg does: epochs over batches in an unknown order.

Each client has 16 records and makes two epochs of batches of 8. The attack knows the rate and that much; not
which records a batch had, nor, for fully connected networks, how many records there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from exhume.attacks.gradient.features import FeatureDecoding
from exhume.attacks.gradient.local_steps import LocalStepsAttack
from exhume.core.contract import Attack, Knowledge
from exhume.models.ordinary import convnet, fully_connected
from exhume.models.own.module import ModuleArchitecture
from exhume.naming import seeded_globals
from exhume.score.batches import score_batches
from exhume.studies.arms import mounted
from exhume.studies.framework import Run, Scale
from exhume.studies.gradient.batches import came_back
from exhume.train.local import LocalTraining, Routine
from exhume.victims.gradient import cut_batches, release_updates

__all__ = ["fedavg_metrics"]

_POOL = 4000  # records that strangers come from
_NUMBERS = ("recovered", "identified", "psnr", "seconds", "counted")


@dataclass(frozen=True)
class _Row:
    """A network, how its clients train, and what attacks them."""

    build: Callable[[], nn.Module]
    source: str
    rate: float
    attack: Attack = LocalStepsAttack()
    records: int = 16
    routine: Routine = Routine(epochs=2, local_batch=8)

    @property
    def known(self) -> int | None:
        """What the attack is told of the number of records: behind convolutions it is not in the rank."""
        return None if isinstance(self.attack, LocalStepsAttack) else self.records


_HALF = Routine(epochs=2, local_batch=4)
_ROWS = {
    "mlp.rate0.01": _Row(partial(fully_connected, 784, 256, 10), "mnist", 0.01),
    "mlp.rate0.1": _Row(partial(fully_connected, 784, 256, 10), "mnist", 0.1),
    "convnet.rate0.01": _Row(partial(convnet, 3, 32), "cifar10", 0.01, FeatureDecoding()),
    "small.rate0.01": _Row(
        partial(fully_connected, 64, 96, 10),
        "digits",
        0.01,
        LocalStepsAttack(2, 1),
        records=8,
        routine=_HALF,
    ),
}
_SCALES: dict[Scale, tuple[str, ...]] = {
    "smoke": ("small.rate0.01",),
    "cpu": ("mlp.rate0.01", "mlp.rate0.1", "convnet.rate0.01"),
    "paper": ("mlp.rate0.01", "mlp.rate0.1", "convnet.rate0.01"),
}


def fedavg_metrics(run: Run[Any], clients: int) -> dict[str, float]:
    """Means over so many clients: `fedavg.{row}.{number}`."""
    jobs = {
        f"fedavg.{name} {index}": (name, index)
        for name in _SCALES[run.scale]
        for index in range(clients)
    }
    rows: dict[str, list[dict[str, Tensor]]] = {}
    for job, kept in run.tensors("attacking clients of FedAvg", _one, jobs).items():
        rows.setdefault(job.split(" ")[0], []).append(kept)
    return {
        f"{row}.{number}": float(torch.cat([one[number] for one in kept]).mean())
        for row, kept in rows.items()
        for number in _NUMBERS
    }


def _one(run: Run[Any], job: tuple[str, int]) -> Mapping[str, Tensor]:
    """One client: its own records, weights and order."""
    name, index = job
    row, key = _ROWS[name], run.key.fold("fedavg", name, index)
    records = run.records(row.source)
    drawn = torch.randperm(len(records), generator=key.fold("records").generator())
    private, others = records[drawn[: row.records]], records[drawn[row.records :][:_POOL]]
    with seeded_globals(key.fold("weights")):
        architecture = ModuleArchitecture.of(row.build(), records.shape)
    local = LocalTraining(architecture, rate=row.rate, routine=row.routine)
    batch = cut_batches(private, row.records)
    release, secret = release_updates(local, architecture.initial(key), batch, key.fold("client"))
    knowledge = Knowledge(architecture=architecture, local=local, batch_size=row.known)
    began = time.perf_counter()
    found = mounted(row.attack, knowledge, release, key.fold("attack"))
    seconds = time.perf_counter() - began
    scores = score_batches(secret, found)
    return {
        **came_back(found, scores, private, others, key),
        "seconds": torch.tensor([seconds], dtype=torch.float64),
    }
