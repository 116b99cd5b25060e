"""Updates of a federated run as files: one safetensors for either state, one small JSON an update.

A recorder that runs beside the training writes them; `recorded_in` finds them again. No file is shared
between updates but the states that clients were sent alike, so that several processes may record at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from exhume.core.contract import ExhumeError
from exhume.core.typed_json import from_json
from exhume.store.shards import write_atomically
from exhume.train.local import PLAIN, Routine

__all__ = ["Recorded", "Recording", "recorded_in"]

_SCHEMA = 1


@dataclass(frozen=True)
class Recorded:
    """One client's update of one round; `before` and `after` are file names in the same folder."""

    round: int
    client: str
    before: str
    after: str
    rate: float  # learning rate of the client's SGD
    steps: int  # local steps
    batch_size: int  # records behind the update; 0: unknown
    epochs: int = 0  # over the records, in place of `steps`; 0: not said
    local_batch: int = 0  # records of a step within an epoch; 0: not said
    momentum: float | None = None  # None: not said
    weight_decay: float | None = None
    optimiser: str = ""  # empty: not said
    schedule: str = ""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ExhumeError(f"rate: must be above 0, got {self.rate}")
        if self.steps < 1 or self.batch_size < 0:
            raise ExhumeError(
                f"steps, batch_size: must be at least 1 and 0, got {self.steps} and {self.batch_size}"
            )
        self.routine(PLAIN)  # complains of what cannot be
        if not re.fullmatch(r"[\w-]+", self.client):
            raise ExhumeError(f"client: {self.client!r} must be of letters, digits, - and _")

    def routine(self, usual: Routine) -> Routine:
        """How the client trained: as is said here, else as usual."""
        said: dict[str, Any] = {
            "epochs": self.epochs or None,
            "local_batch": self.local_batch or None,
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
            "optimiser": self.optimiser or None,
            "schedule": self.schedule or None,
        }
        return replace(usual, **{name: value for name, value in said.items() if value is not None})


@dataclass(frozen=True)
class Recording:
    """A folder that updates are written to; only its owner can read it."""

    folder: Path

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)
        except OSError as error:
            raise ExhumeError(
                f"cannot record in {self.folder}: {error.strerror or error}"
            ) from error

    def write(
        self,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        round: int,  # noqa: A002 - the word of federated learning
        client: str,
        rate: float,
        steps: int = 1,
        batch_size: int = 0,
        routine: Routine | None = None,
    ) -> Recorded:
        """The states first, then the JSON that names them: what is listed is there in full.

        routine: how the client trained, if it is known.
        """
        name = f"round-{round}-client-{client}"
        content = _bytes(before)
        start = f"sent-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
        record = Recorded(
            round,
            client,
            start,
            f"{name}.safetensors",
            float(rate),
            steps,
            batch_size,
        )
        if routine is not None:
            record = replace(
                record,
                epochs=routine.epochs,
                local_batch=routine.local_batch,
                momentum=routine.momentum,
                weight_decay=routine.weight_decay,
                optimiser=routine.optimiser,
                schedule=routine.schedule,
            )
        if not (self.folder / start).exists():  # its name is its content
            write_atomically(self.folder / start, content)
        write_atomically(self.folder / record.after, _bytes(after))
        text = json.dumps({"schema": _SCHEMA, **asdict(record)}, indent=2)
        write_atomically(self.folder / f"{name}.json", f"{text}\n".encode())
        return record


def recorded_in(folder: Path) -> list[Recorded]:
    """All updates of a folder, by round and client."""
    found = [_read(path) for path in sorted(folder.glob("round-*-client-*.json"))]
    if not found:
        raise ExhumeError(f"update: {folder} holds no recorded update")
    return sorted(found, key=lambda one: (one.round, one.client))


def _bytes(state: Mapping[str, Tensor]) -> bytes:
    content: bytes = save({n: t.detach().cpu().contiguous() for n, t in state.items()})
    return content


def _read(path: Path) -> Recorded:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema", None) != _SCHEMA:
            raise ExhumeError(f"{path}: not of schema {_SCHEMA}, which this version reads")
        record = from_json(Recorded, content, str(path))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as damage:
        raise ExhumeError(f"{path}: not the record of an update ({damage})") from None
    for name in (record.before, record.after):
        if Path(name).name != name:
            raise ExhumeError(f"{path}: {name!r} lies outside the folder")
    return record
