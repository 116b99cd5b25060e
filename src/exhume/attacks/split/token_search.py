"""Read texts off what a known head makes of them: word by word, then word after word in its place.

For a head that sees places one by one, every word at every place is looked up. Behind layers that mix places
the nearest words are only a beginning: each place in turn takes the word that brings what the head sends
nearest to what was sent, until none changes. Where the head is the client's own this is a bound; where it is
a shadow, an attack.

Cost: v words once through the head; then, per text and sweep, `options` words at each of l places.

`ShadowTranslation` reads a client's sentences with a shadow of its embeddings (Ensembler24, A.1).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.attacks.releases import Answer, EachSent
from exhume.attacks.split.shadow import head_of, server_of, train_shadow
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Reconstruction,
    Records,
    Release,
    Store,
    silent,
)
from exhume.models.drawing import he_normal
from exhume.models.split.inverter import OwnForm
from exhume.models.split.seq2seq import PADDING, Translator, TranslatorBody, TranslatorWords
from exhume.store.shards import digest
from exhume.train.single import Schedule, train_module, train_translator, word_accuracy

_AT_ONCE = 2048  # texts of one pass
_EXACT = 1e-3  # relative: what the head sends is what was sent
_COMPARED = 2000  # of the server's texts, whose vectors are compared
_JUDGED = 50  # of the server's texts, to see whether a shadow reads itself
_SCHEDULE = Schedule(epochs=10, batch=64, rate=1e-2, optimiser="adam", weight_decay=0.0)
_ASIDE = 0.1  # share of the pairs that judges shadow and decoder


@dataclass(frozen=True)
class KnownHead:
    """Find the tokens for which a known head sends what was sent: a bound, and no attack.

    Sees: `Activations`, what the client sends for n texts.
    Assumes: the part named head, texts of the same kind for the usual words; the number of words.
    Guarantees: nothing about the truth is used. A head that sees places one by one is read exactly unless
    two words send the same. No randomness.
    Reference: ours.
    """

    vocabulary: int
    options: int = 24  # words that are tried at a place
    sweeps: int = 6  # over all places; a text that is explained ends earlier

    def __post_init__(self) -> None:
        if self.vocabulary < 1 or self.options < 1 or self.sweeps < 0:
            raise ExhumeError(f"vocabulary and options at least 1, sweeps at least 0: {self}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> HeadReading:
        who = "reading texts off a known head"
        held, features = knowledge.require(who, "shadow", "features")
        head = head_of(knowledge, who)
        return HeadReading(self, head, held, features, {}, Cost(), progress)


@dataclass(frozen=True)
class ShadowReading:
    """Train a shadow of the client's own form around the frozen body, and read the client as if it were that.

    Sees: `Activations`, what the client sends for n texts.
    Assumes: the server's body, labelled texts of the training distribution, the architecture of the head.
    No query.
    Guarantees: nothing about the truth is used; how well the shadow classifies held-out texts, and how many
    of its own words it reads, can be observed, and are. Deterministic from the key; resumable.
    Reference: Ensembler24, A.1, for classifiers.
    """

    form: OwnForm
    reading: KnownHead
    schedule: Schedule
    match: float = 0.0  # weight of the moments of what the client has sent before

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> HeadReading:
        server = server_of(knowledge, "a shadow of the embeddings")
        started = time.perf_counter()
        shadow = train_shadow(
            server,
            (0,),
            self.form,
            self.schedule,
            match=self.match,
            key=key.fold("shadow", "texts"),
            store=store,
            progress=progress,
        )
        held, features = server.records, server.features
        fitted = HeadReading(self.reading, shadow.head, held, features, {}, Cost(), silent)
        with torch.no_grad():
            texts = held.inputs[:_JUDGED].long()
            own = fitted.read(shadow.head(texts))
        observed = {
            "shadow_accuracy": shadow.accuracy,
            "accuracy_on_own_features": float((own == texts).double().mean()),
        }
        cost = Cost(time.perf_counter() - started, models=1)
        return HeadReading(self.reading, shadow.head, held, features, observed, cost, progress)


@dataclass(frozen=True, eq=False)
class HeadReading:
    """Good for whatever is sent through this head."""

    how: KnownHead
    head: nn.Module
    held: Records  # for the usual words
    features: tuple[int, ...]
    observed: dict[str, float]
    cost: Cost
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        shape, wanted = self.held.shape, f"{self.features} expected"
        read = EachSent(shape, self.features, wanted, self._answer, self.cost, self.observed)
        return read.run(releases)

    def _answer(self, values: Tensor) -> Answer:
        found = self.read(values)
        return found[:, None], -self.mismatch(found, values)[:, None].double()

    @torch.no_grad()
    def read(self, sent: Tensor, options: Tensor | None = None) -> Tensor:
        """(n, *features) to tokens (n, l). options: (n, l, o) words to try, best first; None: by the head."""
        if options is None:
            if sent.ndim == 3:
                options = self._nearest(sent)
            else:  # the most frequent words of each place in the server's own texts
                rows = []
                for column in self.held.inputs.long().T:
                    often = torch.bincount(column, minlength=self.how.vocabulary)
                    top = often.topk(min(self.how.options, len(often)))
                    rows.append(torch.where(top.values > 0, top.indices, top.indices[0]))
                options = torch.stack(rows).to(sent.device).expand(len(sent), -1, -1)
        found = options[:, :, 0].clone()
        for sweep in range(self.how.sweeps):
            self.progress("reading texts", sweep, self.how.sweeps)
            open_ = (self.mismatch(found, sent) > _EXACT).nonzero()[:, 0]
            before = found[open_]
            if len(open_):
                found[open_] = self._swept(before, sent[open_], options[open_])
            if torch.equal(before, found[open_]):
                break
        self.progress("reading texts", self.how.sweeps, self.how.sweeps)
        return found

    def _nearest(self, sent: Tensor) -> Tensor:
        """(n, l, o) words whose vector at a place is nearest, best first.

        In a text of nothing else, or in one of the server's own.
        """
        length = sent.shape[1]
        far = torch.full((len(sent), length, 0), 0.0, device=sent.device, dtype=sent.dtype)
        words = torch.zeros(far.shape, dtype=torch.long, device=sent.device)
        every = torch.arange(self.how.vocabulary, device=sent.device)
        for part in torch.split(every, max(1, _AT_ONCE // length)):
            vectors = self.head(part[:, None].expand(-1, length))  # (v, l, e)
            apart = torch.stack([torch.cdist(sent[:, p], vectors[:, p]) for p in range(length)], 1)
            far = torch.cat([far, apart], 2)
            words = torch.cat([words, part.expand(*apart.shape)], 2)
            keep = min(self.how.options, far.shape[2])
            far, at = far.topk(keep, dim=2, largest=False)
            words = words.gather(2, at)
        own, said = self.held.inputs[:_COMPARED].to(sent.device).long(), []
        vectors = torch.cat([self.head(part) for part in torch.split(own, _AT_ONCE)])
        for place in range(length):
            apart = torch.cdist(sent[:, place], vectors[:, place])
            best, at = apart.topk(min(keep, len(own)), dim=1, largest=False)
            both = torch.cat([far[:, place], best], 1).argsort(dim=1, stable=True)
            said.append(torch.cat([words[:, place], own[at, place]], 1).gather(1, both)[:, :keep])
        return torch.stack(said, 1)

    def _swept(self, tokens: Tensor, sent: Tensor, options: Tensor) -> Tensor:
        """Every place once, the others as they are."""
        tokens, count = tokens.clone(), options.shape[2]
        for place in range(tokens.shape[1]):
            tried = tokens[:, None].repeat(1, count + 1, 1)  # (n, o + 1, l): the last is as it is
            tried[:, :count, place] = options[:, place]
            apart = self._apart(tried.flatten(0, 1), sent.repeat_interleave(count + 1, 0))
            best = apart.view(-1, count + 1).argmin(1)
            tokens = tried[torch.arange(len(tokens), device=tokens.device), best]
        return tokens

    def _apart(self, tokens: Tensor, sent: Tensor) -> Tensor:
        """(m,) distance between what the head sends for these and what was sent."""
        parts = zip(torch.split(tokens, _AT_ONCE), torch.split(sent, _AT_ONCE), strict=True)
        return torch.cat([(self.head(x) - s).flatten(1).norm(dim=1) for x, s in parts])

    @torch.no_grad()
    def mismatch(self, tokens: Tensor, sent: Tensor) -> Tensor:
        """(n,) that distance over the size of what was sent. Observable."""
        size: Tensor = sent.flatten(1).norm(dim=1).clamp_min(1e-12)
        return self._apart(tokens, sent) / size


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
        held, target, parts = knowledge.require(
            "a shadow of the embeddings", "shadow", "answers", "parts"
        )
        body, source = parts.get("body0"), held.inputs
        if not isinstance(body, TranslatorBody):
            raise NotApplicable("parts: body0 is not the body of a translator", ever=False)
        started = time.perf_counter()
        aside = max(1, round(_ASIDE * len(source)))
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
        self, words: TranslatorWords, source: Tensor, key: Key, store: Store, progress: Progress
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

    words: TranslatorWords
    body: TranslatorBody
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
        wanted = f"{features} expected"
        read = EachSent(features[:1], features, wanted, self._answer, self.cost, self.observed)
        return read.run(releases)

    def _answer(self, values: Tensor) -> Answer:
        tokens, sure = self.decode(values)
        real = (tokens != PADDING).sum(1).clamp_min(1)
        return tokens[:, None], (sure.sum(1) / real)[:, None]
