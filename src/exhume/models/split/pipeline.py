"""A split network at work: what the client sends, what the servers answer, what the client makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from exhume.contract import ExhumeError
from exhume.models.split.cut import cut

__all__ = ["Client", "Pipeline", "undefended"]

_AT_ONCE = 500  # inputs of one forward pass


@dataclass(frozen=True, eq=False)
class Client:
    """The only place where the selector exists."""

    head: nn.Module
    noise: Tensor  # (*feature) a fixed map, added to all that is sent; zeros: none
    selected: tuple[int, ...]  # which bodies' answers the tail reads, ascending
    tail: nn.Module

    def send(self, inputs: Tensor) -> Tensor:
        """(n, *shape) to the features (n, *feature) that leave the client."""
        features: Tensor = self.head(inputs) + self.noise
        return features

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

    client: Client
    bodies: tuple[nn.Module, ...]
    cut: str  # name of the head's last layer

    def __call__(self, inputs: Tensor) -> Tensor:
        features = self.client.send(inputs)
        return self.client.finish([body(features) for body in self.bodies])

    @torch.no_grad()
    def released(self, inputs: Tensor) -> Tensor:
        """What leaves the client for these inputs, some at a time."""
        return torch.cat([self.client.send(part) for part in torch.split(inputs, _AT_ONCE)])

    @torch.no_grad()
    def accuracy(self, inputs: Tensor, labels: Tensor) -> float:
        """Share of inputs whose label the pipeline names."""
        right = [
            (self(x).argmax(1) == y).double()
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
    noise = torch.zeros(parts.feature_shape(input_shape))
    return Pipeline(Client(parts.head, noise, (0,), parts.tail), (parts.body,), first)
