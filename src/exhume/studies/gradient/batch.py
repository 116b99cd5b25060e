"""How large a batch a gradient gives away: dL/da, dL/da + dL/dW and matching, on MNIST and CIFAR-10.

One-to-one matching by signed cosine; the batch size is not given to the tensor attacks (matching needs it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.span import SpanAttack
from exhume.attacks.gradient.tensor import TensorAttack
from exhume.models.two_layer import TwoLayer
from exhume.score.batches import RECOVERED
from exhume.studies.claims import flattened
from exhume.studies.framework import Outcome, Run, Scale, Stated, Study
from exhume.studies.gradient.batches import attacked, even_odd_batches
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "dL/dW is used beside dL/da; the paper's method uses dL/da alone, which is reported as such.",
    "Two classes, odd and even digits (CIFAR-10: odd and even class numbers), and one output.",
    "The sign that an odd activation leaves open is fixed by the prior that images are not negative.",
)


@dataclass(frozen=True)
class _Case:
    name: str  # of its metrics
    source: str
    activation: str
    batch: int
    width: int
    attack: SpanAttack | TensorAttack | GradientMatching = SpanAttack()
    unit: bool = True  # records of unit norm; False: raw values in [0, 1]
    batches: int = 10
    bar: float = 0.0  # smallest cosine that the claim asks for; 0: no claim
    seconds: float | None = None  # a batch


def _tensor(batch: int) -> TensorAttack:
    return TensorAttack(largest=2 * batch)


_SMALL = (
    _Case("tanh.b4", "digits", "tanh", 4, 1000, batches=2, bar=0.9999),
    _Case("relu.b4", "digits", "relu", 4, 1000, batches=2, bar=0.99),
    _Case("tanh.b4.raw", "digits", "tanh", 4, 1500, SpanAttack(0.3), False, 1),
    _Case("tanh.b4.nabla_a", "digits", "tanh", 4, 1500, _tensor(4), batches=1),
    _Case("tanh.b4.matching", "digits", "tanh", 4, 300, GradientMatching(steps=5), batches=1),
)
_MATCHING = GradientMatching(steps=100, restarts=1)
_CPU = (
    _Case("tanh.b8", "mnist", "tanh", 8, 5000, bar=0.9999, seconds=20),
    _Case("relu.b8", "mnist", "relu", 8, 5000, bar=0.99),
    _Case("cifar10.tanh.b16", "cifar10", "tanh", 16, 5000, bar=0.99),
    _Case("cifar10.relu.b16", "cifar10", "relu", 16, 5000, bar=0.99),
    _Case("tanh.b8.raw", "mnist", "tanh", 8, 5000, SpanAttack(0.1), False),
    _Case("relu.b8.raw", "mnist", "relu", 8, 5000, SpanAttack(0.1), False),
    _Case("cifar10.tanh.b16.raw", "cifar10", "tanh", 16, 5000, SpanAttack(0.035), False, 4),
    _Case("cifar10.relu.b16.raw", "cifar10", "relu", 16, 5000, SpanAttack(0.035), False, 4),
    _Case("tanh.b8.nabla_a", "mnist", "tanh", 8, 5000, _tensor(8), batches=4),
    _Case("relu.b8.nabla_a", "mnist", "relu", 8, 5000, _tensor(8), batches=4),
    _Case("relu.b2.nabla_a.wide", "mnist", "relu", 2, 40_000, _tensor(2), batches=2),
    _Case("tanh.b8.matching", "mnist", "tanh", 8, 5000, _MATCHING, batches=1),
    _Case("faces.tanh.b8", "faces", "tanh", 8, 5000, batches=1),
    _Case("faces.relu.b8", "faces", "relu", 8, 5000, batches=1),
    _Case("tanh.b16", "mnist", "tanh", 16, 5000, batches=4),
    _Case("relu.b16", "mnist", "relu", 16, 5000, batches=4),
    _Case("relu.b32", "mnist", "relu", 32, 20_000, batches=4, bar=0.99),
    _Case("relu.b64", "mnist", "relu", 64, 5000, batches=2),
    _Case("tanh.b32", "mnist", "tanh", 32, 20_000, batches=1, bar=0.99),
)
_PAPER = tuple(replace(case, batches=max(case.batches, 10)) for case in _CPU)


@dataclass(frozen=True)
class _Setting:
    cases: tuple[_Case, ...]


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(_SMALL),
    "cpu": _Setting(_CPU),
    "paper": _Setting((*_PAPER, _Case("tanh.b64", "mnist", "tanh", 64, 80_000))),
}


def _run(run: Run[_Setting]) -> Outcome:
    summaries: dict[str, dict[str, float]] = {}
    pictures: dict[str, Tensor] = {}
    for case in run.setting.cases:
        jobs = {f"{case.name}, batch {i}": (case, i) for i in range(case.batches)}
        rows = list(run.tensors(case.name, _one, jobs).values())
        summaries[case.name] = _summary(case, rows)
        pictures |= {f"{case.name}.{side}": rows[0][side] for side in ("truth", "found")}
    run.folder.write_tensors("batches.safetensors", pictures)
    claimed = [case for case in run.setting.cases if case.bar]
    claims = {case.name: _claim(case, summaries[case.name]) for case in claimed}
    return Outcome(claims, flattened(summaries), deviations=list(DEVIATIONS))


def _one(run: Run[_Setting], job: tuple[_Case, int]) -> dict[str, Tensor]:
    case, i = job
    records, own = run.records(case.source), run.key.fold("records", case.source)
    private = even_odd_batches(records, case.batches, case.batch, own, unit=case.unit)[i : i + 1]
    key, network = (
        run.key.fold(case.name, i),
        TwoLayer(private.shape, case.width, 1, case.activation),
    )
    asker, size = case.attack, None
    if isinstance(asker, GradientMatching):  # asks for nothing itself, and needs the batch size
        asker, size = SpanAttack(), case.batch
    seen, _ = release_batches(network, asker.query(network, key), private)
    found, scores = attacked(case.attack, network, seen, private, key, size=size)
    return {
        "cosines": scores.cosines[0],
        "psnr": scores.psnr[0],
        "size": scores.sizes.double(),
        "seconds": torch.tensor([found.cost.seconds]),
        "truth": private.inputs[0],
        "found": scores.matched[0],
    }


def _summary(case: _Case, rows: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    cosines, psnr = (torch.stack([row[name] for row in rows]) for name in ("cosines", "psnr"))
    sizes = torch.cat([row["size"] for row in rows])
    return {
        "min_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
        "recovered": float((cosines >= RECOVERED).double().mean()),
        "psnr": float(psnr.mean()),
        "batch_size_right": float((sizes == case.batch).double().mean()),
        "seconds": max(float(row["seconds"]) for row in rows),
    }


def _claim(case: _Case, metrics: Mapping[str, float]) -> Stated:
    least, slowest = metrics["min_cosine"], metrics["seconds"]
    limit = "" if case.seconds is None else f", in {case.seconds:g} s a batch at most"
    return (
        f"{case.source}, {case.activation}, {case.batch} records, {case.width} neurons: every "
        f"record with a cosine of {case.bar:g} or more{limit}",
        "records are identified",
        f"smallest cosine {least:.6f}, slowest batch {slowest:.1f} s",
        least >= case.bar and (case.seconds is None or slowest <= case.seconds),
    )


_TITLE = "Batches read out of one gradient: how large, and from which layers"
STUDY = Study("gradient-batch", _TITLE, "Wang23", _SCALES, _run)
