"""Differentiating through training, whatever the recipe: which records come back exactly, at which price.

An arm is a way of training; of each target the released model is trained, and the adversary, who knows
all but that record, inverts its training. Nothing is chosen with the truth in sight: labels, starts and
step lengths follow the residual, which the adversary sees. Where many questions are affordable the
adjoint of training is computed once for all targets (`ThroughTraining`); the other arms go matrix-free
(`ThroughAnyTraining`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from exhume import readers
from exhume.attacks.informed.through_training import ThroughAnyTraining, ThroughTraining
from exhume.choices import moved
from exhume.core.contract import Attack, Key, Knowledge, Records
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.readers import Sizes
from exhume.score.batches import score_batches
from exhume.studies.claims import prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.train.optimisers import Adam, Descent, Optimiser
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.stacked import Order
from exhume.victims.informed import release_together


@dataclass(frozen=True)
class _Arm:
    """One way of training, and how many targets of it are attacked."""

    fixed: int
    targets: int
    source: str = "mnist"
    network: str = "mlp"  # or "cnn": Balle22's Table V
    activation: str = "elu"
    optimiser: str = "sgd"  # or "adam"
    rate: float = 0.1
    steps: int = 100
    batch: int = 0  # records of a step, in a known order; 0: all
    base: int = 0  # other records on which the start was trained before; 0: a fresh start
    unknown: int = 1
    adjoint: float = 0.0  # questions for each input, asked once for all targets; 0: matrix-free
    products: int = 30  # of a Gauss-Newton step, matrix-free
    trainings: int = 2000  # that a release may cost, matrix-free
    exact: float = 1e-6  # mean squared error up to which a record counts as exact


@dataclass(frozen=True)
class _Setting:
    arms: Mapping[str, _Arm] = field(default_factory=dict)


def _cnn(fixed: int, targets: int, trainings: int = 2000) -> _Arm:
    usual = _Arm(fixed, targets, "cifar10", "cnn", rate=0.01, products=10, exact=1e-3)
    return replace(usual, trainings=trainings)


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        {
            "mlp.minibatch": _Arm(60, 2, "digits", batch=20, steps=15),
            "finetune": _Arm(60, 2, "digits", base=60, steps=15, adjoint=1.5),
            "two_records": _Arm(60, 1, "digits", steps=15, unknown=2),
        }
    ),
    "cpu": _Setting(
        {
            "mlp.minibatch": _Arm(1000, 8, batch=100),
            "finetune": _Arm(1000, 8, base=1000, adjoint=3.0),
            "cnn": _cnn(25, 4),
            "paper_setting": _Arm(10_000, 2, rate=0.2, adjoint=2.0),
            "two_records": _Arm(1000, 2, unknown=2),
            "adam": _Arm(1000, 1, optimiser="adam", rate=0.01, trainings=1000),
            "cnn.100": _cnn(100, 1, trainings=200),
            "mlp.relu": _Arm(1000, 8, activation="relu", adjoint=3.0),
        }
    ),
    "paper": _Setting(
        {
            "mlp.minibatch": _Arm(10_000, 100, batch=100, steps=1000),
            "finetune": _Arm(10_000, 100, base=10_000, adjoint=3.0),
            "cnn": _cnn(500, 100),
            "paper_setting": _Arm(10_000, 1000, rate=0.2, adjoint=3.0),
            "mlp.relu": _Arm(10_000, 100, activation="relu", rate=0.2, trainings=4000),
            "two_records": _Arm(10_000, 100, unknown=2, rate=0.2),
            "adam": _Arm(10_000, 100, optimiser="adam", rate=0.01),
        }
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    arms = run.setting.arms
    jobs = {f"{name}/{part}": (name, part) for name, arm in arms.items() for part in _parts(arm)}
    found = run.tensors("through training", _part, jobs, lambda job: arms[job[0]])
    metrics: dict[str, float] = {}
    for name, arm in arms.items():
        rows = [kept for job, kept in found.items() if job.rpartition("/")[0] == name]
        joined = {key: torch.cat([row[key] for row in rows]) for key in rows[0]}
        metrics |= prefixed(name, _metrics(joined, arm))
    bars = {f"{name}.bar": arm.exact for name, arm in arms.items()}
    return Outcome(metrics, said=bars | {f"{name}.fixed": a.fixed for name, a in arms.items()})


def _parts(arm: _Arm) -> list[str]:
    """A job for each target; one for all where they share an adjoint."""
    return ["all"] if arm.adjoint else [str(target) for target in range(arm.targets)]


def _part(run: Run[_Setting], job: tuple[str, str]) -> dict[str, Tensor]:
    """Errors, residuals, labels and cost of some targets, (t, e) or (t,)."""
    name, part = job
    arm, key = run.setting.arms[name], run.key.fold("through training", name)
    started = time.process_time()
    count = arm.targets * arm.unknown
    dealt = readers.split(run.records(arm.source), Sizes(arm.fixed, count, arm.base), key)
    records = moved(dealt, run.device)
    recipe = _recipe(arm, records.fixed, key)
    initial = recipe.architecture.initial(key).to(run.device)
    if arm.base:
        initial = recipe.fit(initial, records.shadow, records.shadow.none_for(1), key)[0]
    rows = slice(None) if part == "all" else slice(int(part), int(part) + 1)
    grouped = _grouped(records.target, arm.unknown)[rows]
    release, secret = release_together(recipe, initial, records.fixed, grouped, key=key)
    knowledge = Knowledge(recipe=recipe, initial=initial, fixed=records.fixed)
    prepared = _attack(arm).prepare(knowledge, **run.working(key.fold("attack")))
    found = prepared.run(release)
    scores = score_batches(secret, found)
    each = torch.ones(len(grouped), dtype=torch.float64)
    return {
        "mse": 10 ** (-scores.psnr.double() / 10).cpu(),
        "residual": -found.confidence[:, 0].double().cpu(),
        "labels": scores.labels_right.double().cpu(),
        "trainings": each * found.cost.models / len(grouped),
        "seconds": each * (time.process_time() - started) / len(grouped),
    }


def _recipe(arm: _Arm, fixed: Records, key: Key) -> FullBatch | MiniBatch:
    classes = len(fixed.classes)
    network = (
        CNN(fixed.shape, outputs=classes, activation=arm.activation)
        if arm.network == "cnn"
        else MLP(fixed.shape, (10,), classes, arm.activation)
    )
    descent: Optimiser = Descent(arm.steps, arm.rate, 0.9)
    if arm.optimiser == "adam":
        descent = Adam(arm.steps, arm.rate)
    if arm.batch:
        return MiniBatch(network, descent, Order(arm.batch, key.fold("order")))
    return FullBatch(network, descent)


def _grouped(targets: Records, unknown: int) -> Records:
    """(t·e, *shape) to (t, e, *shape)."""
    shape = (-1, unknown)
    return Records(
        targets.inputs.reshape(*shape, *targets.shape),
        targets.labels.reshape(shape),
        targets.classes,
    )


def _attack(arm: _Arm) -> Attack:
    if arm.adjoint:
        return ThroughTraining(questions=arm.adjoint)
    return ThroughAnyTraining(unknown=arm.unknown, products=arm.products, trainings=arm.trainings)


def _metrics(rows: Mapping[str, Tensor], arm: _Arm) -> dict[str, float]:
    return {
        "exact": float((rows["mse"] <= arm.exact).double().mean()),
        "mse": float(rows["mse"].max()),
        "median_mse": float(rows["mse"].median()),
        "residual": float(rows["residual"].max()),
        "label_accuracy": float(rows["labels"].mean()),
        "targets": float(len(rows["mse"])),
        "trainings": float(rows["trainings"].mean()),
        "seconds": float(rows["seconds"].mean()),
    }


STUDY = Study(
    "through-training", _SCALES, _run, spreads=True, on_device=True, threads={"smoke": 1, "cpu": 1}
)
