"""Whole batches from the updates of ordinary networks: honest weights, nothing chosen by the server.

A record is *recovered* if its own candidate is at most 1% away, *identified* if it is more like what came
back than 99 strangers of its class. Candidates are matched one to one; the batch size is not given, but to
gradient matching.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.attacks.gradient.features import FeatureDecoding
from exhume.attacks.gradient.gates import GateAttack
from exhume.attacks.gradient.local_steps import LocalStepsAttack
from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.patches import PatchAttack
from exhume.core.contract import Attack, Gradient, Key, Knowledge, Records
from exhume.core.own_code import seeded_globals
from exhume.core.results import Chart, Findings, Point
from exhume.models.ordinary import (
    ResNet,
    VisionTransformer,
    convnet,
    fully_connected,
    lenet,
)
from exhume.models.own import ModuleArchitecture
from exhume.readers.payload import batch_statistics
from exhume.score.batches import score_batches
from exhume.score.features import InputScores
from exhume.studies.arms import mounted, pictured
from exhume.studies.claims import by_row, row_means
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.gradient.batches import attacked, came_back
from exhume.studies.gradient.texts import (
    LANGUAGE,
    LanguageSetting,
    language_metrics,
)
from exhume.train.local import LocalTraining, Routine
from exhume.victims.gradient import cut_batches, release_batches, release_updates

_POOL = 4000  # records that strangers come from
_TRAINING = 60  # steps of Adam on other records, for the trained network
_NUMBERS = ("recovered", "identified", "psnr", "seconds", "counted")


@dataclass(frozen=True)
class _Network:
    build: Callable[[], nn.Module]
    source: str
    attack: Attack
    alone: Attack | None = None  # on a batch of one; None: the same
    trained: bool = False
    batch_norm: str = "eval"

    def attack_on(self, size: int) -> Attack:
        return self.alone if self.alone is not None and size == 1 else self.attack


def _matching(steps: int) -> GradientMatching:
    """As `audit-update` runs it."""
    return GradientMatching(steps=steps, restarts=1, signed=True, variation=0.03, falls=1e-3)


def _plainly(steps: int) -> GradientMatching:
    return GradientMatching(steps=steps, restarts=1, variation=1e-3)


_TINY = partial(VisionTransformer, width=32, blocks=1, heads=2, patch=2, side=8, inputs=1)
_NETWORKS = {
    "mlp": _Network(partial(fully_connected, 784, 256, 10), "mnist", GateAttack()),
    "mlp_wide": _Network(partial(fully_connected, 784, 2048, 10), "mnist", GateAttack()),
    "mlp_deep": _Network(partial(fully_connected, 784, 256, 256, 10), "mnist", GateAttack()),
    "mlp_trained": _Network(
        partial(fully_connected, 784, 256, 10), "mnist", GateAttack(), trained=True
    ),
    "convnet": _Network(partial(convnet, 3, 32), "cifar10", FeatureDecoding()),
    "convnet.matching": _Network(partial(convnet, 3, 32), "cifar10", _matching(200)),
    "convnet.old": _Network(partial(convnet, 3, 32), "cifar10", _plainly(200)),
    "lenet": _Network(lenet, "cifar10", FeatureDecoding()),
    "resnet": _Network(ResNet, "cifar10", _matching(120)),
    "resnet.old": _Network(ResNet, "cifar10", _plainly(120)),
    "resnet_train": _Network(ResNet, "cifar10", _matching(120), batch_norm="train"),
    "vit": _Network(VisionTransformer, "cifar10", _matching(120), alone=PatchAttack()),
    "vit.old": _Network(VisionTransformer, "cifar10", _plainly(120)),
    "small": _Network(partial(fully_connected, 64, 96, 10), "digits", GateAttack()),
    "small_conv": _Network(partial(convnet, 1, 8, 16, 32), "digits", FeatureDecoding(steps=300)),
    "small_vit": _Network(_TINY, "digits", _matching(20), alone=PatchAttack()),
    "small_resnet": _Network(partial(ResNet, 4, 1), "digits", _matching(10), batch_norm="train"),
}


@dataclass(frozen=True)
class _Setting:
    batches: int
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of batches, for each network
    fewer: dict[str, int] = field(default_factory=dict)  # batches of slow rows
    clients: tuple[str, ...] = ("mlp.rate0.01", "mlp.rate0.1", "convnet.rate0.01")
    language: LanguageSetting = LanguageSetting()

    def jobs(self) -> dict[str, tuple[str, int, int]]:
        return {
            f"{name}.b{size} {index}": (name, size, index)
            for name, sizes in self.sizes.items()
            for size in sizes
            for index in range(self.fewer.get(f"{name}.b{size}", self.batches))
        }


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        2,
        {"small": (4, 8), "small_conv": (1, 3), "small_vit": (1, 2), "small_resnet": (2,)},
        {"small_vit.b2": 1, "small_resnet.b2": 1},
        ("small.rate0.01",),
        LANGUAGE["smoke"],
    ),
    "cpu": _Setting(
        8,
        {
            "mlp": (8, 16, 24, 32, 48, 64),
            "mlp_wide": (32,),
            "mlp_deep": (16,),
            "mlp_trained": (8, 16),
            "convnet": (1, 8),
            "convnet.matching": (1, 8),
            "convnet.old": (1, 8),
            "lenet": (1, 4),
            "resnet": (1, 4),
            "resnet.old": (1, 4),
            "resnet_train": (1, 4),
            "vit": (1, 4),
            "vit.old": (1, 4),
        },
        {
            **{"resnet.b4": 2, "resnet.old.b1": 4, "resnet.old.b4": 2},
            **{"resnet_train.b1": 4, "resnet_train.b4": 2},
            **{"vit.b4": 2, "vit.old.b1": 4, "vit.old.b4": 2},
        },
        language=LANGUAGE["cpu"],
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
            "convnet.old": (1, 4, 8),
            "lenet": (1, 4, 8),
            "resnet": (1, 4, 8),
            "resnet.old": (1, 4, 8),
            "resnet_train": (1, 4, 8),
            "vit": (1, 4, 8),
            "vit.old": (1, 4, 8),
        },
        language=LANGUAGE["paper"],
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    rows = by_row(run.tensors("attacking updates", _one, run.setting.jobs()))
    clients = {
        f"fedavg.{name} {index}": (name, index)
        for name in run.setting.clients
        for index in range(run.setting.batches)
    }
    trained = by_row(run.tensors("attacking clients of FedAvg", _one_client, clients))
    metrics = row_means(rows, _NUMBERS) | row_means(trained, _NUMBERS)
    chart = _chart(metrics)
    metrics |= language_metrics(run, run.setting.language)
    shown, names = _pictured(rows)
    return Outcome(metrics, attacks=shown, classes=names, charts=[chart])


def _one(run: Run[_Setting], job: tuple[str, int, int]) -> Mapping[str, Tensor]:
    """One client's batch: its own records, its own weights."""
    name, size, index = job
    network, key = _NETWORKS[name], run.key.fold("networks", name.split(".")[0], size, index)
    attack, records = network.attack_on(size), run.records(network.source)
    private, others = _split_decoys(records, size, key)
    with seeded_globals(key.fold("weights")):
        module = network.build()
    if network.trained:
        _train(module, others)
    architecture = ModuleArchitecture.of(module, records.shape, network.batch_norm)
    at, batch = architecture.initial(key), cut_batches(private, size)
    release, _ = release_batches(architecture, at, batch)
    if network.batch_norm == "train":
        release = _with_statistics(release, module, batch.inputs[0])
    known = size if isinstance(attack, GradientMatching) else None
    began = time.perf_counter()
    found, scores = attacked(attack, architecture, release, batch, key, size=known)
    seconds = time.perf_counter() - began
    return {
        **came_back(found, scores, private, others, key),
        "seconds": torch.tensor([seconds], dtype=torch.float64),
        **({"private": private.inputs, "back": scores.matched[0]} if index == 0 else {}),
    }


