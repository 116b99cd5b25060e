"""Stacked shadow training against one model at a time with `torch.optim.SGD`, and against the machine.

Same maths, same threads, repeats interleaved, the best of each kept, so that a noisy neighbour costs
both alike. For layers of f_1, f_2, … operations a record forward (2·inputs·outputs, at every place a
convolution is applied to),

    peak_fraction = n·(2·f_1 + 3·f_2 + 3·f_3 + …)·steps·models / seconds / best GEMM rate

which for one hidden layer is (4·n·d·k + 6·n·k·c)·steps·models over seconds; the rate is the best of
the job's own large products. Clipping and noise count as no operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from exhume.bench.entries import each_case, entry, timed
from exhume.core.contract import Architecture, Key, Progress, Records
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.train.stacked import LARGEST_CHUNK


@dataclass(frozen=True)
class ShadowCase:
    architecture: MLP | CNN
    records: int
    steps: int
    models: int = LARGEST_CHUNK
    alone: int = 2  # models trained one at a time
    privacy: Privacy = NOT_PRIVATE

    def __str__(self) -> str:
        private = f", {self.privacy}" if self.privacy.clips else ""
        return f"{self.architecture}, |D-| = {self.records}, {self.steps} steps{private}"

    def layers(self) -> list[tuple[int, int, int]]:
        """(outputs, inputs, places) of each layer."""
        shapes = [shape for shape in self.architecture.layout.shapes if len(shape) > 1]
        places = [1] * len(shapes)
        if isinstance(self.architecture, CNN):
            convolutions = len(self.architecture.channels)
            places[:convolutions] = self.architecture.places
        return [
            (shape[0], math.prod(shape[1:]), count)
            for shape, count in zip(shapes, places, strict=True)
        ]

    def operations(self) -> int:
        """Operations of one model's training."""
        forward = [2 * outputs * inputs * places for outputs, inputs, places in self.layers()]
        return self.records * (3 * sum(forward) - forward[0]) * self.steps

    def products(self) -> list[tuple[int, int, int]]:
        """(rows, inner, columns) of the two products of the largest layer."""
        outputs, inputs, places = max(self.layers(), key=math.prod)
        stacked = self.models if isinstance(self.architecture, MLP) else 1
        rows, columns = stacked * outputs, self.records * places
        return [(rows, inputs, columns), (rows, columns, inputs)]


_MNIST = MLP((784,), (10,), 10)
CASES = (
    ShadowCase(_MNIST, 1000, steps=100),
    ShadowCase(_MNIST, 10_000, steps=20, alone=1),
    ShadowCase(CNN(), 100, steps=5, models=16, alone=2),
    ShadowCase(_MNIST, 1000, steps=20, alone=1, privacy=Privacy(clip=1.0, noise=1.0)),
)
_REPEATS = 5


def run(progress: Progress) -> list[dict[str, Any]]:
    return each_case("shadows", CASES, _measure, progress)


def _measure(case: ShadowCase) -> dict[str, Any]:
    key = Key.from_seed(0).fold("bench")
    architecture = case.architecture
    recipe = FullBatch(architecture, Descent(steps=case.steps, momentum=0.9), case.privacy)
    initial = architecture.initial(key)
    fixed = bench_records(case.records, architecture, key.fold("fixed"))
    extra = bench_records(case.models, architecture, key.fold("extra")).one_each()
    ours, alone, gemm = [], [], []
    for _ in range(_REPEATS):
        seconds, stacked = timed(lambda: recipe.fit(initial, fixed, extra, key))
        ours.append(seconds / case.models)
        seconds, single = timed(lambda: _alone(case, recipe, initial, fixed, extra, key))
        alone.append(seconds / case.alone)
        gemm.append(_gemm_rate(case))
    more = {
        "peak_fraction": case.operations() / min(ours) / max(gemm),
        "gemm_gflops": max(gemm) / 1e9,
        "largest_difference": float((stacked[: case.alone] - single).abs().max()),
        "models": case.models,
    }
    return entry("shadows", str(case), min(ours), min(alone), _REPEATS, more)


