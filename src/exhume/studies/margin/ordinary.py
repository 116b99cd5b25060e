"""Ordinary checkpoints: biases in every layer, other activations, mini-batches, uneven classes, Adam, a head
on frozen features. Nothing here is homogeneous; what every victim has is weight decay.

Large arms: 100 images of CIFAR-10, two hidden layers of 1,000 (the head: 200 feature vectors). Small arms go
through activations, heads and optimisers with 30 images and two layers of 300. All with one blind setting.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from exhume.attacks.margin.descent import SearchDescent
from exhume.attacks.margin.feature_span import FeatureSpan
from exhume.attacks.margin.hidden_span import HiddenSpan, Strongest, met
from exhume.attacks.margin.restarts import distinct
from exhume.auditing import margin_findings
from exhume.auditing.kinds.checkpoint_findings import vector_findings
from exhume.auditing.kinds.checkpoint_records import Pictures, ScoringRecords
from exhume.core.contract import Key, Knowledge, Reconstruction, Records, Shard
from exhume.core.contract import Outcome as Ended
from exhume.core.evidence import LineupRow
from exhume.core.results import AttackSpec, Chart, Findings
from exhume.models.cnn import CNN
from exhume.models.heads import Head
from exhume.models.lpips import perceptual
from exhume.models.mlp import MLP
from exhume.score.margin import above_bar, score_margin, score_vectors
from exhume.score.places import line_up, places_for
from exhume.score.verdict import leak_of
from exhume.store.shards import address, digest
from exhume.studies.arms import mounted
from exhume.studies.claims import line, prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.margin.game import ONE_THREAD, quick
from exhume.train.margin import MarginDescent
from exhume.train.optimisers import Adam, Descent
from exhume.train.recipe import FullBatch
from exhume.victims.margin import MarginVictim, choose, release_margin, trained_in_full


@dataclass(frozen=True)
class Convolutional:
    """Balle22's convolutions with ReLU, and a wider layer behind them."""

    network: CNN = field(
        default_factory=lambda: CNN(hidden=(256,), activation="relu", init="torch")
    )
    each: int = 5  # images of a class
    descent: Descent = field(default_factory=lambda: Descent(5000, 0.05, 0.9, 0.01))
    attack: FeatureSpan = field(default_factory=FeatureSpan)
    strangers: int = 100  # of each class


def convolutional(run: Run[Any], source: str, arm: Convolutional) -> dict[str, float]:
    """How many training images are recognised among strangers of their class, beside chance."""
    key, records = run.key.fold("margin-ordinary", "cnn"), run.records(source)
    classes = arm.network.outputs
    train, others = choose(records, classes, arm.each, arm.strangers * classes, key.fold("choose"))
    centre, here = train.inputs.mean(0), run.part("victim cnn")
    centred = Records(train.inputs - centre, train.labels, train.classes)
    recipe, own = FullBatch(arm.network, arm.descent), here.key.fold("margin-ordinary", "cnn")
    release = trained_in_full(recipe, centred, key=own, store=here.store, progress=here.progress)
    knowledge = Knowledge(architecture=arm.network, centre=centre)
    found = mounted(arm.attack, knowledge, release, key.fold("attack"), here)
    if found.status.outcome is Ended.NOT_APPLICABLE:
        return {"identified": 0.0, "records": float(len(train)), "refused": 1.0}
    one = torch.zeros(len(train), dtype=torch.long)
    places = places_for(train, one, others, key.fold("places"))
    row, _ = line_up(places, [found.found(0).clamp(0, 1)], key.fold("line-up"))
    return {
        "identified": row.share,
        "chance": row.chance,
        "p": row.p,
        "strangers": float(row.strangers),
        "records": float(len(train)),
        "records_guessed": found.observed["records"],
        "distance": found.observed["residual"],
        "refused": 0.0,
    }


@dataclass(frozen=True)
class Ordinary:
    """One victim."""

    activation: str = "relu"
    head: Head = "multiclass"  # the other two: one output, two classes
    mix: tuple[int, ...] = (10,) * 10  # images of each class
    width: int = 1000
    decay: float = 0.005
    decay_biases: bool = True
    optimiser: str = "sgd"  # with momentum .9, or adam, adamw
    rate: float = 0.2  # falls along a cosine; constant for Adam
    batch: int = 0  # 0: all
    epochs: int = 2500

    def recipe(self, shape: tuple[int, ...]) -> MarginDescent | FullBatch:
        outputs = len(self.mix) if self.head == "multiclass" else 1
        mlp = MLP(shape, (self.width, self.width), outputs, self.activation, "torch")
        if self.optimiser != "sgd":
            decoupled = self.optimiser == "adamw"
            steps = Adam(self.epochs, self.rate, weight_decay=self.decay, decoupled=decoupled)
            return FullBatch(mlp, steps)
        return MarginDescent(
            mlp,
            self.head,
            self.rate,
            self.decay,
            stop_loss=0.0,
            epochs=self.epochs,
            momentum=0.9,
            batch=self.batch,
            schedule="cosine",
            decay_biases=self.decay_biases,
        )


