"""Does a checkpoint do well on what it is said to have been trained on? A check of the owner's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from exhume.auditing.checkpoint.preprocessing import Preprocessing
from exhume.core.contract import Records
from exhume.models.heads import Head, margins
from exhume.models.matrices import Dense
from exhume.train.margin import stationarity

__all__ = ["FAR", "Fit", "fit_of", "fit_to"]

_MANY = 500  # records; the least squares behind the residual grows with the cube
_WELL = 0.9
FAR = 0.25  # residual at the truth: 0.1 to 0.15 from a small start, 0.35 to 0.7 from torch's own
_UNSURE = (
    "The training records do not explain the weights: without weight decay they never do, with it see "
    "whether --activation, --mean and --std are yours."
)


@dataclass(frozen=True, eq=False)
class Fit:
    """How the network does on what it is said to have been trained on."""

    records: int
    margins: Tensor | None = None
    right: float | None = None  # share of the records; None: could not be told
    residual: float | None = None  # share of the first layer that the records do not explain
    unfit: str = ""  # why one of the two could not be told
    notes: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, str | float]:
        known = {"train_accuracy": self.right, "residual_at_truth": self.residual}
        found = {name: value for name, value in known.items() if value is not None}
        return {"training_records": float(self.records), **found} if found else {}


def fit_of(
    mlp: Dense, parameters: Tensor, records: Records, preprocessing: Preprocessing, head: Head
) -> Fit:
    """parameters: (p,); left unexplained: the residual of stationarity of the first layer."""
    network = mlp.matrices(parameters)
    inputs = preprocessing.entering(records.inputs).flatten(1).to(network.first.dtype)
    outputs = network.forward(inputs)[1]
    return fit_to(
        outputs,
        records.labels,
        head,
        lambda: stationarity(network, inputs, records.labels, head).first_layer,
    )


def fit_to(outputs: Tensor, labels: Tensor, head: Head, residual: Callable[[], float]) -> Fit:
    """outputs: (n, c) for the training records; residual: what is asked if the network does well on them."""
    count, classes = len(labels), outputs.shape[1]
    if int(labels.max()) >= max(2, classes):
        why = f"the training records have more classes than the network's {classes} outputs"
        return Fit(count, unfit=why, notes=(f"{why[0].upper()}{why[1:]}.",))
    found = margins(head, outputs, labels)
    right = float((found > 0).double().mean())
    if right < _WELL:
        note = (
            f"The network gets {right:.0%} of the training records right: check --activation, --mean and "
            "--std, the scale of the inputs and the order of the classes. Networks that do not fit their "
            "data leak less."
        )
        return Fit(count, found, right, notes=(note,))
    if count > _MANY:
        why = f"whether its weights are at the point the attack needs is checked up to {_MANY} records"
        return Fit(count, found, right, unfit=why)
    left = residual()
    unsure = () if left <= FAR else (_UNSURE,)
    return Fit(count, found, right, left, notes=unsure)
