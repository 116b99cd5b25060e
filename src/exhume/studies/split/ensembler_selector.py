"""What the Ensembler's numbers do: P, N, lambda and sigma, and what trying every selection costs.

One stage 1 serves all choices of P, N and lambda; a sigma has its own. Each variant is met with the paper's
adaptive attacker and with the one who looks at features only; the plain one also with all 2^N - 1 subsets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from exhume import data
from exhume.attacks.split.enumeration import SubsetSearch
from exhume.attacks.split.inversion import ShadowInversion
from exhume.attacks.split.lookalike import Lookalike
from exhume.attacks.split.shadow import LEARNED, server_of, train_shadow
from exhume.contract import Attack, Key, Progress, Records, silent
from exhume.data import Sizes
from exhume.defences.split.ensembler import Ensembler, likeness
from exhume.defences.split.single import Noise
from exhume.models.split.pipeline import Pipeline
from exhume.models.split.resnet import ResNet18
from exhume.report.folder import RunFolder
from exhume.scale import Processes, where_now
from exhume.store import NullStore
from exhume.studies.split.ensembler_cifar10 import attackers, quick
from exhume.studies.split.ensembler_rows import Attackers, Met, Row, mean_image, meet
from exhume.studies.split.ensembler_selector_told import chart, claims
from exhume.studies.split.ensembler_spread import make_all
from exhume.studies.study import Outcome, Scale, Study, labelled
from exhume.train.single import Schedule
from exhume.train.split import SplitJob
from exhume.victims.split import server_knowledge

__all__ = ["STUDY"]

_PAPER_BODIES = 10
_PLAIN = "plain"


@dataclass(frozen=True)
class _Setting:
    sizes: Sizes
    width: int
    plain: Ensembler
    training: Schedule
    attackers: Attackers
    variants: Mapping[str, Ensembler]


def _variants(
    plain: Ensembler, selected: tuple[int, ...], lambdas: tuple[float, ...], sigma: float
) -> dict[str, Ensembler]:
    """By the name of what differs from the plain one."""
    found = {f"selected_{p}": replace(plain, selected=p) for p in selected}
    found |= {f"lambda_{w:g}": replace(plain, likeness=w) for w in lambdas}
    found[f"bodies_{plain.selected}"] = replace(plain, bodies=plain.selected)
    found[f"sigma_{sigma:g}"] = replace(plain, sigma=sigma)
    return found


_CPU = Ensembler(4, 2, likeness=0.1, schedule=Schedule(3, 64, 0.1))
_PAPER = Ensembler(10, 4, likeness=0.1)
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        Sizes(60, 12, 60, 40, 30),
        4,
        Ensembler(2, 1),
        Schedule(1, 50, 0.05),
        quick(),
        _variants(Ensembler(2, 1), (2,), (0.0, 2.0), 0.5),
    ),
    "cpu": _Setting(
        Sizes(10_000, 200, 2_000, 2_000, 2_000),
        16,
        _CPU,
        Schedule(2, 64, 0.1),
        attackers(24, 4, 32, Lookalike()),
        _variants(_CPU, (1, 4), (0.0, 1.0), 0.5),
    ),
    "paper": _Setting(
        Sizes(25_000, 1_000, 20_000, 4_000, 10_000),
        64,
        _PAPER,
        Schedule(100, 128, 0.1),
        attackers(64, 50, 128, Lookalike(starts=12)),
        _variants(_PAPER, (1, 2, 6, 10), (0.0, 1.0, 10.0), 0.5),
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    trial = _Trial.of(scale, seed, folder, progress)
    _fill(trial, (scale, seed, folder.path))
    setting, met, key = trial.setting, trial.met, trial.met.key
    rows: dict[str, Row] = {}
    bare = Noise().train(trial.job, key=key, store=met.store, progress=labelled(progress, "none"))
    metrics = {"none.accuracy": trial.tested(bare)}
    for name in trial.variants:
        pipeline = trial.pipeline(name)
        metrics[f"{name}.delta_accuracy"] = trial.tested(pipeline) - metrics["none.accuracy"]
        metrics[f"{name}.likeness"] = trial.likeness(name, pipeline)
        for attacker, attack in trial.attacks(name).items():
            row = f"{name}.{attacker}"
            rows[row] = meet(met, pipeline, attack, name, f"{name} {attacker}")
        if name == _PLAIN:
            metrics |= _guessed(pipeline, rows["plain.subsets"].observed)
            metrics |= _enumeration(pipeline, met, setting.attackers)
    metrics |= mean_image(met, bare).metrics("mean_image")
    for row, found in rows.items():
        metrics |= found.scores.metrics(row)
        metrics |= {f"{row}.{n}": v for n, v in found.observed.items()}
    return Outcome(
        claims=claims(rows, metrics, key),
        metrics=metrics,
        deviations=[
            f"ResNet-18 of width {setting.width} on {setting.sizes.fixed:,} images, "
            f"{setting.training.epochs} epochs; one client for each variant.",
            "The paper fixes N, P and sigma for each data set and states no lambda.",
            "Cost of enumeration: seconds of one epoch through 1 to N bodies, measured, times the "
            "number of epochs and of subsets of each size.",
        ],
        charts=[chart(list(setting.variants), metrics)],
    )


@dataclass(frozen=True, eq=False)
class _Trial:
    """The study at one scale, its records dealt out. Its pieces can be made in any order."""

    setting: _Setting
    job: SplitJob
    met: Met
    test: Records

    @classmethod
    def of(cls, scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> _Trial:
        setting, key = _SCALES[scale], Key.from_seed(seed).fold("selector study")
        records = data.load("cifar10", progress=progress)
        parts = data.split(records, setting.sizes, key.fold("split"))
        network = ResNet18(records.shape, len(records.classes), setting.width)
        job = SplitJob(network, "conv1", "pool", parts.fixed, setting.training, augment=False)
        met = Met(parts.target, parts.shadow, parts.public, None, key, folder.store(), progress)
        return cls(setting, job, met, parts.test)

    @property
    def variants(self) -> dict[str, Ensembler]:
        return {_PLAIN: self.setting.plain, **self.setting.variants}

    def pipeline(self, name: str) -> Pipeline:
        progress = labelled(self.met.progress, name)
        return self.variants[name].train(
            self.job, key=self.met.key, store=self.met.store, progress=progress
        )

    def attacks(self, name: str) -> dict[str, Attack]:
        """By the row's name: the paper's adaptive one, the one who looks; every subset of the plain one."""
        shadow = self.setting.attackers.shadow
        found: dict[str, Attack] = {
            "adaptive": replace(shadow, reads=LEARNED),
            "lookalike": self.setting.attackers.lookalike,
        }
        return found | ({"subsets": SubsetSearch(inversion=shadow)} if name == _PLAIN else {})

    def tested(self, pipeline: Pipeline) -> float:
        return pipeline.accuracy(self.test.inputs, self.test.labels)

    def likeness(self, name: str, pipeline: Pipeline) -> float:
        bodies = self.variants[name].stage_one(self.job, key=self.met.key, store=self.met.store)
        return likeness(pipeline, bodies, self.test.inputs)


def _fill(trial: _Trial, work: tuple[Scale, int, Path]) -> None:
    """Several processes make what the store lacks: bodies, each variant with its attackers, every subset."""
    if not isinstance(where_now(), Processes):
        return
    setting, met = trial.setting, trial.met
    setting.plain.stage_one(trial.job, key=met.key, store=met.store, progress=met.progress)
    subsets = SubsetSearch().subsets(setting.plain.bodies)
    pieces: list[_Piece] = [
        *((name, None) for name in sorted(setting.variants, key=lambda n: "sigma" not in n)),
        (_PLAIN, None),
        *((_PLAIN, replace(setting.attackers.shadow, reads=subset)) for subset in subsets),
    ]
    make_all("training variants", _make, pieces, shared=work, progress=met.progress)


_Piece = tuple[str, ShadowInversion | None]
"""A variant, with its own attackers or with this one."""


def _make(work: tuple[Scale, int, Path], piece: _Piece) -> None:
    trial = _trial(*work)
    name, attack = piece
    pipeline = trial.pipeline(name)
    attacks = trial.attacks(name) if attack is None else {"": attack}
    for attacker in (one for row, one in attacks.items() if row != "subsets"):
        meet(trial.met, pipeline, attacker, name)


@cache
def _trial(scale: Scale, seed: int, place: Path) -> _Trial:
    return _Trial.of(scale, seed, RunFolder(place), silent)


def _guessed(pipeline: Pipeline, observed: Mapping[str, float]) -> dict[str, float]:
    """Whether the subset that classifies best is the client's, and how the client's ranks."""
    tried = {
        name.removeprefix("shadow_accuracy."): value
        for name, value in observed.items()
        if name.startswith("shadow_accuracy.")
    }
    own = "+".join(map(str, pipeline.client.selected))
    return {
        "enumeration.subsets": float(len(tried)),
        "enumeration.rank": 1.0 + sum(value > tried[own] for value in tried.values()),
    }


def _enumeration(pipeline: Pipeline, met: Met, attackers: Attackers) -> dict[str, float]:
    """Measured seconds of one epoch through k bodies; from these, hours to try every subset of N."""
    server = server_of(server_knowledge(pipeline, met.held), "timing")
    shadow = attackers.shadow
    one = replace(shadow.shadow_schedule, epochs=1)
    count = len(pipeline.bodies)
    seconds = []
    for size in range(1, count + 1):
        started = time.perf_counter()
        train_shadow(
            server,
            tuple(range(size)),
            shadow.head,
            one,
            key=met.key,
            store=NullStore(),
            progress=silent,
        )
        seconds.append(time.perf_counter() - started)
    sizes = torch.arange(1.0, count + 1)
    design = torch.stack([torch.ones(count), sizes], 1)
    alone, each = torch.linalg.lstsq(design, torch.tensor(seconds)[:, None]).solution[:, 0].tolist()
    epochs = shadow.shadow_schedule.epochs
    found = {f"enumeration.epoch_seconds_{k}": s for k, s in enumerate(seconds, 1)}
    for bodies in (count, _PAPER_BODIES):
        whole = sum(
            math.comb(bodies, k) * epochs * (alone + each * k) for k in range(1, bodies + 1)
        )
        found[f"enumeration.hours_{bodies}"] = whole / 3600
        found[f"enumeration.trials_{bodies}"] = 2.0**bodies - 1
    return found


STUDY = Study(
    name="ensembler-selector",
    title="The Ensembler's N, P, lambda and sigma, and what trying every selection costs",
    paper="Ensembler24",
    run=_run,
    spreads=True,
)
