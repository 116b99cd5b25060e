"""Jobs that worker processes import by name; nothing here needs Ray."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError


def scaled(factor: Tensor, job: int) -> Tensor:
    return factor * job


def who(shared: None, job: int) -> tuple[int, int]:
    return os.getpid(), torch.get_num_threads()


def meets(folder: str, job: int) -> tuple[int, int]:
    """Ends once another process has begun a job, too, however slowly that one starts."""
    (Path(folder) / str(os.getpid())).touch()
    while len(list(Path(folder).iterdir())) < 2:
        time.sleep(0.05)
    return who(None, job)


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
    time.sleep(900)  # longer than the test waits
    return job
