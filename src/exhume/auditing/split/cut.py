"""One cut of a network, met with its attackers: line-ups, figures, and doubts about their silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from scipy.stats import binom
from torch import Tensor

from exhume import readers
from exhume.auditing.judging import adjusted
from exhume.auditing.split.attackers import HEAD_KNOWN, Attacker, attacker_named
from exhume.choices import device_named, moved
from exhume.core.contract import (
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Records,
    Release,
    Shard,
    Store,
)
from exhume.core.results import AttackSpec, Findings, Section, Word
from exhume.models.split.blueprint import OwnNetwork
from exhume.models.split.inverter import OwnForm
from exhume.models.split.pipeline import Pipeline
from exhume.score.features import Distance, recognise
from exhume.score.lineup import LEVEL, Alike
from exhume.score.places import Places, line_up, places_for
from exhume.score.verdict import found_something, leak_of, silent
from exhume.settings import SplitSettings
from exhume.victims import secret_of
from exhume.victims.split import release_features, server_knowledge

__all__ = ["AttackedCut", "CutAudit", "Images", "Kind", "Scored", "joined", "slug", "untrained"]

_LEARNED = (
    0.5  # of the way from chance to the network's accuracy: less, and a shadow has not learned
)
_BOUND = (
    "This adversary was given the client's head: its success means that a secret protects, not the split.",
)


@dataclass(frozen=True, eq=False)
class AttackedCut:
    """The network cut at one depth, or with a defence there, and what every attacker got."""

    where: str
    found: dict[str, Findings]  # by attacker

    @property
    def real(self) -> list[Findings]:
        """Those who do not know the head."""
        return [one for name, one in self.found.items() if name != HEAD_KNOWN]

    @property
    def bound(self) -> Findings | None:
        """The adversary who was given the head; None: it was not tried."""
        return self.found.get(HEAD_KNOWN)

    @property
    def measured(self) -> list[dict[str, float]]:
        """Figures of every attacker that could be mounted."""
        return [one.metrics for one in self.found.values() if one.metrics]

    @property
    def strongest(self) -> Findings | None:
        """The attacker without the head who brought most back; None: nothing could be scored."""
        scored = [one for one in self.real if one.section.leak is not None]
        return max(scored, key=lambda one: (one.share, _likeness(one.metrics)), default=None)

    @property
    def word(self) -> Word:
        """What these attackers say of this cut alone; silence is not checked on an easier version."""
        sections = [one.section for one in self.real if one.section.applies]
        if any(found_something(section) for section in sections):
            return "leaks"
        if self.bound is not None and found_something(self.bound.section):
            return "at risk"
        return "no leak found" if sections and all(map(silent, sections)) else "not audited"

    def name_of(self, one: Findings) -> str:
        """Of an attacker, without where it was met."""
        return one.section.spec.name.removesuffix(f", {self.where}")


@dataclass(frozen=True, eq=False)
class Scored:
    """What one attacker found, scored."""

    metrics: dict[str, float]
    evidence: dict[str, Tensor]  # for the owner's eyes
    sentence: str  # how alike it is
    notes: Mapping[str, Any] = field(default_factory=dict)  # that belong to the evidence


@runtime_checkable
class Kind(Protocol):
    """What the records are: who attacks them, and how what came back is compared with them."""

    @property
    def padding(self) -> int | None:
        """Of texts."""
        ...

    @property
    def alike(self) -> Alike | None:
        """For the line-up; None: as is usual for such records."""
        ...

    def attacker(self, name: str, pipeline: Pipeline, form: OwnForm | None) -> Attacker: ...
    def score(self, parts: readers.Split, found: Reconstruction) -> Scored:
        """Of what was found for the targets."""
        ...


@dataclass(frozen=True, eq=False)
class Images:
    """Compared by what a viewer would say; see `recognise`."""

    settings: SplitSettings
    shape: tuple[int, ...]
    second: str  # last layer of the body
    distance: Distance | None = None
    padding: int | None = None
    alike: Alike | None = None

    def attacker(self, name: str, pipeline: Pipeline, form: OwnForm | None) -> Attacker:
        if form is None:  # the network's own, cut
            form = OwnForm(OwnNetwork(self.settings.model, self.shape), pipeline.cut, self.second)
        return attacker_named(name, self.settings, pipeline, self.shape, form)

    def score(self, parts: readers.Split, found: Reconstruction) -> Scored:
        mean = parts.shadow.inputs.mean(0)
        scored = recognise(secret_of(parts.target), found, mean, distance=self.distance)
        m = scored.metrics
        sentence = (
            f"Mean SSIM {m['ssim']:.2f}, after an affine fit {m['affine_ssim']:.2f}; the mean image has "
            f"{m['mean_image_affine_ssim']:.2f}."
        )
        return Scored(m, scored.evidence, sentence)


@dataclass(frozen=True, eq=False)
class CutAudit:
    """What all cuts of one audit share."""

    settings: SplitSettings
    parts: readers.Split
    places: Places
    tests: int  # attackers that decide
    kind: Kind
    key: Key
    store: Store
    progress: Progress

    @staticmethod
    def of(
        settings: SplitSettings,
        parts: readers.Split,
        tests: int,
        *,
        kind: Kind,
        store: Store,
        progress: Progress,
    ) -> CutAudit:
        """Every input is a release of its own, so that other targets are strangers, too."""
        key = Key.from_seed(settings.seed)
        release = torch.arange(len(parts.target))
        held = joined(parts.shadow, parts.public)
        places = places_for(
            parts.target,
            release,
            parts.test,
            key.fold("places"),
            held=held,
            padding=kind.padding,
        )
        return CutAudit(settings, parts, places, tests, kind, key, store, progress)

    def attack(
        self, pipeline: Pipeline, where: str, names: Sequence[str], form: OwnForm | None = None
    ) -> AttackedCut:
        """Every attacker named. where: completes "what is sent …"; form: of the client's head, if known."""
        device = device_named(self.settings.device or "cpu")
        pipeline, parts = pipeline.to(device), moved(self.parts, device)
        test = parts.test
        requests = self.key.fold("requests", where)  # of fresh noise, where there is some
        release, _ = release_features(pipeline, parts.target, requests.fold("targets"))
        met = {}
        for name in names:
            attacker = self.kind.attacker(name, pipeline, form)
            knowledge = server_knowledge(
                pipeline,
                parts.shadow,
                earlier=parts.public,
                with_head=attacker.given_head,
                key=requests.fold("earlier"),
            )
            met[name] = attacker, self._meet(attacker, knowledge, release, where)
        accuracy = pipeline.accuracy(test.inputs, test.labels, requests.fold("test"))
        general = untrained(pipeline, test, accuracy, where)
        shadows = _unlearned([one for _, one in met.values()], accuracy, len(test.classes), where)
        found = {}
        for name, (attacker, one) in met.items():
            doubt = general or (shadows if attacker.uses_shadow else "")
            doubt = doubt if one.section.applies else ""
            found[name] = replace(one, section=replace(one.section, doubt=doubt))
        for_this_cut = adjusted(list(found.values()), 0)  # those in use: again, for the audit
        return AttackedCut(where, dict(zip(found, for_this_cut, strict=True)))

    def _meet(
        self,
        attacker: Attacker,
        knowledge: Knowledge,
        release: Release,
        where: str,
    ) -> Findings:
        """One attacker; one that cannot be mounted is a finding, too. What several need is trained once."""
        spec = AttackSpec(
            f"{slug(where)}-{attacker.id}",
            f"{attacker.name}, {where}",
            attacker.paper,
            "the features that the client sends",
        )

        def on_progress(stage: str, done: int, total: int) -> None:
            self.progress(f"{where}, {attacker.id}: {stage}", done, total)

        try:
            if attacker.why_not is not None:
                raise attacker.why_not
            prepared = attacker.attack.prepare(
                knowledge,
                key=self.key.fold("attack", where),
                store=self.store,
                progress=on_progress,
            )
        except NotApplicable as why:
            return Findings(Section.inapplicable(spec, why, knowledge.known()))
        found = _here(prepared.run(release))
        if found.status.outcome is Outcome.NOT_APPLICABLE:
            return Findings(Section(spec, found.status, knowledge.known()))
        scored = self.kind.score(self.parts, found)
        answers = [found.found(place) for place in range(len(self.parts.target))]
        key, alike = self.key.fold("line-up"), self.kind.alike
        row, ranks = line_up(self.places, answers, key, tests=self.tests, alike=alike)
        own = {f"own_{figure}": value for figure, value in found.observed.items()}
        section = Section(
            spec,
            found.status,
            knowledge.known(),
            {**scored.metrics, **own, "success": row.share},
            leak_of(row),
            lineup=row,
            cost=found.cost,
            notes=(scored.sentence, *_BOUND[: attacker.given_head]),
        )
        return Findings(section, evidence=Shard(scored.evidence | {"rank": ranks}, scored.notes))


