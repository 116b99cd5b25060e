"""The settings of an audit of updates, each default in one place."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path

from exhume.auditing.fine_tuned import check_fine_tuned
from exhume.auditing.resume import refuse_other
from exhume.contract import ExhumeError
from exhume.data import Reading
from exhume.report.folder import RunFolder
from exhume.settings import to_toml
from exhume.victims.payload import Said

__all__ = ["UpdateSettings", "folder_for", "taken_up"]


@dataclass(frozen=True)
class UpdateSettings:
    """Empty or 0 means: not said, or choose it here."""

    model: str = ""  # package.module:factory
    update: str = ""  # a file with a gradient, or a folder of recorded updates
    before: str = ""  # the state the client was sent
    after: str = ""  # the state it returned
    base: str = ""  # the state that was fine-tuned into an adapter or a difference
    adapter: str = ""  # a file with a LoRA adapter of it
    delta: str = ""  # a file with differences to it
    scaling: float = 0.0  # of the adapter; 0: alpha / r of the adapter_config.json beside it
    made: int = (
        0  # instead of files: updates that are made here, of `batch_size` records of `data` each
    )
    rate: float = 0.0  # learning rate of the client's SGD
    steps: int = 1  # its local steps
    loss: str = "cross-entropy"  # for a single output: the logistic loss
    reduction: str = "mean"  # or "sum"
    batch_norm: str = "train"  # or "eval"
    batch_size: int = 0  # records behind the update
    shape: tuple[int, ...] = ()  # of one record
    data: str = ""  # a set that holds the private records, to score with
    records: str = ""  # which of them: indices, or a file of indices
    vocabulary: str = ""  # of texts: a file of words
    length: int = 0  # of texts: tokens of a record; 0: the longest
    padding: int = -1  # of texts: the number that fills up; -1: as the vocabulary or the model says
    restarts: int = 4  # of gradient matching
    search_steps: int = 0  # of gradient matching; 0: as many as the budget allows
    budget: float = 120.0  # seconds for gradient matching, over all updates
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        if self.loss != "cross-entropy":
            raise ExhumeError(
                f"loss: {self.loss!r} is not one of cross-entropy (of a single output: logistic)"
            )
        Said(self.reduction, self.batch_norm)  # refuses what is no such mode
        for name, least in (
            ("steps", 1),
            ("batch_size", 0),
            ("made", 0),
            ("restarts", 1),
            ("search_steps", 0),
        ):
            if getattr(self, name) < least:
                raise ExhumeError(f"{name}: {getattr(self, name)} given, at least {least} needed")
        if not self.budget > 0:
            raise ExhumeError(f"budget: {self.budget} given, more than 0 seconds needed")
        if any(size < 1 for size in self.shape):
            raise ExhumeError(f"shape: sizes must be at least 1, got {self.shape}")
        if self.records and not self.data:
            raise ExhumeError("records: say with --data which set they belong to")
        if not self.data and self.length:
            raise ExhumeError("length: say with --data which texts are meant")
        self.reading()
        self._check_sources()

    def reading(self) -> Reading:
        return Reading(self.vocabulary, self.length, self.padding)

    def _check_sources(self) -> None:
        """One way of saying what the update is, and no half of another."""
        check_fine_tuned(self)
        tuned = bool(self.adapter or self.delta)
        if tuned and not self.rate:
            raise ExhumeError("rate: an adapter or a difference needs the rate of its SGD")
        if bool(self.after) != (self.rate != 0) and not tuned:
            raise ExhumeError("rate: --after and --rate belong together")
        if tuned and (self.update or self.before or self.after):
            raise ExhumeError(
                "adapter, delta: give them with --base alone, no other update or state"
            )
        if self.after and not self.before:
            raise ExhumeError("before: --after needs the state before it")
        if self.after and self.update:
            raise ExhumeError("update: give a gradient, or --before and --after, not both")
        if self.made and (self.update or self.after or tuned):
            raise ExhumeError("made: updates are given, or made here, not both")
        if self.made and not (self.data and self.batch_size):
            raise ExhumeError("made: say with --data and --batch-size what updates are made of")
        if not (self.after or self.update or self.made or tuned):
            raise ExhumeError("update: give a gradient, a recorded folder, or --before and --after")
        if self.steps > 1 and not (self.after or tuned):
            raise ExhumeError("steps: several local steps need --before, --after and --rate")


def taken_up(folder: RunFolder, settings: UpdateSettings) -> UpdateSettings:
    """The settings of the run already in this folder, if it is the same run; else these."""
    if not folder.config.exists():
        return settings
    content = tomllib.loads(folder.config.read_text(encoding="utf-8"))
    names = {f.name for f in fields(UpdateSettings)}
    if set(content) == names:
        earlier = UpdateSettings(**content | {"shape": tuple(content["shape"])})
        chosen = replace(
            settings,
            search_steps=settings.search_steps or earlier.search_steps,
            threads=settings.threads or earlier.threads,
        )
        if chosen == earlier:
            return earlier
    refuse_other(folder)
    return settings


def folder_for(settings: UpdateSettings) -> Path:
    """A folder named by the settings, so that the same command finds its own earlier work."""
    given = settings.update or settings.after or settings.adapter or settings.delta
    name = Path(given or "made").stem
    digest = hashlib.sha256(to_toml(settings).encode()).hexdigest()[:8]
    return Path("runs") / f"update-{name}-{digest}"
