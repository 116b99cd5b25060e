"""Split inference on images as a game: a client's network, and attackers who are met with what it sends.

The network is cut after its first convolution and before its last dense layer. All attackers of one defence
share a key, so that a shadow which several of them need is trained once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume import readers
from exhume.attacks.split.inversion import QueriedInversion, ShadowInversion, TrueHeadInversion
from exhume.core.contract import Attack, Key, Knowledge, Records
from exhume.defences.split.ensembler import Ensembler, likeness
from exhume.models.split.inverter import Decoder, ShadowHead
from exhume.models.split.networks import ResNet18
from exhume.models.split.pipeline import Pipeline
from exhume.readers import RecordsByRole, Sizes
from exhume.score.features import Distance, InputScores, score_constant, score_inputs
from exhume.studies.arms import mounted
from exhume.studies.framework import Run
from exhume.train.single import Schedule, SplitDefence, SplitJob
from exhume.victims import secret_of
from exhume.victims.split import queried_knowledge, release_features, server_knowledge

Defences = Mapping[str, tuple[SplitDefence, Key]]
"""By name, each with the key of its training."""


@dataclass(frozen=True)
class ClientSetting:
    """Who holds how many images, and the network that the client trains on its own."""

    sizes: Sizes  # fixed: the client's; shadow: the attacker's; public: what the client sent before
    width: int
    training: Schedule
    source: str = "cifar10"
    augment: bool = True
    max_pool: bool = True
    halvings: int = 0  # how often images are halved before anything else
    size: int = 0  # to which a user's own images are cropped and resized in place of that

    def deviation(self, networks: str, images: str = "images", seen: str = "") -> str:
        """The sizes in words."""
        return (
            f"{networks} of width {self.width} trained on {self.sizes.fixed:,} {images}; the attacker "
            f"holds {self.sizes.shadow:,} others{seen} and attacks {self.sizes.target:,}."
        )


PAPER = ClientSetting(
    Sizes(25_000, 1_000, 20_000, 4_000, 10_000), width=64, training=Schedule(100, 128, 0.1)
)


def inversion(channels: int, epochs: int, batch: int, shadow_epochs: int = 0) -> ShadowInversion:
    """The paper's attacker. shadow_epochs: of its shadow; 0: as many as of its decoder."""
    schedule = Schedule(epochs, batch, 3e-3, "adam", 0.0)
    longer = replace(schedule, epochs=shadow_epochs or epochs)
    head, decoder = ShadowHead(channels), Decoder(channels)
    return ShadowInversion((0,), head, decoder, longer, schedule, upright=False)


def bound_of(attack: ShadowInversion) -> TrueHeadInversion:
    """The decoder with the client's head known."""
    return TrueHeadInversion(attack.decoder, attack.decoder_schedule)


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a table: what an attacker brought back from one defence."""

    scores: InputScores
    observed: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @staticmethod
    def of(kept: Mapping[str, Tensor]) -> Row:
        """The row that an arm was kept as."""

        def named(prefix: str) -> dict[str, Tensor]:
            own = (name for name in kept if name.startswith(prefix))
            return {name.removeprefix(prefix): kept[name] for name in own}

        scores = InputScores(named("each."), kept["targets"], kept["images"])
        observed = {name: float(value) for name, value in named("observed.").items()}
        return Row(scores, observed, float(kept["seconds"]))

    @property
    def metrics(self) -> dict[str, float]:
        return {measure: self.mean(measure) for measure in self.scores.each} | dict(self.observed)

    def mean(self, measure: str) -> float:
        return float(self.scores.each[measure].mean())

    def kept(self, shown: int) -> dict[str, Tensor]:
        """As an arm is kept: every measure, what the attacker observed, and the first images."""
        found = {f"each.{measure}": values for measure, values in self.scores.each.items()}
        numbers = {f"observed.{n}": value for n, value in self.observed.items()}
        numbers["seconds"] = self.seconds
        found |= {n: torch.tensor(value, dtype=torch.float64) for n, value in numbers.items()}
        found["images"] = self.scores.reconstructions[:shown].contiguous()
        found["targets"] = self.scores.targets[:shown].contiguous()
        return found


@dataclass(frozen=True, eq=False)
class SplitGame:
    """Records dealt out, networks to be trained. Its pieces can be made in any order."""

    run: Run[Any]
    key: Key
    parts: RecordsByRole
    job: SplitJob
    defences: Defences
    distance: Distance | None = None

    @staticmethod
    def of(run: Run[Any], client: ClientSetting, key: Key, defences: Defences) -> SplitGame:
        resized = client.size and run.asked.data
        records = run.placed(client.source, client.size)
        records = _halved(records, 0 if resized else client.halvings)
        parts = readers.split(records, client.sizes, key.fold("split"))
        network = ResNet18(records.shape, len(records.classes), client.width, client.max_pool)
        job = SplitJob(
            network, "conv1", "pool", parts.fixed, client.training, augment=client.augment
        )
        return SplitGame(run, key, parts, job, defences)

    def pipeline(self, name: str) -> Pipeline:
        """The network of a defence, trained now or before."""
        (defence, key), run = self.defences[name], self.run.part(name)
        return defence.train(self.job, **run.working(key))

    def meet(self, pipeline: Pipeline, attack: Attack, defence: str, row: str = "") -> Row:
        """One attacker against one defence. row: what progress calls them, if not by the defence."""
        sent = self.key.fold("sent", defence)  # of fresh noise, where there is some
        release, secret = release_features(pipeline, self.parts.target, sent)
        key, run = self.key.fold("attack", defence), self.run.part(row or defence)
        found = mounted(attack, self._known(pipeline, attack), release, key, run)
        apart = (
            -found.confidence[:, 0].double().mean()
        )  # of what is sent for the answers, where so judged
        seen = {**found.observed, "mismatch": float(apart)}
        return Row(score_inputs(secret, found, self.distance), seen, found.cost.seconds)

    def _known(self, pipeline: Pipeline, attack: Attack) -> Knowledge:
        """What such an attacker needs: only one of them may ask, only the bound has the head."""
        held, head = self.parts.shadow, isinstance(attack, TrueHeadInversion)
        if isinstance(attack, QueriedInversion):
            return queried_knowledge(pipeline, held)
        return server_knowledge(
            pipeline, held, earlier=self.parts.public, with_head=head, key=self.key.fold("earlier")
        )

    def holding(self, records: Records) -> SplitGame:
        """This game with other records in the attacker's hands."""
        return replace(self, parts=replace(self.parts, shadow=records))

    def mean_image(self) -> Row:
        """The null: the mean of the attacker's own records."""
        image, secret = self.parts.shadow.inputs.mean(0), secret_of(self.parts.target)
        return Row(score_constant(secret, image, self.distance))

    def accuracy(self, pipeline: Pipeline) -> float:
        return pipeline.accuracy(self.parts.test.inputs, self.parts.test.labels)

    def likeness(self, name: str, pipeline: Pipeline) -> float:
        """What became of eq. 3's cosine in an Ensembler."""
        defence, key = self.defences[name]
        assert isinstance(defence, Ensembler)
        bodies = defence.stage_one(self.job, key=key, store=self.run.store)
        return likeness(pipeline, bodies, self.parts.test.inputs)


def _halved(records: Records, times: int) -> Records:
    inputs = records.inputs
    for _ in range(times):
        inputs = F.avg_pool2d(inputs, 2)
    return Records(inputs, records.labels, records.classes)
