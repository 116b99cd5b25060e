"""Jobs that worker processes import by name; nothing here needs Ray."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import Tensor

from exhume.contract import ExhumeError


def scaled(factor: Tensor, job: int) -> Tensor:
    return factor * job


def who(shared: None, job: int) -> tuple[int, int]:
    time.sleep(0.2)
    return os.getpid(), torch.get_num_threads()


def refuses(shared: None, job: int) -> int:
    raise ExhumeError(f"job {job} will not")


def fails(shared: None, job: int) -> float:
    return job / 0


def dies_once(folder: str, job: int) -> int:
    mark = Path(folder) / str(job)
    if job == 2 and not mark.exists():
        mark.touch()
        os._exit(1)
    return 10 * job


def dies(shared: None, job: int) -> int:
    os._exit(1)


def naps(folder: str, job: int) -> int:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(100)
    return job
