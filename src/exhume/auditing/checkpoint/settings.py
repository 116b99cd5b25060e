"""The settings of an audit of a checkpoint, and how a run folder keeps to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.auditing.checkpoint.scoring_records import Given
from exhume.auditing.fine_tuned import check_fine_tuned
from exhume.auditing.resume import keep_to
from exhume.contract import ExhumeError
from exhume.report.folder import RunFolder
from exhume.store import digest
from exhume.victims.checkpoint import Checkpoint

__all__ = ["WeightsSettings", "shape_of", "take_up"]


@dataclass(frozen=True)
class WeightsSettings:
    """An empty text or 0 means: not given."""

    checkpoint: str = ""  # the file
    base: str = ""  # the state that was fine-tuned into an adapter or a difference
    adapter: str = ""  # instead of the checkpoint: a file with a LoRA adapter
    delta: str = ""  # or one with differences to the base
    scaling: float = 0.0  # of the adapter; 0: alpha / r of the adapter_config.json beside it
    activation: str = "relu"
    head: str = ""  # multiclass, binary or regression; by the number of outputs if not given
    shape: tuple[int, ...] = ()  # of one record; that of the records or of the mean if not given
    mean: str = ""  # what the preprocessing subtracts: an .npz file, numbers, or unknown
    trained_on: str = ""
    rows: str = ""  # those of `trained_on` that were trained on; the others are decoys
    decoys: str = ""
    restarts: int = FirstLayer.restarts
    steps: int = Descent.steps
    trust: bool = False  # read a file that runs code while it is loaded
    seed: int = 0

    @property
    def file(self) -> Path:
        """What is released."""
        return Path(self.checkpoint or self.adapter or self.delta)

    def __post_init__(self) -> None:
        check_fine_tuned(self)
        if self.checkpoint and self.base:
            raise ExhumeError("checkpoint: give it, or an adapter or difference and its base")
        if not (self.checkpoint or self.base):
            raise ExhumeError("checkpoint: no file of weights is named")
        if self.restarts < 1 or self.steps < 1:
            raise ExhumeError(
                f"restarts, steps: {self.restarts} and {self.steps} given, at least 1 of each needed"
            )
        if any(size < 1 for size in self.shape):
            raise ExhumeError(f"shape: {self.shape} given, every size must be at least 1")
        if self.head not in ("", "multiclass", "binary", "regression"):
            raise ExhumeError(f"head: {self.head!r} is not one of multiclass, binary, regression")
        if not self.trained_on and (self.rows or self.decoys):
            raise ExhumeError("--rows and --decoys: only together with --trained-on")


def shape_of(settings: WeightsSettings, given: Given | None) -> tuple[int, ...]:
    if given is not None:
        shape = given.trained.shape
        if settings.shape and settings.shape != shape:
            raise ExhumeError(f"--shape: {settings.shape} given, the training records have {shape}")
        return shape
    if not settings.shape:
        raise ExhumeError(
            "--shape: the shape of one record is needed, such as 3,32,32; the checkpoint only tells how "
            "many numbers it takes"
        )
    return settings.shape


def take_up(folder: RunFolder, settings: WeightsSettings, checkpoint: Checkpoint | None) -> None:
    weights = digest(checkpoint.release.parameters) if checkpoint else ""
    keep_to(folder, settings, {"checkpoint_digest": weights}, threads=torch.get_num_threads())
