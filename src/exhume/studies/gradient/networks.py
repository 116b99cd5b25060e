"""Whole batches from the updates of ordinary networks: honest weights, nothing chosen by the server.

A record is *recovered* if its own candidate is at most 1% away, *identified* if it is more like what came
back than 99 strangers of its class. Candidates are matched one to one; the batch size is not given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.attacks.gradient.gated.attack import GateAttack
from exhume.attacks.gradient.gated.decoding import FeatureDecoding
from exhume.attacks.gradient.matching import GradientMatching
from exhume.contract import Attack, Key, Reconstruction, Records
from exhume.models.own.module import ModuleArchitecture
from exhume.naming import seeded_globals
from exhume.results import Chart, Point
from exhume.score.lineup import Lineup, likeness
from exhume.studies.framework import Claims, Outcome, Run, Scale, Study
from exhume.studies.gradient.batches import attacked
from exhume.studies.gradient.networks_language import (
    LANGUAGE,
    LanguageSetting,
    language_claims,
    language_metrics,
)
from exhume.victims.gradient import cut_batches, release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "Gradients of one step at the network's own weights; no augmentation, no noise.",
    "Gradient matching is given the batch size; its steps take about as long as ours; see the seconds.",
)
_RECOVERED = 0.01  # relative error
_POOL = 4000  # records that strangers come from
_TRAINING = 60  # steps of Adam on other records, for the trained network


def _mlp(*widths: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return build


def _convnet(inputs: int, side: int, first: int = 32, second: int = 64) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(inputs, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(second * (side // 4) ** 2, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def _lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84)),
        *(nn.ReLU(), nn.Linear(84, 10)),
    )


@dataclass(frozen=True)
class _Network:
    build: Callable[[], nn.Module]
    source: str
    attack: Attack
    trained: bool = False


_NETWORKS = {
    "mlp": _Network(_mlp(784, 256, 10), "mnist", GateAttack()),
    "mlp_wide": _Network(_mlp(784, 2048, 10), "mnist", GateAttack()),
    "mlp_deep": _Network(_mlp(784, 256, 256, 10), "mnist", GateAttack()),
    "mlp_trained": _Network(_mlp(784, 256, 10), "mnist", GateAttack(), trained=True),
    "convnet": _Network(lambda: _convnet(3, 32), "cifar10", FeatureDecoding()),
    "convnet.matching": _Network(
        lambda: _convnet(3, 32),
        "cifar10",
        GradientMatching(steps=200, restarts=1, variation=1e-3),
    ),
    "lenet": _Network(_lenet, "cifar10", FeatureDecoding()),
    "small": _Network(_mlp(64, 96, 10), "digits", GateAttack()),
    "small_conv": _Network(lambda: _convnet(1, 8, 16, 32), "digits", FeatureDecoding(steps=300)),
}


@dataclass(frozen=True)
class _Setting:
    batches: int
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of batches, for each network
    language: LanguageSetting = LanguageSetting()


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(2, {"small": (4, 8), "small_conv": (1, 3)}, LANGUAGE["smoke"]),
    "cpu": _Setting(
        8,
        {
            "mlp": (8, 16, 24, 32, 48, 64),
            "mlp_wide": (32,),
            "mlp_deep": (16,),
            "mlp_trained": (8, 16),
            "convnet": (1, 8),
            "convnet.matching": (1, 8),
            "lenet": (1, 4),
        },
        LANGUAGE["cpu"],
    ),
    "paper": _Setting(
        32,
        {
            "mlp": (8, 16, 24, 32, 48, 64, 80),
            "mlp_wide": (32, 64, 128),
            "mlp_deep": (16, 32),
            "mlp_trained": (8, 16, 32),
            "convnet": (1, 4, 8, 16, 32),
            "convnet.matching": (1, 4, 8),
            "lenet": (1, 4, 8),
        },
        LANGUAGE["paper"],
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    jobs = {
        f"{name}.b{size} {index}": (name, size, index)
        for name, sizes in run.setting.sizes.items()
        for size in sizes
        for index in range(run.setting.batches)
    }
    found = run.tensors("attacking updates", _one, jobs)
    rows: dict[str, list[dict[str, Tensor]]] = {}
    for job, kept in found.items():
        rows.setdefault(job.split(" ")[0], []).append(kept)
    metrics = {
        f"{row}.{number}": float(torch.cat([one[number] for one in kept]).mean())
        for row, kept in rows.items()
        for number in ("recovered", "identified", "psnr", "seconds", "counted")
    }
    chart = _chart(metrics)
    metrics |= language_metrics(run, run.setting.language)
    claims = {**_claims(metrics), **language_claims(metrics)}
    return Outcome(claims, metrics, charts=[chart], deviations=list(DEVIATIONS))


def _one(run: Run[_Setting], job: tuple[str, int, int]) -> Mapping[str, Tensor]:
    """One client's batch: its own records, its own weights."""
    name, size, index = job
    network, key = _NETWORKS[name], run.key.fold("networks", name.split(".")[0], size, index)
    records = run.records(network.source)
    order = torch.randperm(len(records), generator=key.fold("records").generator())
    private, others = records[order[:size]], records[order[size : size + _POOL]]
    with seeded_globals(key.fold("weights")):
        module = network.build()
    if network.trained:
        _train(module, others)
    architecture = ModuleArchitecture.of(module, records.shape)
    at, batch = architecture.initial(key), cut_batches(private, size)
    release, _ = release_batches(architecture, at, batch)
    known = size if isinstance(network.attack, GradientMatching) else None
    began = time.perf_counter()
    found, scores = attacked(network.attack, architecture, release, batch, key, size=known)
    seconds = time.perf_counter() - began
    truth, got = private.inputs.flatten(1).double(), scores.matched[0].flatten(1).double()
    error = (got - truth).norm(dim=1) / truth.norm(dim=1)
    return {
        "recovered": (error <= _RECOVERED).double(),
        "identified": _identified(found, private, others, key),
        "psnr": scores.psnr[0].double().clamp_max(100),
        "seconds": torch.tensor([seconds], dtype=torch.float64),
        "counted": (scores.sizes == size).double(),
    }


