"""What batch norm saw of a batch, and the colours that this fixes.

In train mode a batch norm takes mean and scale of every channel away, so that the gradient hardly tells how
bright and how strong the colours of a batch are. The running statistics that a client returns do:

    min_{a, b}  sum_l |m_l(a x + b) - mean_l|^2 / |mean_l|^2 + |v_l(a x + b) - var_l|^2 / |var_l|^2

a and b have one number for each colour; m_l and v_l are what layer l sees of the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exhume.core.contract import Gradient, Release
from exhume.models.probes import before

_STEPS = 40  # of L-BFGS
_COLOURS = 3  # dimensions of records that have them: (c, h, w)


def statistics_of(releases: Release, index: int, like: Tensor) -> dict[str, Tensor]:
    """`layer.mean` and `layer.var` to (c,) of one release; empty where none are sent."""
    sent = releases.statistics if isinstance(releases, Gradient) else {}
    return {name: known[index].to(like) for name, known in sent.items()}


def outputs_and_moments(
    module: nn.Module, named: Mapping[str, Tensor], records: Tensor, wanted: Collection[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The outputs, and mean and variance of every channel that enters the batch norms of these names."""
    seen: dict[str, Tensor] = {}

    def keep(layer: str, inputs: Tensor) -> None:
        channels = inputs.transpose(0, 1).flatten(1)
        seen[f"{layer}.mean"], seen[f"{layer}.var"] = channels.mean(1), channels.var(1)

    with before(module, sorted({name.rpartition(".")[0] for name in wanted}), keep):
        outputs = functional_call(module, dict(named), (records,))
    return outputs, seen


def gap(seen: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Tensor:
    """() mean squared deviation from the statistics that were sent, each relative to its size."""
    gaps = [
        (seen[name] - sent).square().sum() / sent.square().sum().clamp_min(1e-30)
        for name, sent in wanted.items()
    ]
    return torch.stack(gaps).mean()


def recoloured(
    module: nn.Module, named: Mapping[str, Tensor], records: Tensor, wanted: Mapping[str, Tensor]
) -> Tensor:
    """(n, c, h, w) images whose colours are scaled and shifted as the statistics say; others as they are."""
    if not wanted or records.ndim != 1 + _COLOURS:
        return records
    numbers = torch.tensor([1.0, 0.0]).to(records).repeat(records.shape[1], 1).requires_grad_(True)
    solver = torch.optim.LBFGS([numbers], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def made() -> Tensor:
        return records * numbers[:, :1, None] + numbers[:, 1:, None]

    def closure() -> float:
        value = gap(outputs_and_moments(module, named, made(), wanted)[1], wanted)
        numbers.grad = torch.autograd.grad(value, numbers)[0]
        return float(value.detach())

    solver.step(closure)  # type: ignore[no-untyped-call]
    ended = made().detach()
    return ended if bool(torch.isfinite(ended).all()) else records
