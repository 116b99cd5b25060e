"""From settings to concrete choices: sizes, recipe, chunk, threads, device."""

from __future__ import annotations

import os

import torch

from exhume.contract import ExhumeError, Records
from exhume.data import Sizes, Split
from exhume.models.mlp import MLP
from exhume.settings import Settings
from exhume.train.fleet import chunk_for
from exhume.train.recipe import FullBatch
from exhume.train.stacked import Descent

__all__ = ["device_named", "moved", "recipe_for", "resolve", "sizes_for"]


def sizes_for(records: int, settings: Settings) -> Sizes:
    """Sizes as given; those left at 0 are shares of the records, capped at the notebook's setting."""
    given = settings.data
    return Sizes(
        fixed=given.fixed or min(1000, records // 4),
        target=given.targets or min(200, records // 10),
        shadow=given.shadows or min(2000, records // 2),
        public=given.public or min(1000, records // 20),
        test=given.test or min(1000, records // 20),
    )


def resolve(settings: Settings, records: Records) -> Settings:
    """Replace every "choose for me" by a number, so that the same run can be had again."""
    sizes = sizes_for(len(records), settings)
    settings = settings.with_values(
        "data",
        fixed=sizes.fixed,
        targets=sizes.target,
        shadows=sizes.shadow,
        public=sizes.public,
        test=sizes.test,
    )
    machine = settings.machine
    chunk = machine.chunk or chunk_for(
        recipe_for(settings, records).bytes_per_model(sizes.fixed + 1), machine.memory << 20
    )
    return settings.with_values("machine", chunk=chunk, threads=machine.threads or _cores())


def recipe_for(settings: Settings, records: Records) -> FullBatch:
    chosen = settings.victim
    mlp = MLP(
        input_shape=records.shape,
        hidden=chosen.hidden,
        outputs=len(records.classes),
        activation=chosen.activation,
        init=chosen.init,
    )
    return FullBatch(mlp, Descent(chosen.steps, chosen.rate, chosen.momentum, chosen.weight_decay))


def device_named(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ExhumeError(f"device: {name!r} cannot be used here: {first}") from error
    return device


def moved(parts: Split, device: torch.device) -> Split:
    return Split(
        fixed=parts.fixed.to(device),
        target=parts.target.to(device),
        shadow=parts.shadow.to(device),
        public=parts.public.to(device),
        test=parts.test.to(device),
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
