"""A run folder keeps to the settings it began with: the same run goes on, another one is refused."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from exhume.contract import ExhumeError
from exhume.report.folder import RunFolder
from exhume.report.result import read_toml
from exhume.settings import toml_of

__all__ = ["keep_to", "refuse_other"]


def keep_to(folder: RunFolder, settings: Any, digests: dict[str, str], *, threads: int) -> None:
    """Write the settings down, or go on with the run that this folder holds if it is the same.

    digests: of what the settings name; threads: for a new run. An earlier one keeps its own.
    """
    plain = {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(settings).items()}
    wanted = {**plain, **digests}
    machine = {"threads": threads}
    if folder.config.exists():
        earlier = read_toml(folder.config)
        if {**wanted, "machine": earlier.get("machine")} == earlier:
            machine = earlier["machine"]  # threads decide the bits
        else:
            refuse_other(folder)
    torch.set_num_threads(int(machine["threads"]))
    tuples = {n: tuple(v) if isinstance(v, list) else v for n, v in wanted.items()}
    folder.write_config(toml_of({**tuples, "machine": machine}))


def refuse_other(folder: RunFolder) -> None:
    """Of a folder with other settings: nothing that was worked for is written over."""
    if folder.has_work():
        raise ExhumeError(
            f"{folder.path} holds a run with other settings (see its config.toml): "
            "choose another --out, or delete it"
        )