def _alone(  # noqa: PLR0917
    case: ShadowCase, recipe: FullBatch, initial: Tensor, fixed: Records, extra: Records, key: Key
) -> Tensor:
    assert isinstance(recipe.descent, Descent)
    trained = []
    for index in range(case.alone):
        noise = NoiseStream(key, index, 1, case.architecture.layout.size)
        trained.append(
            one_at_a_time(
                case.architecture,
                recipe.descent,
                initial,
                fixed,
                extra[index : index + 1],
                privacy=case.privacy,
                noise=noise,
            )
        )
    return torch.stack(trained)


def one_at_a_time(
    architecture: Architecture,
    descent: Descent,
    initial: Tensor,
    fixed: Records,
    extra: Records,
    *,
    privacy: Privacy = NOT_PRIVATE,
    noise: NoiseStream | None = None,
) -> Tensor:
    """The reference: one module, one optimiser, autograd, per-record gradients if private. (p,)."""
    model = architecture.build()
    torch.nn.utils.vector_to_parameters(initial.clone(), model.parameters())
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=descent.rate,
        momentum=descent.momentum,
        weight_decay=descent.weight_decay,
    )
    inputs = torch.cat([fixed.inputs, extra.inputs[0]])
    labels = torch.cat([fixed.labels, extra.labels[0]])
    for _ in range(descent.steps):
        optimiser.zero_grad()
        if privacy.clips:
            _private_gradient(model, inputs, labels, privacy, noise)
        else:
            torch.autograd.backward(F.cross_entropy(model(inputs), labels))
        optimiser.step()
    return torch.cat([part.detach().flatten() for part in model.parameters()])


def _private_gradient(
    model: torch.nn.Module,
    inputs: Tensor,
    labels: Tensor,
    privacy: Privacy,
    noise: NoiseStream | None,
) -> None:
    """Set the parameters' gradients to (sum of the clipped per-record gradients + noise) / N."""

    def loss(named: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, named, (record[None],)), label[None])

    named = {name: tensor.detach() for name, tensor in model.named_parameters()}
    each = vmap(grad(loss), in_dims=(None, 0, 0))(named, inputs, labels)
    flat = torch.cat([tensor.flatten(1) for tensor in each.values()], dim=1)  # (n, p)
    norms = flat.norm(dim=1, keepdim=True)
    total = (flat * (privacy.clip / norms).clamp(max=1)).sum(0)
    if noise is not None:
        total += privacy.deviation * noise.draw(flat)[0]
    total /= len(labels)
    parts = torch.split(total, [tensor.numel() for tensor in model.parameters()])
    for tensor, part in zip(model.parameters(), parts, strict=True):
        tensor.grad = part.view_as(tensor)


def bench_records(count: int, architecture: Architecture, key: Key) -> Records:
    """Images of about MNIST's density that differ by class: training is as stable as on real ones.

    No column is zero throughout, so nothing is skipped that a dense set would pay for.
    """
    generator, shape, classes = key.generator(), architecture.input_shape, 10
    labels = torch.randint(classes, (count,), generator=generator)
    strokes = torch.rand(classes, *shape, generator=torch.Generator().manual_seed(0)) < 0.2
    noise = torch.rand(count, *shape, generator=generator)
    inputs = torch.where(strokes[labels], 0.5 + noise / 2, (noise - 0.9).clamp_min(0))
    return Records(inputs, labels, tuple(str(i) for i in range(classes)))


def _gemm_rate(case: ShadowCase) -> float:
    """The better of the job's two large products, in operations a second."""
    rates = []
    for rows, inner, columns in case.products():
        left, right = torch.ones(rows, inner), torch.ones(inner, columns)
        out = torch.empty(rows, columns)
        seconds = min(timed(lambda: torch.mm(left, right, out=out))[0] for _ in range(5))  # noqa: B023
        rates.append(2 * rows * inner * columns / seconds)
    return max(rates)
