"""A split network at work: what the client sends, what the servers answer, what the client makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.split.channel import through
from exhume.models.split.cut import cut, device_of

_AT_ONCE = 500  # inputs of one forward pass


@dataclass(frozen=True, eq=False)
class SplitClient:
    """The only place where the selector exists."""

    head: nn.Module
    noise: Tensor  # (*feature) a fixed map, added to all that is sent; zeros: none
    selected: tuple[int, ...]  # which bodies' answers the tail reads, ascending
    tail: nn.Module
    sigma: float = 0.0  # of fresh Gaussian noise, drawn for every request; 0: none

    def send(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(n, *shape) to the features (n, *feature) that leave the client.

        generator: of fresh noise in an experiment that must be repeatable. A client in use gives none:
        its noise then comes from the system's randomness.
        """
        features: Tensor = self.head(inputs) + self.noise
        return through(features, self.sigma, generator) if self.sigma else features

    def finish(self, answers: Sequence[Tensor]) -> Tensor:
        """All bodies' answers, (n, f) each, to logits (n, c). S_i = 1/P for the selected (eq. 1)."""
        if not self.selected or self.selected[-1] >= len(answers):
            raise ExhumeError(
                f"selector: bodies {list(self.selected)} chosen, {len(answers)} answered"
            )
        read = torch.cat([answers[i] for i in self.selected], 1) * (1 / len(self.selected))
        logits: Tensor = self.tail(read)
        return logits


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Client and bodies together. All modules are in eval mode, without gradients."""

    client: SplitClient
    bodies: tuple[nn.Module, ...]
    cut: str  # name of the head's last layer

    def __call__(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        features = self.client.send(inputs, generator)
        return self.client.finish([body(features) for body in self.bodies])

    def to(self, device: torch.device) -> Pipeline:
        """Both sides there; modules are moved, not copied."""
        own = self.client
        head, tail = own.head.to(device), own.tail.to(device)
        client = replace(own, head=head, tail=tail, noise=own.noise.to(device))
        return replace(self, client=client, bodies=tuple(b.to(device) for b in self.bodies))

    @torch.no_grad()
    def released(self, inputs: Tensor, key: Key | None = None) -> Tensor:
        """What leaves the client for these inputs, some at a time. key: of fresh noise, to be repeatable."""
        generator = None if key is None else key.generator()
        parts = torch.split(inputs, _AT_ONCE)
        return torch.cat([self.client.send(part, generator) for part in parts])

    @torch.no_grad()
    def accuracy(self, inputs: Tensor, labels: Tensor, key: Key | None = None) -> float:
        """Share of inputs whose label the pipeline names. key: as above."""
        generator = None if key is None else key.generator()
        right = [
            (self(x, generator).argmax(1) == y).double()
            for x, y in zip(
                torch.split(inputs, _AT_ONCE), torch.split(labels, _AT_ONCE), strict=True
            )
        ]
        return float(torch.cat(right).mean())


def undefended(
    module: nn.Module, first: str, second: str, input_shape: tuple[int, ...]
) -> Pipeline:
    """A finished network as it is, cut at two points: one body, no noise, nothing secret but the head."""
    parts = cut(module, first, second)
    parts.whole.requires_grad_(False).eval()
    noise = torch.zeros(parts.feature_shape(input_shape), device=device_of(module))
    return Pipeline(SplitClient(parts.head, noise, (0,), parts.tail), (parts.body,), first)
