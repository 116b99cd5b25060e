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

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.attacks.gradient.features import FeatureDecoding
from exhume.attacks.gradient.gates import GateAttack
from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.patches import PatchAttack
from exhume.core.contract import Attack, Gradient, Records, Status
from exhume.core.contract import Outcome as Ended
from exhume.core.results import AttackSpec, Chart, Findings, Point, Section
from exhume.models.ordinary import (
    ResNet,
    VisionTransformer,
    convnet,
    fully_connected,
    lenet,
)
from exhume.models.own.module import ModuleArchitecture
from exhume.naming import seeded_globals
from exhume.studies.framework import Claims, Outcome, Run, Scale, Study
from exhume.studies.gradient.batches import attacked, came_back
from exhume.studies.gradient.networks_fedavg import fedavg_metrics
from exhume.studies.gradient.networks_language import (
    LANGUAGE,
    LanguageSetting,
    language_claims,
    language_metrics,
)
from exhume.victims.gradient import cut_batches, release_batches
from exhume.victims.norm_statistics import batch_statistics

__all__ = ["STUDY"]

DEVIATIONS = (
    "Gradients of one step at the network's own weights (fedavg: of several); no augmentation, no noise.",
    "Gradient matching is given the batch size. Rows that end with `.old` are Adam with a constant weight of "
    "the total variation, for as many steps and so as many seconds as the row above them.",
)
_POOL = 4000  # records that strangers come from
_SHOWN = 8  # records of a row
_TRAINING = 60  # steps of Adam on other records, for the trained network
_SEARCHED = ("recovered", "identified", "psnr", "seconds", "counted")
_NOTE = "Every card is one row of the result, under its label: one client's records, and what came back."


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
    found = run.tensors("attacking updates", _one, run.setting.jobs())
    rows: dict[str, list[dict[str, Tensor]]] = {}
    for job, kept in found.items():
        rows.setdefault(job.split(" ")[0], []).append(kept)
    metrics = {
        f"{row}.{number}": float(torch.cat([one[number] for one in kept]).mean())
        for row, kept in rows.items()
        for number in _SEARCHED
    }
    metrics |= fedavg_metrics(run, run.setting.batches)
    chart = _chart(metrics)
    metrics |= language_metrics(run, run.setting.language)
    shown, names = _pictured(rows)
    return Outcome(
        {**_claims(metrics), **language_claims(metrics)},
        metrics,
        attacks=shown,
        classes=names,
        charts=[chart],
        deviations=list(DEVIATIONS),
    )


def _one(run: Run[_Setting], job: tuple[str, int, int]) -> Mapping[str, Tensor]:
    """One client's batch: its own records, its own weights."""
    name, size, index = job
    network, key = _NETWORKS[name], run.key.fold("networks", name.split(".")[0], size, index)
    attack, records = network.attack_on(size), run.records(network.source)
    order = torch.randperm(len(records), generator=key.fold("records").generator())
    private, others = records[order[:size]], records[order[size : size + _POOL]]
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
    shown: list[Findings] = []
    names: list[str] = []
    for source in dict.fromkeys(network.source for network in _NETWORKS.values()):
        own = {row: kept[0] for row, kept in rows.items() if _source(row) == source}
        if not own:
            continue
        errors = [(kept["back"] - kept["private"]).square().mean() for kept in own.values()]
        evidence = {
            "targets": torch.stack([_strip(kept["private"]) for kept in own.values()]),
            "reconstructions": torch.stack([_strip(kept["back"]) for kept in own.values()]),
            "mse": torch.stack(errors).double(),
            "labels": torch.arange(len(own)) + len(names),
        }
        names += own
        spec = AttackSpec(source, f"Records of {source}", "ours", "a client's update")
        section = Section(spec, Status(Ended.CONVERGED), notes=(_NOTE,))
        shown.append(Findings(section, evidence=evidence))
    return shown, names


def _strip(images: Tensor) -> Tensor:
    """(b, c, h, w): the first eight side by side, white if fewer, with a pixel between."""
    shown = F.pad(images[:_SHOWN].float(), [0, 1], value=1.0)
    shown = F.pad(shown, [0, 0, 0, 0, 0, 0, 0, _SHOWN - len(shown)], value=1.0)
    return torch.cat(list(shown), dim=2)


def _source(row: str) -> str:
    return _NETWORKS[row.rpartition(".b")[0]].source


def _claims(m: dict[str, float]) -> Claims:
    """Of the rows that were run."""
    wanted = {
        "batch": ("mlp.b16", "recovered", 0.95, "honest weights, batches of 16 at width 256"),
        "larger": ("mlp.b32", "recovered", 0.5, "the same for batches of 32"),
        "wide": ("mlp_wide.b32", "recovered", 0.5, "batches of 32 at width 2,048"),
        "fedavg": (
            "fedavg.mlp.rate0.01",
            "recovered",
            0.8,
            "clients' 16 after two epochs of batches of 8",
        ),
        "images": ("convnet.b8", "identified", 0.95, "images of a CNN's batch of 8"),
        "resnet": ("resnet.b1", "identified", 0.8, "a ResNet's single image"),
        "transformer": ("vit.b1", "recovered", 0.95, "a vision transformer's single image"),
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
