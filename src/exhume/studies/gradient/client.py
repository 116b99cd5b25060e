"""An ordinary client of federated learning: what its update gives away, and what stops it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from exhume.attacks.gradient.analytic import BiasRatio
from exhume.contract import TrainingDefence
from exhume.defences.dp import DPTraining
from exhume.defences.local import LargerBatch, LocalSteps
from exhume.models.mlp import MLP
from exhume.studies.claims import flattened
from exhume.studies.framework import Claims, Outcome, Run, Scale, Study
from exhume.studies.gradient.batches import attacked, utility
from exhume.train.local import LocalTraining
from exhume.victims.gradient import cut_batches, release_updates

__all__ = ["STUDY"]

DEVIATIONS = (
    "Not in Wang23: a server that sends ordinary weights, and a client with one hidden ReLU layer.",
    "Only the ratio of the first layer's gradients is tried, as it is and with a tolerance of 30% for noise; "
    "a stronger attack may get past what stops it.",
    "Epsilon is that of one update, delta 1e-5. Utility is the cosine with the plain update.",
)
_ATTACKS = {"": BiasRatio(), "tolerant.": BiasRatio(tolerance=0.3)}  # of one who expects noise
_DEFENCES: dict[str, TrainingDefence] = {
    "none": DPTraining(),
    "dp.clip": DPTraining(clip=1.0),
    "dp.noise1e-4": DPTraining(1.0, 1e-4),
    "dp.noise1e-3": DPTraining(1.0, 1e-3),
    "dp.noise1e-2": DPTraining(1.0, 1e-2),
    "dp.noise1": DPTraining(1.0, 1.0),
    "local_steps.5": LocalSteps(5),
    "local_steps.20": LocalSteps(20),
}


@dataclass(frozen=True)
class _Setting:
    source: str
    width: int
    batch: int
    batches: int
    larger: tuple[int, ...]  # batches that are joined to one


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting("digits", 128, 3, 4, (2,)),
    "cpu": _Setting("mnist", 256, 4, 16, (2, 4, 8)),
    "paper": _Setting("mnist", 1000, 8, 128, (2, 4, 8)),
}


def _run(run: Run[_Setting]) -> Outcome:
    jobs: dict[str, tuple[str, TrainingDefence | LargerBatch]]
    jobs = {name: (name, defence) for name, defence in _DEFENCES.items()}
    for times in run.setting.larger:
        jobs[f"larger_batch.{times}"] = ("", LargerBatch(times))
    metrics = flattened(run.arms("attacking clients", _one, jobs))
    return Outcome(_claims(metrics), metrics, deviations=list(DEVIATIONS))


def _one(run: Run[_Setting], job: tuple[str, TrainingDefence | LargerBatch]) -> dict[str, float]:
    """What each attack finds in the updates of clients with one defence, and what these are worth."""
    (name, defence), setting = job, run.setting
    records = run.records(setting.source)
    order = torch.randperm(len(records), generator=run.key.fold("records").generator())
    private = records[order[: setting.batch * setting.batches]]
    batches = cut_batches(private, setting.batch)
    network = MLP(records.shape, (setting.width,), len(records.classes), "relu", "torch")
    client, at = LocalTraining(network), network.initial(run.key)
    plain, _ = release_updates(client, at, batches)
    numbers: dict[str, float] = {}
    if isinstance(defence, LargerBatch):
        joined = defence.protect(plain, run.key)
        seen = replace(joined, values=joined.values[:: defence.times])
        batches = cut_batches(private, setting.batch * defence.times)
        numbers["utility"] = utility(joined, plain)
    else:
        hardened = defence.harden(client)
        assert isinstance(hardened, LocalTraining)  # hardening keeps the kind of recipe
        seen, _ = release_updates(hardened, at, batches, run.key.fold(name))
        numbers["utility"] = utility(seen, plain)
    if isinstance(defence, DPTraining) and defence.noise_multiplier:
        numbers["epsilon"] = defence.epsilon(1)
    for prefix, attack in _ATTACKS.items():
        scores = attacked(attack, network, seen, batches, run.key)[1].metrics()
        numbers |= {prefix + number: scores[number] for number in ("recovered", "mean_cosine")}
    return numbers


def _claims(metrics: dict[str, float]) -> Claims:
    def recovered(*names: str) -> str:
        return ", ".join(f"{name} {metrics[f'{name}.recovered']:.0%}" for name in names)

    return {
        "leak": (
            "An ordinary update of a small batch gives most of its records away",
            "",
            recovered("none"),
            metrics["none.recovered"] > 0.5,
        ),
        "steps": (
            "Clipping and local steps do not stop that",
            "",
            recovered("dp.clip", "local_steps.5", "local_steps.20"),
            min(metrics[f"{n}.recovered"] for n in ("dp.clip", "local_steps.20")) > 0.5,
        ),
        "noise": (
            "A noise multiplier of 0.01, far from differential privacy, stops the ratio; 0.001 does not hide "
            "the pictures from one who expects noise",
            "adding noise does not help",
            ", ".join(
                f"{n}: mean cosine {metrics[f'dp.noise{n}.tolerant.mean_cosine']:.2f} at epsilon "
                f"{metrics[f'dp.noise{n}.epsilon']:,.0f}"
                for n in ("1e-4", "1e-3", "1e-2")
            ),
            metrics["dp.noise1e-2.tolerant.mean_cosine"] < 0.3
            and metrics["dp.noise1e-3.tolerant.mean_cosine"] > 0.7,
        ),
    }


_TITLE = "What an ordinary client's update gives away, and what stops it"
STUDY = Study("gradient-client", _TITLE, "Wang23", _SCALES, _run)