def _here(found: Reconstruction) -> Reconstruction:
    """Scored where the records are read, wherever the attack ran."""
    labels = None if found.labels is None else found.labels.cpu()
    candidates, confidence = found.candidates.cpu(), found.confidence.cpu()
    return replace(found, candidates=candidates, confidence=confidence, labels=labels)


def slug(where: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in where).strip("-")


def untrained(pipeline: Pipeline, test: Records, accuracy: float, where: str) -> str:
    """Why silence says nothing: the network names records no better than the most frequent class does."""
    with torch.no_grad():
        outputs = pipeline(test.inputs[:1]).shape[1]
    guess = float(torch.bincount(test.labels.cpu()).max()) / len(test)
    if outputs != len(test.classes) or guess == 1:
        return ""  # labels mean something else to it
    right = round(accuracy * len(test))
    if float(binom.sf(right - 1, len(test), guess)) <= LEVEL:
        return ""
    return (
        f"{where}, the network names {accuracy:.0%} of held-out records, a guess {guess:.0%}: it was not "
        "trained, so that what holds for it says nothing about one that is"
    )


def _unlearned(met: Sequence[Findings], accuracy: float, classes: int, where: str) -> str:
    """Why silence of attackers with a shadow says nothing: not even the best one classifies."""
    shadows = (one.metrics.get("own_shadow_accuracy") for one in met)
    best = max((share for share in shadows if share is not None), default=1.0)
    chance = 1 / classes
    if best >= chance + _LEARNED * (accuracy - chance):
        return ""
    return (
        f"{where}, the attackers' shadows name {best:.0%} of held-out records where the network names "
        f"{accuracy:.0%}, so they are no attackers; raise --attack-epochs or --held"
    )


def _likeness(metrics: Mapping[str, float]) -> float:
    return metrics.get("affine_ssim", metrics.get("token_accuracy", 0.0))


def joined(one: Records, other: Records) -> Records:
    """The records of both."""
    inputs = torch.cat([one.inputs, other.inputs])
    return replace(one, inputs=inputs, labels=torch.cat([one.labels, other.labels]))
