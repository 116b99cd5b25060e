"""The attackers of a split, each against what the client sends: sections of the report, and numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from exhume import data
from exhume.attacks.split.as_sent import AsSent
from exhume.attacks.split.enumeration import SubsetSearch
from exhume.attacks.split.inversion import ShadowInversion, TrueHeadInversion
from exhume.attacks.split.shadow import LEARNED
from exhume.contract import Attack, Key, Progress, Store
from exhume.models.split.inverter import Decoder, ShadowHead
from exhume.models.split.pipeline import Pipeline
from exhume.results import AttackSpec, Findings, Section, Verdict
from exhume.score.features import Distance
from exhume.score.recognised import recognise
from exhume.score.verdict import at_risk, gravest, not_audited
from exhume.settings import SplitSettings
from exhume.train.single import Schedule
from exhume.victims.split import release_features, server_knowledge

__all__ = ["HEAD_KNOWN", "AttackedCut", "Attacker", "attack_cut"]

HEAD_KNOWN = "head-known"
_MATCH = 10.0  # weight of the moments
_SUBSETS = 10  # tried at most
_LEARNED = (
    0.5  # of the way from chance to the network's accuracy: less, and a shadow has not learned
)


@dataclass(frozen=True)
class Attacker:
    id: str
    name: str
    attack: Attack

    @property
    def given_head(self) -> bool:
        """It knows the client's head: a bound, not an attack."""
        return self.id == HEAD_KNOWN


@dataclass(frozen=True, eq=False)
class AttackedCut:
    """The network cut at one depth, or with a defence there, and what every attacker got."""

    where: str
    accuracy: float  # of the pipeline on held-out records
    classes: int
    found: dict[str, Findings]  # by attacker

    @property
    def real(self) -> list[Findings]:
        return [one for name, one in self.found.items() if name != HEAD_KNOWN]

    @property
    def bound(self) -> Findings:
        """The adversary who was given the head."""
        return self.found[HEAD_KNOWN]

    @property
    def strongest(self) -> Findings:
        """The attacker without the head who brought most back."""
        return max(self.real, key=lambda one: (one.share, one.metrics["affine_ssim"]))

    @property
    def verdict(self) -> Verdict:
        """One attacker who succeeds is enough; shadows that did not learn to classify prove nothing.

        Where only the adversary who was given the head succeeds, a secret protects the inputs, not the split.
        """
        verdict = gravest([one.verdict for one in self.real])
        shadows = (one.metrics.get("own_shadow_accuracy") for one in self.real)
        best = max((share for share in shadows if share is not None), default=1.0)
        chance, bound = 1 / self.classes, self.bound.metrics
        known = f"{bound['recognised_share']:.0%} (SSIM {bound['ssim']:.2f})"
        if verdict.word != "leaks" and self.bound.verdict.word == "leaks":
            return at_risk(
                f"The inputs are at risk {self.where}: an adversary who knows the client's head recognises "
                f"{known} of them; those who do not know it found nothing.",
                "What protects the inputs is that the head stays secret, not what is sent. Of the attackers "
                f"without it: {verdict.sentence}",
            )
        if verdict.word == "no leak found" and best < chance + _LEARNED * (self.accuracy - chance):
            return not_audited(
                f"{self.where}, the attackers' shadows name {best:.0%} of held-out records where the network "
                f"names {self.accuracy:.0%}, so they are no attackers; raise --attack-epochs or --held"
            )
        more = f"An adversary who knew the client's head would recognise {known}."
        return replace(verdict, detail=f"{verdict.detail} {more}")


def attack_cut(
    settings: SplitSettings,
    pipeline: Pipeline,
    parts: data.Split,
    where: str,
    *,
    distance: Distance | None,
    key: Key,
    store: Store,
    progress: Progress,
) -> AttackedCut:
    """Every attacker against one pipeline. where: completes "The split … leaks"."""
    found = {}
    release, secret = release_features(pipeline, parts.target)
    mean = parts.shadow.inputs.mean(0)
    for attacker in attackers_of(settings, pipeline):
        name = attacker.id
        knowledge = server_knowledge(
            pipeline, parts.shadow, earlier=parts.public, with_head=attacker.given_head
        )

        def on_progress(stage: str, done: int, total: int, name: str = name) -> None:
            progress(f"{where}, {name}: {stage}", done, total)

        prepared = attacker.attack.prepare(
            knowledge, key=key.fold("attack", where, name), store=store, progress=on_progress
        )
        brought = prepared.run(release)
        scored = recognise(secret, brought, mean, distance=distance, where=where)
        own = {f"own_{figure}": value for figure, value in brought.observed.items()}
        section = Section(
            AttackSpec(
                f"{_slug(where)}-{name}",
                f"{attacker.name}, {where}",
                "Ensembler24",
                "the features that the client sends",
            ),
            brought.status,
            knowledge.known(),
            {**scored.metrics, **own, "success": scored.leak.share},
            scored.leak,
            cost=brought.cost,
            notes=(scored.verdict.sentence, *_BOUND[: attacker.given_head]),
        )
        found[name] = Findings(section, scored.verdict, scored.evidence)
    accuracy = pipeline.accuracy(parts.test.inputs, parts.test.labels)
    return AttackedCut(where, accuracy, len(parts.test.classes), found)


_BOUND = (
    "This adversary was given the client's head: a bound, which does not decide the verdict.",
)


def attackers_of(settings: SplitSettings, pipeline: Pipeline) -> list[Attacker]:
    """A look, the paper's attacker, ours that also matches moments, subsets of several bodies, the bound."""
    schedule = Schedule(settings.attack_epochs, settings.batch, 3e-3, "adam", 0.0)
    head, decoder = ShadowHead(settings.channels), Decoder(settings.channels)
    several = len(pipeline.bodies) > 1

    def shadow(match: float) -> ShadowInversion:
        reads = LEARNED if several else (0,)
        return ShadowInversion(reads, head, decoder, schedule, schedule, match)

    attackers = [
        Attacker("as-sent", "What was sent, looked at", AsSent()),
        Attacker("shadow", "Inverting a shadow of the head", shadow(0.0)),
        Attacker("matched", "Inverting a shadow that matches moments", shadow(_MATCH)),
    ]
    if several:
        subsets = SubsetSearch(len(pipeline.client.selected), _SUBSETS, shadow(0.0))
        attackers.append(Attacker("subsets", "Inverting the best of several selections", subsets))
    bound = TrueHeadInversion(decoder, schedule)
    return [*attackers, Attacker(HEAD_KNOWN, "Inverting the true head", bound)]


def _slug(where: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in where).strip("-")
