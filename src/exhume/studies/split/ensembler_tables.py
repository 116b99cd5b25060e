"""The tables of Ensembler24: split inference on one data set under its defences, and attackers it leaves out.

The network is cut after its first convolution and before its last dense layer. Every defence is trained,
then met with the paper's attackers and with ours; a `Table` says on which data and how large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from exhume import data
from exhume.contract import Key, Progress, Records
from exhume.data import Sizes, Split
from exhume.defences.split.dropout_ensemble import DropoutEnsemble
from exhume.defences.split.ensembler import Ensembler, likeness
from exhume.defences.split.single import Dropout, Noise, RandomHead, Shredder
from exhume.models.lpips import perceptual
from exhume.models.split.pipeline import Pipeline
from exhume.models.split.resnet import ResNet18
from exhume.report.folder import RunFolder
from exhume.score.features import Distance, InputScores
from exhume.studies.split.ensembler_rows import (
    THOROUGH,
    Attackers,
    Met,
    Row,
    left_out,
    mean_image,
    the_papers,
)
from exhume.studies.split.ensembler_spread import fill
from exhume.studies.split.ensembler_told import Paper, charts, claims, deviations
from exhume.studies.study import Outcome, Scale, Study, labelled
from exhume.train.single import Schedule
from exhume.train.split import ANSWERS, SplitDefence, SplitJob

__all__ = ["Setting", "Table", "Trial"]

_SHOWN = 8  # images of each row on the page


@dataclass(frozen=True)
class Setting:
    """One scale of a table."""

    sizes: (
        Sizes  # fixed: the client's training records; shadow: the attacker's; public: sent before
    )
    width: int
    ensembler: Ensembler
    training: Schedule
    attackers: Attackers
    augment: bool = True
    shredder: Shredder = Shredder(1.0)
    sigma: float = 0.1  # of Single
    dropout: float = 0.5
    source: str = ""  # other data than the table's; "": the same
    halvings: int = 0  # how often images are halved before anything else


@dataclass(frozen=True)
class Table:
    """One data set."""

    name: str
    title: str
    source: str
    paper: Paper
    defences: tuple[str, ...]
    scales: Mapping[Scale, Setting]
    max_pool: bool = True

    def study(self) -> Study:
        return Study(
            name=self.name, title=self.title, paper="Ensembler24", run=self.run, spreads=True
        )

    def run(self, scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
        fill(self, scale, seed, folder, progress)
        trial = Trial.of(self, scale, seed, folder, progress)
        setting = trial.setting
        rows: dict[str, Row] = {}
        accuracy: dict[str, float] = {}
        facts: dict[str, float] = {}
        for name in self.defences:
            pipeline = trial.pipeline(name)
            accuracy[name] = pipeline.accuracy(trial.parts.test.inputs, trial.parts.test.labels)
            rows |= trial.rows(name, pipeline)
            facts |= trial.facts(name, pipeline)
        null = mean_image(trial.met, pipeline)
        metrics = _metrics(self.defences, rows, accuracy, null) | facts
        return Outcome(
            claims=claims(self.paper, rows, accuracy, null, metrics, trial.key.fold("claims")),
            metrics=metrics,
            attacks=[_section(folder, row, found) for row, found in rows.items()],
            classes=list(trial.parts.target.classes),
            deviations=deviations(self.paper, setting.sizes, setting.width, setting.ensembler),
            charts=charts(self.paper, metrics),
        )


@dataclass(frozen=True, eq=False)
class Trial:
    """A table at one scale, its records dealt out. Its pieces can be made in any order."""

    setting: Setting
    parts: Split
    job: SplitJob
    met: Met
    key: Key

    @classmethod
    def of(
        cls, table: Table, scale: Scale, seed: int, folder: RunFolder, progress: Progress
    ) -> Trial:
        setting, key = table.scales[scale], Key.from_seed(seed)
        records = _halved(
            data.load(setting.source or table.source, progress=progress), setting.halvings
        )
        parts = data.split(records, setting.sizes, key.fold("split"))
        network = ResNet18(records.shape, len(records.classes), setting.width, table.max_pool)
        job = SplitJob(
            network, "conv1", "pool", parts.fixed, setting.training, augment=setting.augment
        )
        met = Met(
            parts.target,
            parts.shadow,
            parts.public,
            _in_colour(perceptual(progress=progress)),
            key,
            folder.store(),
            progress,
        )
        return cls(setting, parts, job, met, key)

    def pipeline(self, name: str) -> Pipeline:
        """Single is the first pipeline of the Ensembler's stage 1: the same definition, one training."""
        setting, key = self.setting, self.key.fold("victim")
        defences: dict[str, SplitDefence] = {
            "none": Noise(),
            "shredder": setting.shredder,
            "single": Noise(setting.sigma),
            "dr_single": Dropout(setting.dropout, ANSWERS),
            "dr_ensemble": DropoutEnsemble(setting.ensembler.bodies, setting.dropout, ANSWERS),
            "random_head": RandomHead(),
            "ensembler": setting.ensembler,
        }
        return defences[name].train(
            self.job,
            key=key.fold("body", 0) if name == "single" else key,
            store=self.met.store,
            progress=labelled(self.met.progress, name),
        )

    def rows(self, name: str, pipeline: Pipeline) -> dict[str, Row]:
        attackers = self.setting.attackers
        theirs = the_papers(
            self.met, pipeline, attackers.shadow, name, adaptive=name == "ensembler"
        )
        ours = left_out(
            self.met,
            pipeline,
            attackers,
            name,
            selected=self.setting.ensembler.selected,
            every=name in THOROUGH,
        )
        return theirs | ours

    def facts(self, name: str, pipeline: Pipeline) -> dict[str, float]:
        """Size of the noise beside that of the features; what became of eq. 3's cosine."""
        sent, noise = pipeline.released(self.parts.test.inputs), pipeline.client.noise
        found = {
            f"{name}.noise_size": float(noise.square().mean().sqrt()),
            f"{name}.feature_size": float((sent - noise).square().mean().sqrt()),
        }
        if name == "ensembler":
            own, key = self.setting.ensembler, self.key.fold("victim")
            parts = own.stage_one(self.job, key=key, store=self.met.store)
            found[f"{name}.likeness"] = likeness(pipeline, parts, self.parts.test.inputs)
        return found