def _split_decoys(records: Records, size: int, key: Key) -> tuple[Records, Records]:
    """A client's own records, and those that strangers come from."""
    order = torch.randperm(len(records), generator=key.fold("records").generator())
    return records[order[:size]], records[order[size : size + _POOL]]


def _train(module: nn.Module, records: Records) -> None:
    adam = torch.optim.Adam(module.parameters(), 1e-3)
    for _ in range(_TRAINING):
        adam.zero_grad()
        F.cross_entropy(module(records.inputs.float()), records.labels).backward()  # type: ignore[no-untyped-call]
        adam.step()


def _with_statistics(release: Gradient, module: nn.Module, inputs: Tensor) -> Gradient:
    """What a client sends besides: the running statistics of batch norm, after its step."""
    before = {name: values.clone() for name, values in module.state_dict().items()}
    with torch.no_grad():
        module.train()(inputs.float())
    seen = batch_statistics(before, module.state_dict(), module)
    statistics = {name: values[None] for name, values in seen.items()}
    return Gradient(release.values, release.layout, release.at, statistics)


def _pictured(rows: Mapping[str, list[dict[str, Tensor]]]) -> tuple[list[Findings], list[str]]:
    """One section for each data set, a card a row."""
    sections: dict[str, dict[str, InputScores]] = {}
    for source in dict.fromkeys(network.source for network in _NETWORKS.values()):
        for row, (first, *_) in rows.items():
            if _source(row) == source:
                apart = (first["back"] - first["private"]).square().double().flatten(1).mean(1)
                scores = InputScores({"mse": apart}, first["private"], first["back"])
                sections.setdefault(source, {})[row] = scores
    return pictured(sections, "ours", "a client's update")


