"""Ensembler24, Figs 2 and 3: how much comes back, by where the network is cut.

VGG-16 and ResNet-18 are trained once, without a defence, and cut at every pair of first and second points.
Every cut is met with the paper's attacker; every first point also with matched moments and a known head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn

from exhume import data
from exhume.attacks.split.inversion import ShadowInversion, TrueHeadInversion
from exhume.contract import Attack, Key, Progress
from exhume.data import Sizes
from exhume.models.split.cut import Split, cut
from exhume.models.split.inverter import Decoder, ShadowHead
from exhume.models.split.pipeline import Client, Pipeline
from exhume.models.split.resnet import ResNet18
from exhume.models.split.vgg import VGG16
from exhume.report.folder import RunFolder
from exhume.studies.split.ensembler_rows import Met, Row, mean_image, meet
from exhume.studies.split.points_told import Grid, charts, claims, deviations, sections
from exhume.studies.study import Outcome, Scale, Study, labelled
from exhume.train.single import Schedule
from exhume.train.split import Network, SplitJob, fixed_noise, train_split

__all__ = ["STUDY", "chained"]


@dataclass(frozen=True)
class _Setting:
    sizes: (
        Sizes  # fixed: the client's training records; shadow: the attacker's; public: sent before
    )
    width: int
    training: Schedule
    attack: ShadowInversion
    firsts: Mapping[str, tuple[str, ...]]  # last layers of the head, by network
    seconds: Mapping[str, tuple[str, ...]]  # last layers of the body
    match: float = 10.0


def _attack(channels: int, epochs: int, batch: int) -> ShadowInversion:
    schedule = Schedule(epochs, batch, 3e-3, "adam", 0.0)
    return ShadowInversion((0,), ShadowHead(channels), Decoder(channels), schedule, schedule)


_FIRSTS = {"vgg16": ("conv1", "conv2", "conv4", "conv7"), "resnet18": ("conv1", "block1", "block2")}
_SECONDS = {"vgg16": ("conv8", "conv10", "pool"), "resnet18": ("block3", "block4", "pool")}

_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        Sizes(80, 12, 60, 30, 40),
        2,
        Schedule(1, 40, 0.05),
        _attack(4, 1, 30),
        {"vgg16": ("conv1", "conv7"), "resnet18": ("conv1", "block2")},
        {"vgg16": ("conv8", "pool"), "resnet18": ("block3", "pool")},
    ),
    "cpu": _Setting(
        Sizes(4_000, 200, 1_000, 500, 1_000),
        8,
        Schedule(8, 32, 0.05),
        _attack(32, 4, 16),
        _FIRSTS,
        _SECONDS,
    ),
    "paper": _Setting(
        Sizes(25_000, 1_000, 20_000, 4_000, 10_000),
        64,
        Schedule(100, 128, 0.1),
        _attack(64, 50, 128),
        {
            "vgg16": tuple(f"conv{h}" for h in range(1, 8)),
            "resnet18": ("conv1", "block1", "block2"),
        },
        {
            "vgg16": ("conv8", "conv9", "conv10", "conv11", "conv12", "pool"),
            "resnet18": ("block3", "block4", "pool"),
        },
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed).fold("split-points")
    records = data.load("cifar10", progress=progress)
    parts = data.split(records, setting.sizes, key.fold("split"))
    met = Met(parts.target, parts.shadow, parts.public, None, key, folder.store(), progress)
    networks: dict[str, Network] = {
        "vgg16": VGG16(records.shape, len(records.classes), setting.width),
        "resnet18": ResNet18(records.shape, len(records.classes), setting.width),
    }
    grids: dict[str, Grid] = {}
    metrics: dict[str, float] = {}
    for name, network in networks.items():
        firsts, seconds = setting.firsts[name], setting.seconds[name]
        job = SplitJob(network, firsts[0], seconds[-1], parts.fixed, setting.training)
        trained = train_split(
            job,
            key=key.fold(name),
            store=met.store,
            progress=labelled(progress, name),
        )
        whole = _alone(trained, job)
        metrics[f"{name}.accuracy"] = whole.accuracy(parts.test.inputs, parts.test.labels)
        null = mean_image(met, whole)
        grids[name] = Grid(firsts, seconds, _cells(met, name, trained, job, setting), null)
        metrics |= null.metrics(f"{name}.mean_image")
        for place, row in grids[name].cells.items():
            label = ".".join(place)
            metrics |= row.scores.metrics(f"{name}.{label}")
            metrics |= {f"{name}.{label}.{n}": value for n, value in row.observed.items()}
    classes: list[str] = []
    return Outcome(
        claims=claims(grids, key.fold("claims")),
        metrics=metrics,
        attacks=sections(folder, grids, classes),
        classes=classes,
        deviations=deviations(setting.sizes, setting.width),
        charts=charts(grids, key.fold("charts")),
    )


def _cells(
    met: Met, name: str, trained: Split, job: SplitJob, setting: _Setting
) -> dict[tuple[str, str], Row]:
    """By first point, and second point or attacker."""
    chain, rows = chained(trained), dict[tuple[str, str], Row]()
    for first in setting.firsts[name]:
        for second in setting.seconds[name]:
            pipeline = _alone(cut(chain, first, second), job)
            rows[first, second] = meet(met, pipeline, setting.attack, f"{name} {first} {second}")
        others: dict[str, Attack] = {
            "matched": replace(setting.attack, match=setting.match),
            "head_known": TrueHeadInversion(
                setting.attack.decoder, setting.attack.decoder_schedule
            ),
        }
        for who, attack in others.items():
            rows[first, who] = meet(
                met, pipeline, attack, f"{name} {first} {who}", head=who == "head_known"
            )
    return rows


def chained(parts: Split) -> nn.Sequential:
    """A network that was cut, in one piece again."""
    layers = [
        named for part in (parts.head, parts.body, parts.tail) for named in part.named_children()
    ]
    return nn.Sequential(OrderedDict(layers))


def _alone(parts: Split, job: SplitJob) -> Pipeline:
    """One body, no noise."""
    quiet = fixed_noise(parts.feature_shape(job.records.shape), 0.0, Key.from_seed(0))
    return Pipeline(Client(parts.head, quiet, (0,), parts.tail), (parts.body,), parts.first)


STUDY = Study(
    name="split-points",
    title="What comes back from a split network, by where it is cut",
    paper="Ensembler24",
    run=_run,
)
