"""A client of federated learning: the gradient of one private batch, at parameters the server sent.

With several local steps the client releases its average step instead, (start - end) / (steps · rate): what
a server computes from the weights it gets back (FedAvg).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from exhume.core.contract import Architecture, ExhumeError, Gradient, Key, Records, Secret
from exhume.train.local import LocalTraining


def cut_batches(records: Records, size: int) -> Records:
    """(n, *shape) to (n // size, size, *shape), in order."""
    if not 1 <= size <= len(records):
        raise ExhumeError(f"size: batches of {size} from {len(records)} records")
    count = len(records) // size
    kept = count * size
    return Records(
        records.inputs[:kept].reshape(count, size, *records.shape),
        records.labels[:kept].reshape(count, size),
        records.classes,
    )


def release_batches(
    architecture: Architecture,
    parameters: Tensor,
    batches: Records,
    *,
    reduction: str = "mean",
    steps: int = 1,
    rate: float = 0.1,
) -> tuple[Gradient, Secret]:
    """r batches (r, b, *shape), each a release of its own at the same parameters (p,).

    Computed in the dtype of the parameters. Labels of a one-output network must be 0 or 1.
    """
    local = LocalTraining(architecture, steps, rate, reduction)
    return release_updates(local, parameters, batches)


def release_updates(
    local: LocalTraining,
    parameters: Tensor,
    batches: Records,
    key: Key | None = None,
    order: Sequence[Tensor] | None = None,
) -> tuple[Gradient, Secret]:
    """Updates made in any way, private ones included; noise and the order of records derive from the key.

    order: the rows that each step sees, where it is given.
    """
    layout = local.architecture.layout
    if layout.shapes[-1][0] == 1 and not local.squared and int(batches.labels.max()) > 1:
        raise ExhumeError("labels: a network with one output takes labels 0 and 1")
    if local.privacy.noise and key is None:
        raise ExhumeError("key: private training draws noise, so it needs a key")
    values = local.updates(parameters, batches, key or Key.from_seed(0), order=order)
    return Gradient(values, layout, parameters), Secret(batches)