def _source(row: str) -> str:
    return _NETWORKS[row.rpartition(".b")[0]].source


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


STUDY = Study("update-networks", _SCALES, _run, spreads=True)


# x


@dataclass(frozen=True)
class _Client:
    """Clients that train as FedAvg does: epochs over batches in an unknown order.

    The attack knows the rate and that much; not which records a batch had, nor, for fully connected networks,
    how many records there are.
    """

    build: Callable[[], nn.Module]
    source: str
    rate: float
    attack: Attack = LocalStepsAttack()
    records: int = 16
    routine: Routine = Routine(epochs=2, local_batch=8)

    @property
    def known(self) -> int | None:
        """What the attack is told of the number of records: behind convolutions it is not in the rank."""
        return None if isinstance(self.attack, LocalStepsAttack) else self.records


_HALF = Routine(epochs=2, local_batch=4)
_CLIENTS = {
    "mlp.rate0.01": _Client(partial(fully_connected, 784, 256, 10), "mnist", 0.01),
    "mlp.rate0.1": _Client(partial(fully_connected, 784, 256, 10), "mnist", 0.1),
    "convnet.rate0.01": _Client(partial(convnet, 3, 32), "cifar10", 0.01, FeatureDecoding()),
    "small.rate0.01": _Client(
        partial(fully_connected, 64, 96, 10),
        "digits",
        0.01,
        LocalStepsAttack(2, 1),
        records=8,
        routine=_HALF,
    ),
}


def _one_client(run: Run[Any], job: tuple[str, int]) -> Mapping[str, Tensor]:
    """One client: its own records, weights and order."""
    name, index = job
    row, key = _CLIENTS[name], run.key.fold("fedavg", name, index)
    records = run.records(row.source)
    private, others = _split_decoys(records, row.records, key)
    with seeded_globals(key.fold("weights")):
        architecture = ModuleArchitecture.of(row.build(), records.shape)
    local = LocalTraining(architecture, rate=row.rate, routine=row.routine)
    batch = cut_batches(private, row.records)
    release, secret = release_updates(local, architecture.initial(key), batch, key.fold("client"))
    knowledge = Knowledge(architecture=architecture, local=local, batch_size=row.known)
    began = time.perf_counter()
    found = mounted(row.attack, knowledge, release, key.fold("attack"))
    seconds = time.perf_counter() - began
    scores = score_batches(secret, found)
    return {
        **came_back(found, scores, private, others, key),
        "seconds": torch.tensor([seconds], dtype=torch.float64),
    }