@dataclass(frozen=True)
class _Setting:
    source: str
    arms: dict[str, Ordinary]
    embedded: Ordinary | None = None  # the head on frozen features
    convolved: Convolutional | None = None
    strangers: int = 100  # of each class, for the head's line-up
    attack: Strongest = field(default_factory=Strongest)
    decoys: int = 1000


_SMALL = Ordinary(mix=(3,) * 10, width=300, decay=0.01, rate=0.1, epochs=3000)
_PAIR = replace(_SMALL, mix=(15, 15))
_GRID = {
    "small.relu": _SMALL,
    "small.gelu": replace(_SMALL, activation="gelu"),
    "small.leaky-relu": replace(_SMALL, activation="leaky-relu"),
    "small.silu": replace(_SMALL, activation="silu"),
    "small.tanh": replace(_SMALL, activation="tanh"),
    "small.elu": replace(_SMALL, activation="elu"),
    "small.weights-only": replace(_SMALL, decay_biases=False),
    "small.adam": replace(_SMALL, optimiser="adam", rate=1e-3),
    "small.adamw": replace(_SMALL, optimiser="adamw", rate=1e-3, decay=1.0),
    "small.logistic": replace(_PAIR, head="binary"),
    "small.mse": replace(_PAIR, head="regression"),
}
_LARGE = {
    "relu": Ordinary(),
    "unbalanced": Ordinary(mix=(46, *(6,) * 9)),
    "minibatch": Ordinary(batch=10, rate=0.02, decay=0.01, epochs=1200),
}
_GELU = Ordinary("gelu", epochs=2000)
_HEAD = Ordinary(mix=(20,) * 10, epochs=6000)
_TINY = Ordinary(mix=(3,) * 3, width=60, decay=0.01, epochs=800)
_CONVOLVED = Convolutional(
    CNN((1, 8, 8), (12,), (3,), (1,), (40,), 3, "relu", "torch"),
    2,
    Descent(400, 0.1, 0.9, 0.02),
    FeatureSpan(restarts=1, starts=4.0, variation=0.3, descent=SearchDescent(steps=60, rate=0.1)),
    20,
)
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        "digits",
        {
            "relu": _TINY,
            "gelu": replace(_TINY, activation="gelu"),
            "minibatch": replace(_TINY, batch=4),
        },
        convolved=_CONVOLVED,
        attack=quick(2, 60),
        decoys=60,
    ),
    "cpu": _Setting("cifar10", _LARGE | _GRID | {"gelu": _GELU}, _HEAD, Convolutional()),
    "paper": _Setting(
        "cifar10",
        _LARGE | _GRID | {"gelu": _GELU},
        replace(_HEAD, epochs=20_000),
        Convolutional(),
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting, metrics, sections = run.setting, dict[str, float](), list[Findings]()
    for name, arm in setting.arms.items():
        measured, shown = _images(run, name, arm)
        metrics |= prefixed(name, measured)
        if shown is not None and not name.startswith("small."):
            sections.append(shown)
    if setting.embedded is not None:
        measured, shown = _embedded(run, setting.embedded)
        metrics |= prefixed("head", measured)
        sections += [shown] if shown is not None else []
    if setting.convolved is not None:
        metrics |= prefixed("cnn", convolutional(run, setting.source, setting.convolved))
    names = {name: name for name in setting.arms}
    return Outcome(
        said=decoys(setting, metrics),
        metrics=metrics,
        attacks=sections,
        classes=list(run.records(setting.source).classes),
        charts=[
            Chart(
                "Training images back", "victim", "share", {"ours": line(names, "share", metrics)}
            )
        ],
    )


def decoys(setting: _Setting, metrics: dict[str, float]) -> dict[str, object]:
    """How often the decoys of a victim match, at most."""
    return {"lucky": max(metrics[f"{name}.decoy_rate"] for name in setting.arms)}


def _images(
    run: Run[_Setting], name: str, arm: Ordinary
) -> tuple[dict[str, float], Findings | None]:
    """A victim trained on images: how many come back, above 0.4 and above 99% of the decoys."""
    setting, key = run.setting, run.key.fold("margin-ordinary", name)
    records = run.records(setting.source)
    train, decoys = choose(records, len(arm.mix), arm.mix, setting.decoys, key.fold("choose"))
    victim, found = _attacked(run, name, arm, train, key)
    measured = victim.report | {"records": float(len(train))}
    if found.status.outcome is Ended.NOT_APPLICABLE:
        return measured | {"good": 0.0, "share": 0.0, "decoy_rate": 0.0, "refused": 1.0}, None
    scores = score_margin(victim.secret, found, decoys, victim.centre)
    figures, _ = above_bar(scores)
    measured |= {
        "good": figures["above_bar"],
        "share": figures["above_bar_share"],
        "low": figures["above_bar_share_low"],
        "bar": figures["bar"],
        "decoy_rate": scores.metrics["decoy_rate"],
        "ssim_median": scores.metrics["ssim_median"],
        "met": float(met(found, victim.centre)),
        "refused": 0.0,
    }
    spec = AttackSpec(
        f"margin-{name}", f"Hidden span, victim {name}", "Buzaglo23", "the released weights"
    )
    known = Knowledge(architecture=arm.recipe(train.shape).architecture, centre=victim.centre)
    shown = margin_findings(spec, known.known(), found, scores, decoys, margins=victim.margins)
    return measured, shown


def _attacked(
    run: Run[_Setting], name: str, arm: Ordinary, train: Records, key: Key
) -> tuple[MarginVictim, Reconstruction]:
    recipe, here = arm.recipe(train.shape), run.part(f"victim {name}")
    victim = release_margin(recipe, train, **here.working(key))
    knowledge = Knowledge(architecture=recipe.architecture, centre=victim.centre)
    attack = run.setting.attack.of_head(arm.head)
    return victim, mounted(attack, knowledge, victim.release, key.fold("attack"), here)


def _embedded(run: Run[_Setting], arm: Ordinary) -> tuple[dict[str, float], Findings | None]:
    """A head on frozen features: the line-up of every feature vector among those of other images.

    On the page each image stands beside the other one whose features are most like the answer.
    """
    setting, key = run.setting, run.key.fold("margin-ordinary", "head")
    records, many = run.records(setting.source), setting.strangers * len(arm.mix)
    images, more = choose(records, len(arm.mix), arm.mix, many, key.fold("choose"))
    train, others = _features(run, images), _features(run, more)
    victim, found = _attacked(run, "head", arm, train, key)
    measured = victim.report | {"records": float(len(train))}
    if found.status.outcome is Ended.NOT_APPLICABLE:
        return measured | {"identified": 0.0, "refused": 1.0}, None
    row, cosine = _lined_up(found, train, others, victim.centre, key.fold("line-up"))
    measured |= {
        "identified": row.share,
        "chance": row.chance,
        "p": row.p,
        "strangers": float(row.strangers),
        "cosine_median": cosine,
        "met": float(met(found, victim.centre)),
        "refused": 0.0,
    }
    spec = AttackSpec(
        "margin-head", "Hidden span, a head on features", "Buzaglo23", "the released weights"
    )
    known = Knowledge(architecture=arm.recipe(train.shape).architecture, centre=victim.centre)
    behind = Pictures(images.inputs, more.inputs, others.inputs)
    rows = torch.arange(len(train))
    given = ScoringRecords(train, others, others, (), rows, pictures=behind)
    shown = vector_findings(
        spec,
        known.known(),
        found,
        score_vectors(victim.secret, found, others),
        given,
        margins=victim.margins,
        leak=leak_of(row),
    )
    return measured, shown


def _lined_up(
    found: Reconstruction, train: Records, others: Records, centre: Tensor, key: Key
) -> tuple[LineupRow, float]:
    """The line-up by cosine, of candidates that were clustered, and the median cosine of training records."""
    inputs = found.found(0) - centre
    kept, _ = distinct(inputs, found.confidence[0][found.real[0]], HiddenSpan.same)

    def cosine(candidates: Tensor, pool: Tensor) -> Tensor:
        unit = torch.nn.functional.normalize
        return unit((candidates - centre).double(), dim=1) @ unit((pool - centre).double(), dim=1).T

    clustered = found.found(0)[kept]
    release = torch.zeros(len(train), dtype=torch.long)
    places = places_for(train, release, others, key.fold("places"))
    row, _ = line_up(places, [clustered], key, alike=cosine)
    return row, float(cosine(clustered, train.inputs).max(0).values.median())


def _features(run: Run[_Setting], records: Records) -> Records:
    """Pooled features of VGG16 in place of images."""
    name = address("vgg16 features", "embedded", (digest(records),), run.key, 0)
    saved = run.store.load(name)
    if saved is None:
        net, parts = perceptual("vgg16", progress=run.progress), []
        for start in range(0, len(records), 100):
            run.progress("features of VGG16", start, len(records))
            parts.append(net.embedded(records.inputs[start : start + 100].float()))
        saved = Shard({"features": torch.cat(parts)})
        run.store.save(name, saved)
    return Records(saved["features"], records.labels, records.classes)


STUDY = Study("margin-ordinary", _SCALES, _run, threads=ONE_THREAD)
