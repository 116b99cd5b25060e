"""Does a checkpoint do well on what it is said to have been trained on? A check of the owner's words."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from exhume.contract import Records
from exhume.models.heads import Head, margins
from exhume.train.stationarity import stationarity
from exhume.victims.checkpoint import Checkpoint

__all__ = ["Fit", "fit_of"]


@dataclass(frozen=True, eq=False)
class Fit:
    """How the network does on what it is said to have been trained on."""

    margins: Tensor | None
    facts: dict[str, str | float]
    notes: tuple[str, ...]


def fit_of(checkpoint: Checkpoint, records: Records, centre: Tensor, head: Head) -> Fit:
    mlp = checkpoint.architecture
    if int(records.labels.max()) >= max(2, mlp.outputs):
        note = f"The training records have more classes than the network's {mlp.outputs} outputs."
        return Fit(None, {}, (note,))
    network = mlp.matrices(checkpoint.release.parameters[0])
    inputs = (records.inputs - centre).flatten(1).to(network.first.dtype)
    found = margins(head, network.forward(inputs)[1], records.labels)
    right = float((found > 0).double().mean())
    facts: dict[str, str | float] = {
        "training_records": float(len(records)),
        "train_accuracy": right,
    }
    if right < 0.9:
        note = (
            f"The network gets {right:.0%} of the training records right: check the mean, the scale of "
            "the inputs and the order of the classes. Networks that do not fit their data leak less."
        )
        return Fit(found, facts, (note,))
    if len(records) <= 500:  # the least squares behind it grows with the cube
        at = stationarity(network, inputs, records.labels, head)
        facts["residual_at_truth"] = at.first_layer
    return Fit(found, facts, ())
