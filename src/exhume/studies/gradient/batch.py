"""How large a batch a gradient gives away: dL/da, dL/da + dL/dW and matching, on MNIST and CIFAR-10.

One-to-one matching by signed cosine; the batch size is not given to the tensor attacks (matching needs it).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume import data
from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.span.attack import SpanAttack
from exhume.attacks.gradient.tensor.attack import TensorAttack
from exhume.contract import Key, Knowledge, Progress, Records
from exhume.models.two_layer import TwoLayer
from exhume.report.folder import RunFolder
from exhume.score.batches import score_batches
from exhume.store import NullStore
from exhume.studies.study import Claim, Outcome, Scale, Study
from exhume.victims.gradient import cut_batches, release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "dL/dW is used beside dL/da; the paper's method uses dL/da alone, which is reported as such.",
    "Two classes, odd and even digits (CIFAR-10: odd and even class numbers), and one output.",
    "The sign that an odd activation leaves open is fixed by the prior that images are not negative.",
)
Attacks = SpanAttack | TensorAttack | GradientMatching


@dataclass(frozen=True)
class _Case:
    name: str  # of its metrics
    source: str
    activation: str
    batch: int
    width: int
    attack: Attacks = SpanAttack()
    unit: bool = True  # records of unit norm; False: raw values in [0, 1]
    batches: int = 10
    bar: float | None = None  # smallest cosine that the claim asks for
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
_SCALES: dict[Scale, tuple[_Case, ...]] = {
    "smoke": _SMALL,
    "cpu": _CPU,
    "paper": (*_PAPER, _Case("tanh.b64", "mnist", "tanh", 64, 80_000)),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    metrics: dict[str, float] = {}
    cases, key = _SCALES[scale], Key.from_seed(seed)
    loaded = {source: data.load(source) for source in {case.source for case in cases}}
    pictures: dict[str, Tensor] = {}
    for case in cases:
        records = _chosen(case, loaded[case.source], key)
        store, rows = folder.store(), []
        for i in range(case.batches):
            progress(case.name, i, case.batches)
            address = key.fold("gradient-batch 2", repr(case), i).digest
            kept = store.load(address)
            if kept is None:
                kept = _one(case, records[i : i + 1], key.fold(case.name, i))
                store.save(address, kept)
            rows.append(kept)
        progress(case.name, case.batches, case.batches)
        metrics |= _summary(case, rows)
        pictures |= {f"{case.name}.{side}": rows[0][side] for side in ("truth", "found")}
    folder.write_tensors("batches.safetensors", pictures)
    return Outcome(_claims(cases, metrics), metrics, deviations=list(DEVIATIONS))


def _chosen(case: _Case, records: Records, key: Key) -> Records:
    """(batches, b, *shape), the same records for every attack on one source."""
    generator = key.fold("records", case.source).generator()
    picked = torch.randperm(len(records), generator=generator)[: case.batches * case.batch]
    inputs = records.inputs[picked].float()
    if case.unit:
        norms = inputs.flatten(1).norm(dim=1)
        inputs = inputs / norms.reshape(-1, *([1] * (inputs.ndim - 1)))
    chosen = Records(inputs, records.labels[picked] % 2, ("even", "odd"))
    return cut_batches(chosen, case.batch)


def _one(case: _Case, batch: Records, key: Key) -> dict[str, Tensor]:
    network = TwoLayer(batch.shape, case.width, 1, case.activation)
    asker = SpanAttack() if isinstance(case.attack, GradientMatching) else case.attack
    release, secret = release_batches(network, asker.query(network, key), batch)
    size = case.batch if isinstance(case.attack, GradientMatching) else None
    knowledge = Knowledge(architecture=network, batch_size=size)
    started = time.perf_counter()
    found = case.attack.prepare(knowledge, key=key, store=NullStore()).run(release)
    seconds = time.perf_counter() - started
    scores = score_batches(secret, found)
    return {
        "cosines": scores.cosines[0],
        "psnr": scores.psnr[0],
        "size": scores.sizes.double(),
        "seconds": torch.tensor([seconds]),
        "truth": batch.inputs[0],
        "found": scores.matched[0],
    }


def _summary(case: _Case, rows: list[dict[str, Tensor]]) -> dict[str, float]:
    cosines = torch.stack([row["cosines"] for row in rows])
    sizes = torch.cat([row["size"] for row in rows])
    return {
        f"{case.name}.min_cosine": float(cosines.min()),
        f"{case.name}.mean_cosine": float(cosines.mean()),
        f"{case.name}.recovered": float((cosines >= 0.99).double().mean()),
        f"{case.name}.psnr": float(torch.stack([row["psnr"] for row in rows]).mean()),
        f"{case.name}.batch_size_right": float((sizes == case.batch).double().mean()),
        f"{case.name}.seconds": max(float(row["seconds"]) for row in rows),
    }


def _claims(cases: tuple[_Case, ...], metrics: dict[str, float]) -> list[Claim]:
    found = []
    for case in cases:
        if case.bar is None:
            continue
        least, slowest = metrics[f"{case.name}.min_cosine"], metrics[f"{case.name}.seconds"]
        limit = "" if case.seconds is None else f", in {case.seconds:g} s a batch at most"
        found.append(
            Claim(
                case.name,
                f"{case.source}, {case.activation}, {case.batch} records, {case.width} neurons: every "
                f"record with a cosine of {case.bar:g} or more{limit}",
                "records are identified",
                f"smallest cosine {least:.6f}, slowest batch {slowest:.1f} s",
                least >= case.bar and (case.seconds is None or slowest <= case.seconds),
            )
        )
    return found


STUDY = Study(
    name="gradient-batch",
    title="Batches read out of one gradient: how large, and from which layers",
    paper="Wang23",
    run=_run,
)
