"""Ensembler24, Table 1: split inference on CIFAR-10 under seven defences, and attackers it leaves out.

The network is cut after its first convolution and before its last dense layer. Every defence is trained,
then met with the paper's attackers; no defence, Single and the Ensembler also with stronger ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from exhume import data
from exhume.attacks.split.inversion import ShadowInversion
from exhume.contract import Key, Progress
from exhume.data import Sizes
from exhume.defences.split.dropout_ensemble import DropoutEnsemble
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Dropout, Noise, Shredder
from exhume.models.inverter import Decoder, ShadowHead
from exhume.models.lpips import perceptual
from exhume.models.resnet import ResNet18
from exhume.report.folder import RunFolder
from exhume.studies.ensembler_rows import Met, Row, mean_image, stronger, the_papers
from exhume.studies.ensembler_told import charts, claims, deviations
from exhume.studies.study import Outcome, Scale, Study, labelled
from exhume.train.single import Schedule
from exhume.train.split import SplitDefence, SplitJob

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Setting:
    sizes: (
        Sizes  # fixed: the client's training records; shadow: the attacker's; public: sent before
    )
    width: int
    ensembler: Ensembler
    training: Schedule
    attack: ShadowInversion
    sigma: float = 0.1  # of Single
    large: float = 1.0  # of Shredder's start
    dropout: float = 0.5
    match: float = 10.0


def _attack(channels: int, epochs: int, batch: int) -> ShadowInversion:
    schedule = Schedule(epochs, batch, 3e-3, "adam", 0.0)
    return ShadowInversion((0,), ShadowHead(channels), Decoder(channels), schedule, schedule)


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        Sizes(100, 12, 60, 40, 50), 4, Ensembler(2, 1), Schedule(1, 50, 0.05), _attack(4, 1, 30)
    ),
    "cpu": _Setting(
        Sizes(10_000, 500, 5_000, 1_000, 2_000),
        16,
        Ensembler(4, 2),
        Schedule(12, 128, 0.1),
        _attack(64, 8, 128),
    ),
    "paper": _Setting(
        Sizes(25_000, 1_000, 20_000, 4_000, 10_000),
        64,
        Ensembler(10, 4),
        Schedule(100, 128, 0.1),
        _attack(64, 50, 128),
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed)
    records = data.load("cifar10", progress=progress)
    parts = data.split(records, setting.sizes, key.fold("split"))
    network = ResNet18(records.shape, len(records.classes), setting.width)
    job = SplitJob(network, "conv1", "pool", parts.fixed, setting.training)
    met = Met(
        parts.target,
        parts.shadow,
        parts.public,
        perceptual(progress=progress),
        key,
        folder.store(),
        progress,
    )
    defences: dict[str, SplitDefence] = {
        "none": Noise(),
        "shredder": Shredder(setting.large),
        "single": Noise(setting.sigma),
        "dr_single": Dropout(setting.dropout),
        "dr_ensemble": DropoutEnsemble(setting.ensembler.bodies, setting.dropout),
        "ensembler": setting.ensembler,
    }
    rows: dict[str, Row] = {}
    accuracy: dict[str, float] = {}
    for name, defence in defences.items():
        pipeline = defence.train(
            job, key=key.fold("victim"), store=met.store, progress=labelled(progress, name)
        )
        accuracy[name] = pipeline.accuracy(parts.test.inputs, parts.test.labels)
        rows |= the_papers(met, pipeline, setting.attack, name)
        if name in ("none", "single", "ensembler"):
            rows |= stronger(
                met,
                pipeline,
                setting.attack,
                name,
                selected=setting.ensembler.selected,
                match=setting.match,
            )
    null = mean_image(met, pipeline)
    metrics = {"accuracy": accuracy["none"], **null.metrics("mean_image")}
    for row, found in rows.items():
        defence_of = max((d for d in defences if row.startswith(d)), key=len)
        metrics[f"{row}.delta_accuracy"] = accuracy[defence_of] - accuracy["none"]
        metrics |= found.scores.metrics(row)
        metrics |= {f"{row}.{name}": value for name, value in found.observed.items()}
    folder.write_tensors(
        "reconstructions.safetensors",
        {"targets": parts.target.inputs[:16].clone()}
        | {row: found.scores.reconstructions[:16].clone() for row, found in rows.items()},
    )
    return Outcome(
        claims=claims(rows, accuracy, null, metrics, key.fold("claims")),
        metrics=metrics,
        classes=list(records.classes),
        deviations=deviations(setting.sizes, setting.width, setting.ensembler),
        charts=charts(metrics),
    )


STUDY = Study(
    name="ensembler-cifar10",
    title="Split inference on CIFAR-10: seven defences, the paper's attackers and stronger ones",
    paper="Ensembler24",
    run=_run,
)
