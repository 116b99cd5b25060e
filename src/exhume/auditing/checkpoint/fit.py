"""Does a checkpoint do well on what it is said to have been trained on? A check of the owner's words."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from exhume.contract import Records
from exhume.models.heads import Head, margins
from exhume.train.stationarity import stationarity
from exhume.victims.checkpoint import Checkpoint

__all__ = ["Fit", "fit_of"]

_MANY = 500  # records; the least squares behind the residual grows with the cube
_FAR = 0.25  # residual at the truth: 0.1 to 0.15 from a small start, 0.35 to 0.7 from torch's own


@dataclass(frozen=True, eq=False)
class Fit:
    """How the network does on what it is said to have been trained on."""

    margins: Tensor | None
    facts: dict[str, str | float]
    notes: tuple[str, ...]
    doubt: str = ""  # why the attack could not work, if it found nothing


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
        return Fit(
            found,
            facts,
            (note,),
            f"the network gets only {right:.0%} of its training records right",
        )
    if len(records) > _MANY:
        doubt = f"whether its weights are at the point the attack needs is checked up to {_MANY} records"
        return Fit(found, facts, (), doubt)
    at = stationarity(network, inputs, records.labels, head)
    facts["residual_at_truth"] = at.first_layer
    if at.first_layer <= _FAR:
        return Fit(found, facts, ())
    doubt = (
        "this network is not at the point the attack needs: its training records leave "
        f"{at.first_layer:.0%} of the first layer unexplained"
    )
    return Fit(found, facts, (), doubt)
