"""Training a reconstructor on pairs of features and records, resumably, its epoch chosen on held-out shadows.

    loss = MAE + MSE + perceptual * LPIPS + adversarial * (-log D(reconstruction))     Balle22 §V

Every few epochs networks, optimisers and the best epoch so far go into the store at one address; a
killed job that is started again continues there and ends with the same bits, because epoch e draws
its order from `key.fold("epoch", e)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Progress, Store, silent
from exhume.models.lpips import perceptual
from exhume.models.reconstructors import patchgan
from exhume.store.shards import address, digest
from exhume.train.optimisers import FusedRMSProp
from exhume.train.single import optimiser_state, restore_optimiser

_AT_ONCE = 1024  # rows of one evaluation


@dataclass(frozen=True)
class Training:
    """How a reconstructor is trained. Defaults: the paper's MNIST reconstructor (Balle22 Table IV)."""

    optimiser: str = "rmsprop"  # or "adam", the paper's for CIFAR-10
    rate: float = 1e-3  # the authors' notebook: 3e-4
    decay: float = 0.9  # of RMSProp's mean square
    weight_decay: float = 0.0  # with "adam" only; the paper's 1e-4 for CIFAR-10
    batch: int = 128
    epochs: int = 100  # the notebook: 200; CIFAR-10: 1000
    patience: int = 0  # epochs without improvement after which to stop; 0: never, as published
    perceptual: float = 0.0  # weight of LPIPS; 1 for CIFAR-10
    perceptual_net: str = "alexnet"  # or "vgg16"
    adversarial: float = 0.0  # weight of the discriminator's verdict; 1 for CIFAR-10
    checkpoint: int = 10  # epochs between two; decides nothing about the result

    def __post_init__(self) -> None:
        if self.optimiser not in ("rmsprop", "adam"):
            raise ExhumeError(f"optimiser: {self.optimiser!r} is not one of rmsprop, adam")
        if self.optimiser == "rmsprop" and self.weight_decay:
            raise ExhumeError(f"weight_decay: {self.weight_decay} is for adam only")
        for name in ("batch", "checkpoint"):
            if getattr(self, name) < 1:
                raise ExhumeError(f"{name}: {getattr(self, name)} given, at least 1 needed")
        for name in ("epochs", "patience", "perceptual", "adversarial", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ExhumeError(f"{name}: {getattr(self, name)} given, at least 0 needed")
        if not self.rate > 0:
            raise ExhumeError(f"rate: {self.rate} given, it must be positive")
        if not 0 <= self.decay < 1:
            raise ExhumeError(f"decay: {self.decay} given, legal is 0 <= decay < 1")


def pixel_loss(drawn: Tensor, truth: Tensor) -> Tensor:
    """MAE + MSE, over all values."""
    difference = drawn - truth
    return difference.abs().mean() + difference.square().mean()


class Learner:
    """The networks and optimisers of one training run; all of its state can be put down and taken up."""

    def __init__(
        self,
        network: nn.Module,
        training: Training,
        shape: tuple[int, ...],
        key: Key,
        progress: Progress,
    ) -> None:
        self.network = network.requires_grad_(True).train()
        self.training = training
        self.optimiser = _optimiser(training, network)
        self.distance = (
            perceptual(training.perceptual_net, progress=progress) if training.perceptual else None
        )
        self.critic: nn.Module | None = None
        self.critic_optimiser: torch.optim.Optimizer | None = None
        device = next(network.parameters()).device
        if training.adversarial:
            self.critic = patchgan(shape, key).to(device)
            self.critic_optimiser = _optimiser(training, self.critic)
        if self.distance is not None:
            self.distance = self.distance.to(device)

    def step(self, features: Tensor, records: Tensor) -> None:
        """One update on a batch: the reconstructor first, then the discriminator."""
        drawn = self.network(features)
        loss = pixel_loss(drawn, records)
        if self.distance is not None:
            loss = loss + self.training.perceptual * self.distance(drawn, records).mean()
        if self.critic is not None:
            # Non-saturating: make the discriminator call every patch real.
            loss = loss + self.training.adversarial * F.softplus(-self.critic(drawn)).mean()
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        _advance(self.optimiser)
        if self.critic is not None and self.critic_optimiser is not None:
            real, fake = self.critic(torch.cat([records, drawn.detach()])).chunk(2)
            verdict = F.softplus(-real).mean() + F.softplus(fake).mean()
            self.critic_optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(verdict)
            _advance(self.critic_optimiser)

    def state(self) -> dict[str, Tensor]:
        state = {f"network.{n}": t for n, t in self.network.state_dict().items()}
        state |= optimiser_state("optimiser", self.optimiser)
        if self.critic is not None and self.critic_optimiser is not None:
            state |= {f"critic.{n}": t for n, t in self.critic.state_dict().items()}
            state |= optimiser_state("critic_optimiser", self.critic_optimiser)
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(_under("network", state))
        restore_optimiser("optimiser", self.optimiser, state)
        if self.critic is not None and self.critic_optimiser is not None:
            self.critic.load_state_dict(_under("critic", state))
            restore_optimiser("critic_optimiser", self.critic_optimiser, state)


def _optimiser(training: Training, network: nn.Module) -> torch.optim.Optimizer:
    if training.optimiser == "rmsprop":
        return FusedRMSProp(network.parameters(), training.rate, training.decay)
    return torch.optim.Adam(
        network.parameters(), training.rate, weight_decay=training.weight_decay, fused=True
    )


def _advance(optimiser: torch.optim.Optimizer) -> None:
    if isinstance(optimiser, FusedRMSProp):
        optimiser.advance()
    else:
        optimiser.step()


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in state.items() if n.startswith(start)}