def _in_colour(distance: Distance) -> Distance:
    """Grey images are shown to it in three equal channels."""

    def measured(one: Tensor, other: Tensor) -> Tensor:
        return distance(*(x.expand(-1, 3, -1, -1) for x in (one, other)))

    return measured


def _halved(records: Records, times: int) -> Records:
    inputs = records.inputs
    for _ in range(times):
        inputs = F.avg_pool2d(inputs, 2)
    return Records(inputs, records.labels, records.classes)


def _metrics(
    defences: tuple[str, ...],
    rows: Mapping[str, Row],
    accuracy: Mapping[str, float],
    null: InputScores,
) -> dict[str, float]:
    metrics = {"accuracy": accuracy["none"], **null.metrics("mean_image")}
    metrics |= {f"{name}.accuracy": value for name, value in accuracy.items()}
    for row, found in rows.items():
        defence = max((d for d in defences if row.startswith(d)), key=len)
        metrics[f"{row}.delta_accuracy"] = accuracy[defence] - accuracy["none"]
        metrics |= found.scores.metrics(row)
        metrics |= {f"{row}.{name}": value for name, value in found.observed.items()}
        metrics[f"{row}.seconds"] = found.seconds
    return metrics


def _section(folder: RunFolder, row: str, found: Row) -> dict[str, Any]:
    """The row on the page: its first images, and what came back of them."""
    scores, evidence = found.scores, f"{row}.safetensors"
    tensors = {"targets": scores.targets, "reconstructions": scores.reconstructions}
    tensors |= {name: scores.each[name] for name in ("mse", "ssim", "psnr")}
    folder.write_tensors(evidence, {n: t[:_SHOWN].contiguous() for n, t in tensors.items()})
    return {
        "name": row.replace("_", " "),
        "paper": "Ensembler24",
        "sees": "the features that the client sends",
        "status": {"outcome": "converged"},
        "metrics": {name: float(values.mean()) for name, values in scores.each.items()},
        "cost": {"seconds": found.seconds},
        "evidence": evidence,
    }
