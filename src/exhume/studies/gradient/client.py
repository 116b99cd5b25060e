"""An ordinary client of federated learning: what its update gives away, and what stops it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from exhume import data
from exhume.attacks.gradient.analytic import BiasRatio
from exhume.contract import Gradient, Key, Knowledge, Progress, Records, TrainingDefence
from exhume.defences.dp import DPTraining
from exhume.defences.local import LargerBatch, LocalSteps
from exhume.models.mlp import MLP
from exhume.report.folder import RunFolder
from exhume.score.batches import score_batches
from exhume.store import NullStore
from exhume.studies.study import Claim, Outcome, Scale, Study, remembered
from exhume.train.local import LocalTraining
from exhume.victims.gradient import cut_batches, keep_batches, release_updates

__all__ = ["STUDY"]

DEVIATIONS = (
    "Not in Wang23: a server that sends ordinary weights, and a client with one hidden ReLU layer.",
    "Only the ratio of the first layer's gradients is tried, as it is and with a tolerance of 30% for noise; "
    "a stronger attack may get past what stops it.",
    "Epsilon is that of one update, delta 1e-5. Utility is the cosine with the plain update.",
)
_TOLERANT = BiasRatio(tolerance=0.3)  # of an adversary who expects noise
_MAKING: dict[str, TrainingDefence] = {
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
    larger: tuple[int, ...]


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting("digits", 128, 3, 4, (2,)),
    "cpu": _Setting("mnist", 256, 4, 16, (2, 4, 8)),
    "paper": _Setting("mnist", 1000, 8, 128, (2, 4, 8)),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed)
    records = data.load(setting.source)
    network = MLP(records.shape, (setting.width,), len(records.classes), "relu", "torch")
    at = network.initial(key)
    order = torch.randperm(len(records), generator=key.fold("records").generator())
    batches = cut_batches(records[order[: setting.batch * setting.batches]], setting.batch)
    client = LocalTraining(network)
    plain, _ = release_updates(client, at, batches)
    metrics: dict[str, float] = {}

    def measure(name: str, seen: Gradient, private: Records, utility: float) -> None:
        own = key.fold("gradient-client 2", repr(setting), name)
        numbers = remembered(folder, own, lambda: _scored(network, seen, private, own))
        metrics.update({f"{name}.{number}": value for number, value in numbers.items()})
        metrics[f"{name}.utility"] = utility

    total = len(_MAKING) + len(setting.larger)
    for place, (name, defence) in enumerate(_MAKING.items()):
        progress("attacking clients", place, total)
        hardened = defence.harden(client)
        assert isinstance(hardened, LocalTraining)  # hardening keeps the kind of recipe
        seen, _ = release_updates(hardened, at, batches, key.fold(name))
        measure(name, seen, batches, _utility(seen, plain))
        if isinstance(defence, DPTraining) and defence.noise_multiplier:
            metrics[f"{name}.epsilon"] = defence.epsilon(1)
    for place, times in enumerate(setting.larger, start=len(_MAKING)):
        progress("attacking clients", place, total)
        joined = LargerBatch(times).protect(plain, key)
        few = Gradient(joined.values[::times], joined.layout, joined.at)
        measure(f"larger_batch.{times}", few, _joined(batches, times), _utility(joined, plain))
    progress("attacking clients", total, total)
    return Outcome(_claims(metrics), metrics, deviations=list(DEVIATIONS))


def _scored(network: MLP, seen: Gradient, private: Records, key: Key) -> dict[str, float]:
    numbers = {}
    for prefix, attack in (("", BiasRatio()), ("tolerant.", _TOLERANT)):
        prepared = attack.prepare(Knowledge(architecture=network), key=key, store=NullStore())
        scores = score_batches(keep_batches(private), prepared.run(seen)).metrics()
        for name in ("recovered", "mean_cosine"):
            numbers[prefix + name] = scores[name]
    return numbers


def _joined(batches: Records, times: int) -> Records:
    """(r, b, *shape) to (r / times, times · b, *shape)."""
    count = len(batches) // times
    return Records(
        batches.inputs.reshape(count, -1, *batches.shape),
        batches.labels.reshape(count, -1),
        batches.classes,
    )


def _utility(seen: Gradient, plain: Gradient) -> float:
    return float(torch.cosine_similarity(seen.values, plain.values, dim=1).mean())


def _claims(metrics: dict[str, float]) -> list[Claim]:
    def told(*names: str) -> str:
        return ", ".join(f"{name} {metrics[f'{name}.recovered']:.0%}" for name in names)

    return [
        Claim(
            "leak",
            "An ordinary update of a small batch gives most of its records away",
            "",
            told("none"),
            metrics["none.recovered"] > 0.5,
        ),
        Claim(
            "steps",
            "Clipping and local steps do not stop that",
            "",
            told("dp.clip", "local_steps.5", "local_steps.20"),
            min(metrics[f"{n}.recovered"] for n in ("dp.clip", "local_steps.20")) > 0.5,
        ),
        Claim(
            "noise",
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
    ]


STUDY = Study(
    name="gradient-client",
    title="What an ordinary client's update gives away, and what stops it",
    paper="Wang23",
    run=_run,
)
