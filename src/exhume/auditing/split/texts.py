"""Attackers of a client that sends texts, and how what they read is scored: by tokens in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume import readers
from exhume.attacks.split.as_sent import WordsAsSent
from exhume.attacks.split.cipher import FOUND, NO_POSITIONS, SubstitutionCipher
from exhume.attacks.split.token_search import KnownHead, ShadowReading
from exhume.auditing.split.attackers import HEAD_KNOWN, Attacker
from exhume.auditing.split.cut import Scored
from exhume.auditing.split.text_form import TextForm, positions_of
from exhume.core.contract import Key, NotApplicable, Reconstruction
from exhume.models.split.blueprint import OwnNetwork
from exhume.models.split.inverter import OwnForm
from exhume.models.split.pipeline import Pipeline
from exhume.score.lineup import Alike
from exhume.score.texts import NOTHING, alike_texts, score_texts
from exhume.settings import SplitSettings
from exhume.train.single import Schedule
from exhume.victims import keep_secret

__all__ = ["TEXT_FEW", "TEXT_NAMES", "Texts"]

TEXT_NAMES = ("as-sent", "frequency", "cipher", "shadow", HEAD_KNOWN)
TEXT_FEW = ("as-sent", "cipher", HEAD_KNOWN)
"""Those who are tried at depths that are not in use."""

_ANY = Key.from_seed(0)


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts of one length; places of padding do not count."""

    settings: SplitSettings
    text: TextForm
    shape: tuple[int, ...]
    second: str  # last layer of the body

    @property
    def padding(self) -> int | None:
        return self.text.padding

    @property
    def alike(self) -> Alike | None:
        return alike_texts(self.padding, ordered=True)

    def attacker(self, name: str, pipeline: Pipeline, form: OwnForm | None) -> Attacker:
        """form: of the client's head, where it is not the network's own, cut."""
        if form is None:
            form = OwnForm(OwnNetwork(self.settings.model, self.shape), pipeline.cut, self.second)
        reading = KnownHead(self.text.vocabulary)
        if name in ("frequency", "cipher"):
            return self._cipher(name, pipeline, form)
        if name == "shadow":
            schedule = Schedule(self.settings.attack_epochs, self.settings.batch, 1e-2, "adam", 0.0)
            attack = ShadowReading(form, reading, schedule)
            return Attacker(name, "Reading through a shadow of the head", attack, "Ensembler24")
        if name == HEAD_KNOWN:
            return Attacker(name, "Reading with the true head", reading)
        return Attacker(name, "What was sent, looked at", WordsAsSent(self.text.vocabulary))

    def score(self, parts: readers.Split, found: Reconstruction) -> Scored:
        answers = [
            (
                keep_secret(parts.target[place : place + 1]),
                replace(found, candidates=found.candidates[at], confidence=found.confidence[at]),
            )
            for place in range(len(parts.target))
            for at in [slice(place, place + 1)]
        ]
        scores = score_texts(answers, parts.test, _ANY, padding=self.padding, ordered=True)
        m = scores.metrics
        usual = m.get("usual_token_accuracy")
        beside = (
            "" if usual is None else f"; the usual word of every place is right for {usual:.0%}"
        )
        sentence = (
            f"{m['token_accuracy']:.0%} of the tokens are right in their place, {m['whole_texts']:.0%} of "
            f"the texts whole{beside}."
        )
        return Scored(m, scores.evidence, sentence, {"lexicon": self._lexicon(scores.evidence)})

    def _lexicon(self, evidence: Mapping[str, Tensor]) -> dict[str, object]:
        """What the token numbers of the evidence mean: for the page."""
        kept = [
            evidence[n].flatten()
            for n in ("targets", "reconstructions", "nearest")
            if n in evidence
        ]
        used = torch.unique(torch.cat(kept).long()).tolist()
        words = {str(n): self.text.words[n] for n in used if 0 <= n < len(self.text.words)}
        return {"padding": self.padding, "ordered": True, "words": {**words, str(NOTHING): "?"}}

    def _cipher(self, name: str, pipeline: Pipeline, form: OwnForm) -> Attacker:
        words = {
            "frequency": "Reading the vectors as a cipher, by how often each occurs",
            "cipher": "Reading the vectors as a cipher",
        }[name]
        positions, why_not = NO_POSITIONS, None
        features = tuple(pipeline.client.noise.shape)
        if len(features) == 2 and features[:1] == self.shape:
            try:
                head = form.module(self.shape, features, _ANY)
                positions = positions_of(head, self.shape[0], self.text.vocabulary)
            except NotApplicable as why:
                why_not = why
            if bool(pipeline.client.noise.any()):
                positions = FOUND  # fixed noise is a position, too
        rounds = 0 if name == "frequency" else SubstitutionCipher().rounds
        attack = SubstitutionCipher(rounds, 0.0, positions, self.padding, NOTHING)
        return Attacker(name, words, attack, why_not=why_not)
