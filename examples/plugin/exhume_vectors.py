"""Two additions to exhume: an attack on updates, and embeddings in a vector store as a kind of release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from exhume.attacks.releases import BatchAnswer, EachGradient
from exhume.auditing import case as auditing
from exhume.auditing.case import Case, Row
from exhume.auditing.kinds.update import UpdateCase
from exhume.core import contract
from exhume.core.contract import Key, Knowledge, NotApplicable, Reconstruction, Records
from exhume.core.results import AttackSpec
from exhume.readers import TextReading
from exhume.score.places import places_for
from exhume.score.targets import score_targets
from exhume.settings import Brief, ReleaseSettings
from exhume.settings.schema import SharedText, setting
from exhume.victims import secret_of

# An attack on updates: a class, and a row


@dataclass(frozen=True)
class LeadingDirections:
    """The leading right singular vectors of the first layer's gradient, stretched to [0, 1].

    Sees: `Gradient`, the first layer.
    Assumes: that layer is fully connected to the record, whose values are not negative.
    Guarantees: of a batch of one the record up to its contrast. The layer needs no bias.
    Reference: none.
    """

    largest: int = 4  # candidates kept

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: contract.Store, progress: contract.Progress
    ) -> EachGradient:
        net = knowledge.architecture
        if net is None or net.layout.shapes[0][1:] != (math.prod(net.input_shape),):
            raise NotApplicable("the first layer is not fully connected", ever=False)
        return EachGradient(net.input_shape, partial(self._one, net), "it", "leading directions")

    def _one(self, net: contract.Architecture, gradient: Tensor, *_: object) -> BatchAnswer:
        first = next(iter(net.layout.split(gradient).values()))  # (k, d)
        _, sizes, directions = torch.linalg.svd(first, full_matrices=False)
        images = (directions * directions.sum(1, keepdim=True).sign())[: self.largest]
        images = (images / images.amax(1, keepdim=True)).clamp(0, 1)
        return BatchAnswer(images.reshape(-1, *net.input_shape), sizes[: self.largest])


def rows_on_updates(case: UpdateCase) -> list[Row]:
    """What the entry point `exhume.attacks` adds to audits of updates."""
    sees, count = "the gradient of the first layer", len(case.updates)
    spec = AttackSpec("leading-directions", "Leading directions of the gradient", "", sees)
    return [Row(spec, LeadingDirections(), "sees a client's update", 0.1 * count, count)]


# A kind of release: its section, an attack, a case


@dataclass(frozen=True)
class EmbeddingsSettings(ReleaseSettings):
    """Vectors of private records in a store that others can read."""

    vectors: str = setting(
        "", "An .npy file: a vector for each record.", file=True, example="vectors.npy"
    )
    records: SharedText = setting(None, "The records behind the vectors.", shared="data")


@dataclass(frozen=True)
class RidgeInversion:
    """A linear map from vectors to records, fitted on records that the adversary embeds itself.

    Sees: `Activations`, the vectors.
    Assumes: records like the private ones, with their vectors.
    Guarantees: nothing.
    Reference: none; the least that an attacker of features does.
    """

    strength: float = 1e-3  # of the ridge, relative to the vectors' mean square
    known: Knowledge = Knowledge()

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: contract.Store, progress: contract.Progress
    ) -> RidgeInversion:
        knowledge.require("a ridge", "shadow", "answers")
        return replace(self, known=knowledge)

    def run(self, releases: contract.Release) -> Reconstruction:
        records, vectors = self.known.shadow, self.known.answers
        assert isinstance(releases, contract.Activations)
        assert records is not None  # so `prepare` has it
        assert vectors is not None
        centre, mean = vectors.mean(0), records.inputs.mean(0)
        seen, wanted = (vectors - centre).double(), (records.inputs - mean).flatten(1).double()
        ridge = self.strength * seen.square().sum() / seen.shape[1] * torch.eye(seen.shape[1])
        weights = torch.linalg.solve(seen.T @ seen + ridge.double(), seen.T @ wanted)
        answers = ((releases.values - centre).double() @ weights).float()
        candidates = answers.reshape(-1, 1, *records.shape) + mean
        status = contract.Status(contract.Outcome.CONVERGED)
        return Reconstruction(candidates, torch.zeros(candidates.shape[:2]), status)


@dataclass(frozen=True, eq=False)
class EmbeddingsCase(Case):
    kind_name = "embeddings"
    title = "the vector store"

    source: str
    seed: int
    records: Records
    vectors: Tensor  # (n, e)
    threads: int = 0

    @property
    def key(self) -> Key:
        return Key.from_seed(self.seed).fold("embeddings")

    @cached_property
    def roles(self) -> list[Tensor]:
        """Rows of the targets, of what the adversary embeds itself, and of strangers."""
        order = torch.randperm(len(self.records), generator=self.key.fold("roles").generator())
        return list(order.tensor_split([len(order) // 4, len(order) // 2]))

    def resolved(self, brief: Brief, store: contract.Store) -> EmbeddingsCase:
        return replace(self, threads=brief.settings.machine.threads)

    def inputs(self) -> auditing.Inputs:
        names = ("in the store", "embedded by the adversary", "strangers")
        uses = tuple(zip(map(len, self.roles), names, strict=True))
        return auditing.Inputs(self.source, self.seed, self.threads, uses=uses)

    def rows(self) -> list[Row]:
        spec = AttackSpec("ridge", "Ridge from vectors to records", "", "the vectors in the store")
        threat = "sees the vectors; can embed records of its own"
        return [Row(spec, RidgeInversion(), threat, 1.0, len(self.roles[0]))]

    def questions(self, row: Row) -> list[auditing.Question]:
        targets, held, _ = self.roles
        known = Knowledge(shadow=self.records[held], answers=self.vectors[held])
        released = contract.Activations(self.vectors[targets], "vectors")
        return [auditing.Question(released, known, self.key.fold(row.id))]

    def seats(self, row: Row, answers: Sequence[auditing.Answer]) -> auditing.Seats:
        """Every vector is a release of its own, so that other targets are strangers, too."""
        targets, held, others = (self.records[rows] for rows in self.roles)
        each = torch.arange(len(targets))
        places = places_for(targets, each, others, self.key.fold("places"), held=held)
        candidates = [answers[0].found.found(place) for place in each.tolist()]
        return auditing.Seats(places, candidates, self.key.fold("line-up"))

    def score(
        self, row: Row, answers: Sequence[auditing.Answer], ranks: Tensor | None
    ) -> auditing.Scored:
        targets, held, _ = (self.records[rows] for rows in self.roles)
        found, key = answers[0].found, self.key.fold("score")
        scores = score_targets(secret_of(targets), found, held, key, baselines={})
        return auditing.Scored(scores.metrics, scores.evidence, baselines=scores.beside)

    def ladders(self) -> list[auditing.Ladder]:
        """The same store, with numbers of the record itself beside each vector."""
        rungs = tuple(
            auditing.Rung(str(n), f"with {n} numbers beside it", 1.0, partial(self._wider, n))
            for n in (64, 16, 4)
        )
        return [auditing.Ladder("numbers beside each vector", "none", "in your store", rungs)]

    def _wider(self, count: int, *_: object) -> EmbeddingsCase:
        records = self.records.inputs.flatten(1)
        draw = torch.randn(records.shape[1], count, generator=self.key.fold("wider").generator())
        return replace(self, vectors=torch.cat([self.vectors, records @ draw], 1))


def read_embeddings(brief: Brief, load: auditing.Load) -> EmbeddingsCase | None:
    section = brief.section(EmbeddingsSettings)
    if section is None:
        return None
    records = load(section.records, TextReading())
    vectors = torch.from_numpy(np.load(section.vectors, allow_pickle=False)).float()
    if len(vectors) != len(records):
        raise contract.ExhumeError(f"vectors: {len(vectors)} given for {len(records)} records")
    return EmbeddingsCase(section.records, brief.settings.seed, records, vectors)


EMBEDDINGS = auditing.Kind(
    EmbeddingsCase, "What embeddings give away", read_embeddings, EmbeddingsSettings
)
