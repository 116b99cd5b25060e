"""Jobs that workers import by name: on a cluster, the tests' own modules are not known."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import ray
import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.mlp import MLP
from exhume.train.recipe import FullBatch


def scaled(factor: Tensor, job: int) -> Tensor:
    return factor * job


def threads(shared: None, job: int) -> int:
    return torch.get_num_threads()


def naps(seconds: dict[int, float], job: int) -> int:
    time.sleep(seconds.get(job, 0.0))
    return job


def waits_for_three(folder: str, job: int) -> int:
    """Job 0 ends once three files say that what jobs 1, 2 and 3 return has arrived."""
    while not job and len(list(Path(folder).iterdir())) < 3:
        time.sleep(0.1)
    return job


def noted_nap(note: str, job: int) -> int:
    Path(note).touch()
    time.sleep(900)  # longer than the test waits
    return job


def refuses(shared: None, job: int) -> int:
    raise ExhumeError(f"job {job} will not")


def fails(shared: None, job: int) -> float:
    return job / 0


def dies(shared: None, job: int) -> int:
    os._exit(1)


@dataclass(frozen=True)
class Traced:
    """A recipe that writes down which node began which chunk, and takes for ever on one node.

    The other nodes wait for that one to begin, however long its worker takes to start.
    """

    inner: FullBatch
    trace: str
    slow: str  # a file that holds the slow node's id

    @property
    def architecture(self) -> MLP:
        return self.inner.architecture

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        if ray.is_initialized() and ray.get_runtime_context().get_task_id():  # in a worker
            node = ray.get_runtime_context().get_node_id()
            with Path(self.trace).open("a") as file:
                file.write(f"{first} {node}\n")
            slow = Path(self.slow).read_text()
            if node == slow:
                time.sleep(900)
            while slow not in Path(self.trace).read_text():
                time.sleep(0.1)
        return self.inner.fit(initial, fixed, extra, key, first)
