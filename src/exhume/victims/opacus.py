"""A user's own network, trained privately by Opacus, as a victim.

What a data owner who uses Opacus releases: the noise, the clipping and the Poisson sampling are the
library's own, not ours. The adversary knows the network and all records but one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from exhume.core.contract import (
    ExhumeError,
    Key,
    Layout,
    Progress,
    Records,
    Secret,
    Weights,
    silent,
)

__all__ = ["OpacusTraining", "release_by_opacus"]


@dataclass(frozen=True)
class OpacusTraining:
    """DP-SGD's settings; the batch is what Poisson sampling draws on average."""

    epochs: int = 10
    batch: int = 64
    rate: float = 0.1
    momentum: float = 0.0
    clip: float = 1.0
    noise_multiplier: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch) < 1:
            raise ExhumeError(f"epochs {self.epochs} and batch {self.batch} must be at least 1")


def release_by_opacus(
    module: nn.Module,
    training: OpacusTraining,
    fixed: Records,
    targets: Records,
    *,
    key: Key,
    progress: Progress = silent,
) -> tuple[Weights, Secret, float]:
    """One released model per target, each trained from the module's own weights; and their epsilon.

    The module itself is left as it is.
    """
    make_engine = _engine()
    released, spent = [], 0.0
    stage = "training the released models"
    progress(stage, 0, len(targets))
    for index in range(len(targets)):
        one = targets[index : index + 1]
        inputs = torch.cat([fixed.inputs, one.inputs])
        labels = torch.cat([fixed.labels, one.labels])
        trained, spent = _train(
            copy.deepcopy(module),
            training,
            inputs,
            labels,
            key=key.fold("victim", index),
            make_engine=make_engine,
        )
        released.append(trained)
        progress(stage, index + 1, len(targets))
    return Weights(torch.stack(released), Layout.of(module)), Secret(targets), spent


def _train(
    module: nn.Module,
    training: OpacusTraining,
    inputs: Tensor,
    labels: Tensor,
    *,
    key: Key,
    make_engine: Callable[[], Any],
) -> tuple[Tensor, float]:
    generator = key.fold("noise").generator()
    loader = DataLoader(
        TensorDataset(inputs, labels),
        batch_size=training.batch,
        shuffle=True,
        generator=key.fold("order").generator(),
    )
    optimiser = torch.optim.SGD(module.parameters(), lr=training.rate, momentum=training.momentum)
    engine = make_engine()
    wrapped, private, batches = engine.make_private(
        module=module.train(),
        optimizer=optimiser,
        data_loader=loader,
        noise_multiplier=training.noise_multiplier,
        max_grad_norm=training.clip,
        noise_generator=generator,
    )
    for _ in range(training.epochs):
        for batch, wanted in batches:
            private.zero_grad()
            # Poisson sampling may draw nobody: then the step is noise alone, and is accounted for
            torch.autograd.backward(F.cross_entropy(wrapped(batch), wanted))
            private.step()
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    spent = engine.get_epsilon(training.delta) if training.noise_multiplier else float("inf")
    return flat, float(spent)


def _engine() -> Callable[[], Any]:
    try:
        from opacus import PrivacyEngine
    except ImportError as error:
        raise ExhumeError("Opacus victims need Opacus: pip install 'exhume[opacus]'") from error
    return lambda: PrivacyEngine(accountant="rdp")
