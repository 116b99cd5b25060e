"""Read a client's sentences with a shadow of its embeddings (Ensembler24, A.1)."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.attacks.releases import features_of
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Status,
    Store,
    silent,
)
from exhume.models.drawing import he_normal
from exhume.models.split.seq2seq import PADDING, Body, Translator, Words
from exhume.store.shards import digest
from exhume.train.single import Schedule, train_module, train_translator, word_accuracy

_SCHEDULE = Schedule(epochs=10, batch=64, rate=1e-2, optimiser="adam", weight_decay=0.0)
_JUDGED = 0.1  # share of the pairs that judges shadow and decoder


@dataclass(frozen=True)
class ShadowTranslation:
    """Train embeddings of one's own around the frozen body, and a decoder of what they send.

    Sees: `Activations`, what the client sends for n sentences.
    Assumes: the server's body, sentence pairs of the training distribution, the list of words. No query.
    Guarantees: nothing about the truth is used; how well the shadow translates held-out pairs, and how
    well its own features are decoded, can be observed, and are. Deterministic from the key; resumable.
    Reference: Ensembler24, A.1.
    """

    network: Translator
    hidden: int = 256  # of the decoder
    shadow_schedule: Schedule = _SCHEDULE
    decoder_schedule: Schedule = Schedule(3, 64, 3e-3, "adam", 0.0)

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ExhumeError(f"hidden: at least 1 needed, got {self.hidden}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedTranslation:
        knowledge.require("a shadow of the embeddings", "shadow", "answers", "parts")
        assert knowledge.shadow is not None
        assert knowledge.answers is not None
        body = knowledge.parts.get("body0")
        if not isinstance(body, Body):
            raise NotApplicable("parts: body0 is not the body of a translator", ever=False)
        started = time.perf_counter()
        source, target = knowledge.shadow.inputs, knowledge.answers
        aside = max(1, round(_JUDGED * len(source)))
        words = self.network.words(key.fold("shadow")).to(source.device)
        train_translator(
            words,
            body,
            source[aside:],
            target[aside:],
            self.shadow_schedule,
            frozen=True,
            key=key.fold("shadow"),
            store=store,
            progress=progress,
            stage="training the shadow",
        )
        decoder = self._decoder(words, source[aside:], key.fold("decoder"), store, progress)
        fitted = FittedTranslation(words, body, decoder, source.shape[1], {}, Cost())
        with torch.no_grad():
            decoded = fitted.decode(words.send(source[:aside]))[0]
        real = source[:aside] != PADDING
        observed = {
            "word_accuracy": word_accuracy(words, body, source[:aside], target[:aside]),
            "accuracy_on_own_features": float((decoded == source[:aside])[real].double().mean()),
        }
        cost = Cost(time.perf_counter() - started, models=2)
        return FittedTranslation(words, body, decoder, source.shape[1], observed, cost)

    def _decoder(
        self, words: Words, source: Tensor, key: Key, store: Store, progress: Progress
    ) -> nn.Module:
        """A network from the features of one place to its word."""
        net = self.network
        with torch.no_grad():
            features = words.send(source)
        decoder = he_normal(
            lambda: nn.Sequential(
                nn.Linear(net.width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, net.source)
            ),
            key,
        ).to(source.device)

        def loss(rows: Tensor, _: torch.Generator) -> Tensor:
            logits = decoder(features[rows]).transpose(1, 2)
            return F.cross_entropy(logits, source[rows].long(), ignore_index=PADDING)

        return train_module(
            decoder,
            loss,
            len(source),
            self.decoder_schedule,
            inputs=(digest(features), digest(source)),
            key=key,
            store=store,
            progress=progress,
            stage="training the decoder",
        )


@dataclass(frozen=True, eq=False)
class FittedTranslation:
    """Good for whatever the same client sends."""

    words: Words
    body: Body
    decoder: nn.Module
    length: int
    observed: dict[str, float]
    cost: Cost

    @torch.no_grad()
    def decode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(n, l, e) to tokens (n, l) and how sure the decoder is of each, from 0 to 1."""
        real = (features != 0).any(2)
        sure, tokens = torch.softmax(self.decoder(features), 2).max(2)
        return (tokens * real).to(features.dtype), sure * real

    def run(self, releases: Release) -> Reconstruction:
        features = (self.length, self.words.net.width)
        values = features_of(releases, features[:1], features, f"{features} expected")
        if isinstance(values, Reconstruction):
            return values
        started = time.perf_counter()
        tokens, sure = self.decode(values)
        real = (tokens != PADDING).sum(1).clamp_min(1)
        return Reconstruction(
            candidates=tokens[:, None],
            confidence=(sure.sum(1) / real)[:, None],
            status=Status(Outcome.CONVERGED),
            cost=Cost(self.cost.seconds + time.perf_counter() - started, self.cost.models),
            observed=self.observed,
        )
