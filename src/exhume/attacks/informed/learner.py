"""One step of training a reconstructor, with or without a perceptual term and a discriminator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Progress
from exhume.models.lpips import perceptual
from exhume.models.patchgan import patchgan
from exhume.train.rmsprop import FusedRMSProp
from exhume.train.single import optimiser_state, restore_optimiser

__all__ = ["Learner", "Training", "pixel_loss"]


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


def pixel_loss(found: Tensor, truth: Tensor) -> Tensor:
    """MAE + MSE, over all values."""
    difference = found - truth
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
        found = self.network(features)
        loss = pixel_loss(found, records)
        if self.distance is not None:
            loss = loss + self.training.perceptual * self.distance(found, records).mean()
        if self.critic is not None:
            # Non-saturating: make the discriminator call every patch real.
            loss = loss + self.training.adversarial * F.softplus(-self.critic(found)).mean()
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        _advance(self.optimiser)
        if self.critic is not None and self.critic_optimiser is not None:
            real, fake = self.critic(torch.cat([records, found.detach()])).chunk(2)
            verdict = F.softplus(-real).mean() + F.softplus(fake).mean()
            self.critic_optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(verdict)
            _advance(self.critic_optimiser)

    def state(self) -> dict[str, Tensor]:
        kept = {f"network.{n}": t for n, t in self.network.state_dict().items()}
        kept |= optimiser_state("optimiser", self.optimiser)
        if self.critic is not None and self.critic_optimiser is not None:
            kept |= {f"critic.{n}": t for n, t in self.critic.state_dict().items()}
            kept |= optimiser_state("critic_optimiser", self.critic_optimiser)
        return kept

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(_under("network", kept))
        restore_optimiser("optimiser", self.optimiser, kept)
        if self.critic is not None and self.critic_optimiser is not None:
            self.critic.load_state_dict(_under("critic", kept))
            restore_optimiser("critic_optimiser", self.critic_optimiser, kept)


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


def _under(prefix: str, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in kept.items() if n.startswith(start)}