def _train(module: nn.Module, records: Records) -> None:
    adam = torch.optim.Adam(module.parameters(), 1e-3)
    for _ in range(_TRAINING):
        adam.zero_grad()
        F.cross_entropy(module(records.inputs.float()), records.labels).backward()  # type: ignore[no-untyped-call]
        adam.step()


def _identified(found: Reconstruction, private: Records, others: Records, key: Key) -> Tensor:
    """(b,) 1 for records that lead the line-up of what came back."""
    pool = torch.cat([private.inputs, others.inputs])
    labels = torch.cat([private.labels, others.labels])
    release = torch.full((len(pool),), -1)
    release[: len(private)] = 0
    lineup = Lineup(likeness([found.found()], pool), release, labels)
    return lineup.score(key.fold("lineup"), draws=1).identified.double()


def _claims(m: dict[str, float]) -> Claims:
    """Of the rows that were run."""
    wanted = {
        "batch": ("mlp.b16", "recovered", 0.95, "honest weights, batches of 16 at width 256"),
        "beyond": ("mlp.b32", "recovered", 0.5, "the same for batches of 32"),
        "wide": ("mlp_wide.b32", "recovered", 0.5, "batches of 32 at width 2,048"),
        "images": ("convnet.b8", "identified", 0.95, "images of a CNN's batch of 8"),
    }
    return {
        claim: (
            f"Nearly all come back: {words}",
            "SPEAR: batches of about 20",
            f"{m[f'{row}.{number}']:.0%} {number}",
            m[f"{row}.{number}"] >= bar,
        )
        for claim, (row, number, bar, words) in wanted.items()
        if f"{row}.{number}" in m
    }


def _chart(metrics: dict[str, float]) -> Chart:
    series = {
        number: [
            Point(key.removesuffix(f".{number}"), value)
            for key, value in metrics.items()
            if key.endswith(f".{number}")
        ]
        for number in ("recovered", "identified")
    }
    return Chart("What came back", "network and batch size", "share of the records", series)


_TITLE = "Whole batches from the updates of ordinary networks"
STUDY = Study("update-networks", _TITLE, "ours", _SCALES, _run, spreads=True)
