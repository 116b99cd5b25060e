"""What a study is: a name, sizes for three scales, and claims that hold or do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch

from exhume.contract import Key, Progress
from exhume.report.charts import Chart
from exhume.report.folder import RunFolder
from exhume.settings import Settings, to_toml

__all__ = ["Claim", "Outcome", "Scale", "Study", "labelled", "pinned", "remembered"]

Scale = Literal["smoke", "cpu", "paper"]


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper (or of ours) and what was measured."""

    id: str
    statement: str
    paper: str  # what the paper reports, in its own figures
    measured: str
    holds: bool

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    claims: list[Claim]
    metrics: dict[str, float]
    attacks: list[dict[str, Any]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    deviations: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    paper: str
    run: Callable[[Scale, int, RunFolder, Progress], Outcome]
    spreads: bool = False  # falls into long jobs, so that the command uses a process for each core


def labelled(progress: Progress, label: str) -> Progress:
    """The same progress, its stages marked with the piece of the study they belong to."""
    return lambda stage, done, total: progress(f"{stage} ({label})", done, total)


def remembered(
    folder: RunFolder, key: Key, make: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """The numbers of one piece of a study: those the folder holds for this key, or made now and kept."""
    store = folder.store()
    kept = store.load(key.digest)
    if kept is None:
        kept = {n: torch.tensor(v, dtype=torch.float64) for n, v in make().items()}
        store.save(key.digest, kept)
    return {name: float(value) for name, value in kept.items()}


def pinned(settings: Settings, folder: RunFolder) -> Settings:
    """The settings with the chunk and threads of the run that this folder already holds, written down.

    These decide the bits, so a resumed study keeps them whatever machine it goes on with.
    """
    if folder.config.exists():
        settings = replace(settings, machine=Settings.from_toml(folder.config).machine)
    folder.write_config(to_toml(settings))
    torch.set_num_threads(settings.machine.threads)
    return settings