@dataclass(frozen=True, eq=False)
class Pairs:
    features: Tensor  # (n, f)
    records: Tensor  # (n, *shape)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Tensor) -> Pairs:
        return Pairs(self.features[rows], self.records[rows])


@dataclass(frozen=True, eq=False)
class ReconstructorFit:
    network: nn.Module  # as after the chosen epoch
    epoch: int  # 0: the start was best
    errors: Tensor  # (epochs run + 1,) MAE + MSE on the choosing shadows; NaN-free


def fit(
    network: nn.Module,
    training: Training,
    train: Pairs,
    choose: Pairs,
    *,
    key: Key,
    store: Store,
    progress: Progress = silent,
    stage: str = "training the reconstructor",
) -> ReconstructorFit:
    """Train in place; the network returned is that of the epoch with the least error on `choose`."""
    learner = Learner(network, training, train.records.shape[1:], key, progress)
    given = (train.features, train.records, choose.features, choose.records)
    inputs = (*map(digest, [*network.state_dict().values(), *given]), str(network))
    # how often a checkpoint is made decides nothing, so it is no part of the address
    name = address("fit_reconstructor", replace(training, checkpoint=1), inputs, key, 0)
    saved = store.load(name)
    if saved is None:
        errors = [error_on(network, choose)]
        best = _copy(network)
    else:
        errors = saved["errors"].tolist()
        best = {n: saved[f"best.{n}"].to(t.device) for n, t in network.state_dict().items()}
        if any(name.startswith("network.") for name in saved):
            learner.restore(saved)
    epoch, total = len(errors) - 1, training.epochs
    progress(stage, epoch, total)
    while epoch < total and not _patience_over(errors, training.patience):
        order = torch.randperm(len(train), generator=key.fold("epoch", epoch).generator())
        for rows in torch.split(order.to(train.features.device), training.batch):
            learner.step(train.features[rows], train.records[rows])
        epoch += 1
        error = error_on(network, choose)
        if not torch.isfinite(torch.tensor(error)):
            raise ExhumeError(
                f"training the reconstructor diverged in epoch {epoch} (rate {training.rate}): "
                "its error is not finite; lower the rate"
            )
        if error < min(errors):
            best = _copy(network)
        errors.append(error)
        ended = epoch == total or _patience_over(errors, training.patience)
        if ended or epoch % training.checkpoint == 0:
            running = {} if ended else learner.state()  # once finished, only what it ends with
            listed = torch.tensor(errors, dtype=torch.float64)
            chosen = {f"best.{name}": tensor for name, tensor in best.items()}
            store.save(name, {**running, **chosen, "errors": listed})
        progress(stage, total if ended else epoch, total)
    network.load_state_dict(best)
    network.requires_grad_(False).eval()
    listed = torch.tensor(errors, dtype=torch.float64)
    return ReconstructorFit(network, int(listed.argmin()), listed)


@torch.no_grad()
def error_on(network: nn.Module, pairs: Pairs) -> float:
    """Mean MAE + MSE of the network's reconstructions."""
    total = 0.0
    for rows in torch.split(torch.arange(len(pairs), device=pairs.features.device), _AT_ONCE):
        part = pairs[rows]
        total += float(pixel_loss(network(part.features), part.records)) * len(part)
    return total / len(pairs)


def _patience_over(errors: list[float], patience: int) -> bool:
    """Has the least error not improved for so many epochs? A patience of 0 never ends."""
    return patience > 0 and len(errors) - 1 - errors.index(min(errors)) >= patience


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}
