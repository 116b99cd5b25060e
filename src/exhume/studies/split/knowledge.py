"""Ensembler24's threat model, loosened and tightened: what the server knows, against what it gets.

A ResNet-18 without a defence, cut after its first convolution. The paper's attacker may not query, has
records of the training distribution, and a shadow head of three convolutions. Beside it: other records,
another head, features that were sent before, queries, and the head itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from exhume import data
from exhume.attacks.split.inversion import ShadowInversion, TrueHeadInversion
from exhume.attacks.split.queried import QueriedInversion
from exhume.contract import Attack, Key, Knowledge, Progress, Records
from exhume.data import Sizes
from exhume.defences.split.single import Noise
from exhume.models.split.inverter import Decoder, ShadowHead
from exhume.models.split.pipeline import Pipeline
from exhume.models.split.resnet import ResNet18
from exhume.report.folder import RunFolder
from exhume.score.features import InputScores, score_constant, score_inputs
from exhume.studies.split.knowledge_told import charts, claims, deviations, shown
from exhume.studies.split.pictures import picture_section
from exhume.studies.study import Outcome, Scale, Study, labelled
from exhume.train.single import Schedule
from exhume.train.split import SplitJob
from exhume.victims.split import queried_knowledge, release_features, server_knowledge

__all__ = ["STUDY", "as_pictures"]

_HALF = 5  # the first classes of CIFAR-10: airplane to deer


@dataclass(frozen=True)
class _Setting:
    sizes: (
        Sizes  # fixed: the client's training records; shadow: the attacker's; public: sent before
    )
    width: int
    training: Schedule
    attack: ShadowInversion
    steps: int  # of a decoder trained on queries
    queries: tuple[int, ...]
    match: float = 10.0


def _attack(channels: int, epochs: int, batch: int) -> ShadowInversion:
    schedule = Schedule(epochs, batch, 3e-3, "adam", 0.0)
    return ShadowInversion((0,), ShadowHead(channels), Decoder(channels), schedule, schedule)


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        Sizes(80, 12, 60, 30, 40), 4, Schedule(1, 40, 0.05), _attack(4, 1, 30), 20, (10, 60)
    ),
    "cpu": _Setting(
        Sizes(4_000, 200, 1_000, 500, 1_000),
        16,
        Schedule(8, 32, 0.05),
        _attack(32, 6, 16),
        400,
        (10, 100, 1_000),
    ),
    "paper": _Setting(
        Sizes(25_000, 1_000, 20_000, 4_000, 10_000),
        64,
        Schedule(100, 128, 0.1),
        _attack(64, 50, 128),
        10_000,
        (10, 100, 1_000, 10_000),
    ),
}


@dataclass(frozen=True, eq=False)
class _Case:
    attack: Attack
    knowledge: Knowledge


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed).fold("split-knowledge")
    records = data.load("cifar10", progress=progress)
    faces = as_pictures(data.load("faces", progress=progress), records.shape)
    parts = data.split(records, setting.sizes, key.fold("split"))
    network = ResNet18(records.shape, len(records.classes), setting.width)
    job = SplitJob(network, "conv1", "pool", parts.fixed, setting.training)
    pipeline = Noise().train(job, key=key.fold("client"), store=folder.store(), progress=progress)
    release, secret = release_features(pipeline, parts.target)
    cases = _cases(setting, pipeline, parts, faces, key)
    rows: dict[str, InputScores] = {
        "mean_image": score_constant(secret, parts.shadow.inputs.mean(0), None)
    }
    metrics = {"accuracy": pipeline.accuracy(parts.test.inputs, parts.test.labels)}
    for name, case in cases.items():
        prepared = case.attack.prepare(
            case.knowledge,
            key=key.fold("attack", name),
            store=folder.store(),
            progress=labelled(progress, name),
        )
        found = prepared.run(release)
        rows[name] = score_inputs(secret, found, None)
        metrics |= {f"{name}.{n}": value for n, value in found.observed.items()}
    for name, scores in rows.items():
        metrics |= scores.metrics(name)
    classes: list[str] = []
    pictures = {shown(name): scores for name, scores in rows.items()}
    return Outcome(
        claims=claims(rows, setting.queries, key.fold("claims")),
        metrics=metrics,
        attacks=[picture_section(folder, "Pictures", pictures, classes)],
        classes=classes,
        deviations=deviations(setting.sizes, setting.width),
        charts=charts(rows, setting.queries, key.fold("charts")),
    )


def _cases(
    setting: _Setting, pipeline: Pipeline, parts: data.Split, faces: Records, key: Key
) -> dict[str, _Case]:
    paper, held = setting.attack, parts.shadow

    def server(own: Records, *, seen: bool = False, head: bool = False) -> Knowledge:
        earlier = parts.public if seen else None
        return server_knowledge(pipeline, own, earlier=earlier, with_head=head)

    bound = TrueHeadInversion(paper.decoder, paper.decoder_schedule)
    asking = QueriedInversion(paper.decoder, setting.steps)
    cases = {
        "paper": _Case(paper, server(held)),
        "training_records": _Case(paper, server(parts.fixed[: len(held)])),
        "other_classes": _Case(paper, server(held[held.labels < _HALF])),
        "faces": _Case(paper, server(faces)),
        "shorter_head": _Case(replace(paper, head=_convolutions(paper.head, 2)), server(held)),
        "longer_head": _Case(replace(paper, head=_convolutions(paper.head, 5)), server(held)),
        "seen": _Case(replace(paper, match=setting.match), server(held, seen=True)),
        "head_known": _Case(bound, server(held, head=True)),
    }
    for count in setting.queries:
        cases[f"queries_{count}"] = _Case(asking, queried_knowledge(pipeline, held[:count]))
    cases["queries_faces"] = _Case(asking, queried_knowledge(pipeline, faces))
    noise = _noise(setting.queries[-1], held, key)
    cases["queries_noise"] = _Case(asking, queried_knowledge(pipeline, noise))
    return cases


def _convolutions(head: ShadowHead, count: int) -> ShadowHead:
    return replace(head, convolutions=count)


def as_pictures(records: Records, shape: tuple[int, ...]) -> Records:
    """Images made to fit another set's shape: resized, grey ones with equal colours."""
    small = F.interpolate(records.inputs, shape[1:], mode="area")
    return Records(small.expand(-1, shape[0], -1, -1).clone(), records.labels, records.classes)


def _noise(count: int, like: Records, key: Key) -> Records:
    """Independent uniform pixels."""
    pixels = torch.rand(count, *like.shape, generator=key.fold("noise").generator())
    return Records(pixels, torch.zeros(count, dtype=torch.long), ("noise",))


STUDY = Study(
    name="split-knowledge",
    title="What the server of a split network knows, against what it gets",
    paper="Ensembler24",
    run=_run,
)
