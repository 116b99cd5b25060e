"""One evaluation of the stationarity residual with its gradient: ours against a `create_graph` backward.

The baseline is what the authors' code does: sum(lambda_i·margin_i) differentiated by all parameters with
`create_graph`, the squared distance to the parameters, and a backward to candidates and multipliers in
pixel space. Ours is the same function of the same candidates inside the span of the first layer's
rows. Same dtype and threads, repeats interleaved, the best of each kept. Loss and gradient must agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from exhume.attacks.margin.descent import Residual, span_of
from exhume.bench.entries import each_case, entry, timed
from exhume.core.contract import Key, Progress
from exhume.models.homogeneous import HomogeneousMLP
from exhume.train.margin import Others

__all__ = ["CASES", "Case", "by_autograd", "run"]


@dataclass(frozen=True)
class Case:
    name: str
    records: int = 100  # n, the rank of the first layer
    candidates: int = 200  # m
    width: int = 1000
    weights: tuple[float, ...] = (1.0, 1.0, 1.0)
    others: Others = "max"
    inputs: tuple[int, ...] = (3, 32, 32)
    classes: int = 10


CASES = (Case("eq. (6), all layers"), Case("first layer only", weights=(1.0,)))
_REPEATS, _ALPHA = 5, 40.0


def run(progress: Progress) -> list[dict[str, Any]]:
    return each_case("margin", CASES, _measure, progress)


def _measure(case: Case) -> dict[str, Any]:
    mlp, parameters, labels = _problem(case)
    span = span_of(mlp.matrices(parameters), case.records)
    problem = Residual(span, labels, others=case.others, alpha=_ALPHA, weights=case.weights)
    generator = Key.from_seed(0).fold("bench candidates").generator()
    coordinates = torch.randn(case.candidates, case.records, generator=generator)
    multipliers = torch.rand(case.candidates, generator=generator) * 1e-3
    pixels = span.inputs(coordinates)
    ours, alone = [], []
    for _ in range(_REPEATS):
        seconds, found = timed(lambda: problem.at(coordinates, multipliers))
        ours.append(seconds)
        seconds, reference = timed(
            lambda: by_autograd(mlp, parameters, pixels, multipliers, labels, case)
        )
        alone.append(seconds)
    loss, by_x, by_lambda = reference
    name = f"{case.name}, {mlp}, m = {case.candidates}, span {case.records}, fp32"
    more = {
        "loss_difference": abs(found.loss - loss) / loss,
        "gradient_difference": _apart(found.coordinates, by_x @ span.basis.T),
        "multiplier_difference": _apart(found.multipliers, by_lambda),
    }
    return entry("margin", name, min(ours), min(alone), _REPEATS, more)


def _problem(case: Case) -> tuple[HomogeneousMLP, Tensor, Tensor]:
    """A network whose first layer spans `records` random directions, as a trained one does."""
    mlp = HomogeneousMLP(case.inputs, (case.width, case.width), case.classes)
    key = Key.from_seed(0).fold("bench margin")
    parameters = mlp.initial(key)
    network = mlp.matrices(parameters)
    generator = key.fold("span").generator()
    inputs = torch.randn(case.records, network.first.shape[1], generator=generator)
    network.first.copy_(0.01 * torch.randn(case.width, case.records, generator=generator) @ inputs)
    return mlp, parameters, torch.arange(case.candidates) % case.classes


class _SmoothedReLU(torch.autograd.Function):
    """ReLU whose derivative is sigmoid(alpha z), as in the authors' code."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return gradient * torch.sigmoid(_ALPHA * z)


def by_autograd(  # noqa: PLR0917
    mlp: HomogeneousMLP,
    parameters: Tensor,
    pixels: Tensor,
    multipliers: Tensor,
    labels: Tensor,
    case: Case,
) -> tuple[float, Tensor, Tensor]:
    """The relative loss, its gradient by the pixels (m, d) and by the multipliers (m,); others = "max"."""
    named = [part.clone().requires_grad_() for part in mlp.layout.split(parameters).values()]
    x, lam = pixels.clone().requires_grad_(), multipliers.clone().requires_grad_()
    first, bias, *later = named
    hidden = _relu(x @ first.T + bias)
    for matrix in later[:-1]:
        hidden = _relu(hidden @ matrix.T)
    outputs = hidden @ later[-1].T
    right = outputs.gather(1, labels[:, None])[:, 0]
    margins = right - outputs.scatter(1, labels[:, None], -torch.inf).max(1).values
    wide = (case.weights[0], *case.weights, *(0.0,) * (len(named) - 1 - len(case.weights)))
    kept = [(part, w) for part, w in zip(named, wide, strict=True) if w]
    gradients = torch.autograd.grad(
        (lam * margins).sum(), [part for part, _ in kept], create_graph=True
    )
    distances = [
        w * (part.detach() - g).square().sum() for (part, w), g in zip(kept, gradients, strict=True)
    ]
    norm = sum(w * float(part.detach().square().sum()) for part, w in kept)
    loss = torch.stack(distances).sum() / norm
    by_x, by_lambda = torch.autograd.grad(loss, (x, lam))
    return float(loss.detach()), by_x, by_lambda


def _relu(z: Tensor) -> Tensor:
    active: Tensor = _SmoothedReLU.apply(z)  # type: ignore[no-untyped-call]
    return active


def _apart(one: Tensor, two: Tensor) -> float:
    """Largest difference over the largest value."""
    return float((one - two).abs().max() / two.abs().max())
