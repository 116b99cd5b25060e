"""The attackers of a split, each against what the client sends: sections of the report, and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from exhume import data
from exhume.attacks.split.enumeration import SubsetSearch
from exhume.attacks.split.inversion import ShadowInversion, TrueHeadInversion
from exhume.attacks.split.shadow import LEARNED
from exhume.auditing.split.settings import SplitSettings
from exhume.contract import Attack, Key, Progress, Store
from exhume.models.split.inverter import Decoder, ShadowHead
from exhume.models.split.pipeline import Pipeline
from exhume.score.features import Distance
from exhume.score.recognised import recognise
from exhume.score.verdict import Verdict, gravest, not_audited
from exhume.train.single import Schedule
from exhume.victims.split import release_features, server_knowledge

__all__ = ["Attacked", "Line", "Met", "attack_split"]

_MATCH = 10.0  # weight of the moments
_SUBSETS = 10  # tried at most
_LEARNED = (
    0.5  # of the way from chance to the network's accuracy: less, and a shadow has not learned
)


@dataclass(frozen=True)
class Line:
    """One attacker."""

    id: str
    name: str
    attack: Attack
    told_head: bool = False  # a bound, not an attack


@dataclass(frozen=True, eq=False)
class Attacked:
    """One attacker against one pipeline."""

    line: Line
    section: dict[str, Any]
    evidence: dict[str, Tensor]
    verdict: Verdict

    @property
    def metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = self.section["metrics"]
        return metrics


@dataclass(frozen=True, eq=False)
class Met:
    """One pipeline and all its attackers."""

    where: str
    accuracy: float  # of the pipeline on held-out records
    classes: int
    attacked: tuple[Attacked, ...]

    @property
    def real(self) -> list[Attacked]:
        return [one for one in self.attacked if not one.line.told_head]

    @property
    def bound(self) -> Attacked:
        """The adversary who was given the head."""
        (one,) = [one for one in self.attacked if one.line.told_head]
        return one

    @property
    def strongest(self) -> Attacked:
        """The attacker without the head who brought most back."""

        def gain(one: Attacked) -> tuple[float, float]:
            return one.metrics["recognised_share"], one.metrics["affine_ssim"]

        return max(self.real, key=gain)

    @property
    def verdict(self) -> Verdict:
        """One attacker who succeeds is enough; shadows that did not learn to classify prove nothing."""
        verdict = gravest([one.verdict for one in self.real])
        best = max(one.metrics["own_shadow_accuracy"] for one in self.real)
        chance = 1 / self.classes
        if verdict.word == "no leak found" and best < chance + _LEARNED * (self.accuracy - chance):
            return not_audited(
                f"{self.where}, the attackers' shadows name {best:.0%} of held-out records where the network "
                f"names {self.accuracy:.0%}, so they are no attackers; raise --attack-epochs or --held"
            )
        bound = self.bound.metrics
        known = (
            f"An adversary who knew the client's head would recognise {bound['recognised_share']:.0%} "
            f"(SSIM {bound['ssim']:.2f})."
        )
        return replace(verdict, detail=f"{verdict.detail} {known}")


def attack_split(
    settings: SplitSettings,
    pipeline: Pipeline,
    parts: data.Split,
    where: str,
    *,
    distance: Distance | None,
    key: Key,
    store: Store,
    progress: Progress,
) -> Met:
    """Every attacker against one pipeline. where: completes "The split … leaks"."""
    found = []
    release, secret = release_features(pipeline, parts.target)
    mean = parts.shadow.inputs.mean(0)
    for line in lines_for(settings, pipeline):
        knowledge = server_knowledge(
            pipeline, parts.shadow, earlier=parts.public, with_head=line.told_head
        )

        def told(stage: str, done: int, total: int, line: Line = line) -> None:
            progress(f"{where}, {line.id}: {stage}", done, total)

        prepared = line.attack.prepare(
            knowledge, key=key.fold("attack", where, line.id), store=store, progress=told
        )
        brought = prepared.run(release)
        scored = recognise(secret, brought, mean, distance=distance, where=where)
        section = {
            "id": f"{_slug(where)}-{line.id}",
            "name": f"{line.name}, {where}",
            "paper": "Ensembler24",
            "sees": "the features that the client sends",
            "knows": list(knowledge.known()),
            "status": {
                "outcome": brought.status.outcome.value,
                "reason": brought.status.reason,
                "ever": brought.status.ever,
            },
            "metrics": {**scored.metrics, **_own(brought.observed)},
            "baselines": [],
            "cost": asdict(brought.cost),
            "notes": [scored.verdict.sentence, *_BOUND[: line.told_head]],
        }
        found.append(Attacked(line, section, scored.evidence, scored.verdict))
    accuracy = pipeline.accuracy(parts.test.inputs, parts.test.labels)
    return Met(where, accuracy, len(parts.test.classes), tuple(found))


_BOUND = (
    "This adversary was given the client's head: a bound, which does not decide the verdict.",
)


def lines_for(settings: SplitSettings, pipeline: Pipeline) -> list[Line]:
    """The paper's attacker, ours that also matches moments, subsets where there are several, the bound."""
    schedule = Schedule(settings.attack_epochs, settings.batch, 3e-3, "adam", 0.0)
    head, decoder = ShadowHead(settings.channels), Decoder(settings.channels)
    several = len(pipeline.bodies) > 1

    def shadow(match: float) -> ShadowInversion:
        reads = LEARNED if several else (0,)
        return ShadowInversion(reads, head, decoder, schedule, schedule, match)

    lines = [
        Line("shadow", "Inverting a shadow of the head", shadow(0.0)),
        Line("matched", "Inverting a shadow that matches moments", shadow(_MATCH)),
    ]
    if several:
        subsets = SubsetSearch(len(pipeline.client.selected), _SUBSETS, shadow(0.0))
        lines.append(Line("subsets", "Inverting the best of several selections", subsets))
    bound = TrueHeadInversion(decoder, schedule)
    return [*lines, Line("head-known", "Inverting the true head", bound, told_head=True)]


def _own(observed: Mapping[str, float]) -> dict[str, float]:
    return {f"own_{name}": value for name, value in observed.items()}


def _slug(where: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in where).strip("-")
