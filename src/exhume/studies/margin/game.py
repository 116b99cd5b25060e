"""One margin victim attacked with every seed: our attack, and eq. (6) as published for as many seconds.

Seconds are turned into steps by a fixed rate, so that results do not depend on the clock. Measured on one
core for 3072-1000-1000-10, n = 100, eq. (6) with 200 candidates: one of its steps (75 ms) takes as long as
2.6 of the first layer's with as many candidates (29 ms) or 8.6 of the hidden span's with 250 (8.7 ms);
7 leaves room for the decompositions before them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from exhume.attacks.margin.eq6 import Equation6
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.hidden_span import HiddenSpan
from exhume.attacks.margin.restarts import Restarts
from exhume.attacks.margin.strongest import Strongest
from exhume.contract import Key, Knowledge, Progress, Reconstruction, Records
from exhume.report.folder import RunFolder
from exhume.report.margin import margin_section
from exhume.score.intervals import bootstrap
from exhume.score.margin import MarginScores, score_margin
from exhume.studies.study import labelled
from exhume.train.margin import MarginDescent
from exhume.victims.margin import MarginVictim

__all__ = ["MarginGame", "Played"]

_FIRST, _HIDDEN = 2.6, 7.0  # of our steps in the time of one of eq. (6)


@dataclass(frozen=True, eq=False)
class Played:
    metrics: dict[str, float]
    section: dict[str, Any]  # for the report
    good: Tensor  # (n,) share of the seeds that bring an image back


@dataclass(frozen=True, eq=False)
class MarginGame:
    """A victim, its null, and how it is attacked."""

    name: str
    attack: Strongest | FirstLayer
    seeds: int
    recipe: MarginDescent
    victim: MarginVictim
    decoys: Records
    key: Key
    folder: RunFolder
    progress: Progress

    @property
    def knowledge(self) -> Knowledge:
        return Knowledge(architecture=self.recipe.architecture, centre=self.victim.centre)

    def play(self, *, against: bool = True) -> Played:
        """Our attack with every seed, and eq. (6) too if asked for: means, and the gain paired by image."""
        ours, theirs = [], []
        for index in range(self.seeds):
            found, scores = self.once(index)
            ours.append(scores)
            if against:
                label = f"victim {self.name}, seed {index + 1}, eq. (6)"
                attack = self.published()
                theirs.append(self._score(self._attack(attack, self._key(index), label)))
            if not index:
                section = self.section(found, scores)
        metrics = self._measured(ours) | (self._gain(ours, theirs) if against else {})
        return Played(metrics, section, _good(ours).mean(0))

    def once(self, index: int) -> tuple[Reconstruction, MarginScores]:
        """Our attack with one seed."""
        label = f"victim {self.name}, seed {index + 1}"
        found = self._attack(self._headed(), self._key(index), label)
        return found, self._score(found)

    def published(self) -> Equation6:
        """Eq. (6) with the steps that take as long as our attack on this victim."""
        records = len(self.victim.margins)
        attack = Equation6(candidates=2 * records, head=self.recipe.head)
        chosen = self._choice().config
        if isinstance(chosen, HiddenSpan):
            steps = chosen.descent.steps * chosen.restarts / _HIDDEN
        else:
            assert isinstance(chosen, FirstLayer)
            fresh = min(chosen.fresh, chosen.restarts)
            each = fresh * chosen.candidates + (chosen.restarts - fresh) * chosen.later
            steps = chosen.descent.steps * (each / 2) / _FIRST
        return replace(attack, descent=replace(attack.descent, steps=max(1, round(steps))))

    def _headed(self) -> Strongest | FirstLayer:
        if isinstance(self.attack, FirstLayer):
            return replace(self.attack, head=self.recipe.head)
        return self.attack.of_head(self.recipe.head)

    def _choice(self) -> Restarts:
        prepared = self._headed().prepare(self.knowledge, key=self.key, store=self.folder.store())
        if isinstance(prepared, Restarts):
            return prepared
        return prepared.choice(self.victim.release)

    def _key(self, index: int) -> Key:
        return self.key.fold("attack", index)

    def _attack(
        self, attack: Strongest | FirstLayer | Equation6, key: Key, label: str
    ) -> Reconstruction:
        prepared = attack.prepare(
            self.knowledge,
            key=key,
            store=self.folder.store(),
            progress=labelled(self.progress, label),
        )
        return prepared.run(self.victim.release)

    def _score(self, found: Reconstruction) -> MarginScores:
        return score_margin(self.victim.secret, found, self.decoys, self.victim.centre)

    def _measured(self, ours: list[MarginScores]) -> dict[str, float]:
        """Means over the seeds; the interval is over images."""
        measured = {name: fmean(s.metrics[name] for s in ours) for name in _NAMED}
        records = len(self.victim.margins)
        low, high = bootstrap(_good(ours).mean(0), self.key.fold("good"))
        for index, score in enumerate(ours):
            measured[f"good_seed{index}"] = score.metrics["good"]
        return measured | {
            "good_low": low * records,
            "good_high": high * records,
            "records": float(records),
            "ssim_against_margin": _correlation(self.victim.margins, ours[0].members.ssim),
            **self.victim.report,
        }

    def _gain(self, ours: list[MarginScores], theirs: list[MarginScores]) -> dict[str, float]:
        """Against eq. (6): paired by image, averaged over the seeds first."""
        gain = (_good(ours) - _good(theirs)).mean(0)
        low, high = bootstrap(gain, self.key.fold("gain"))
        measured = {f"{name}_eq6": fmean(s.metrics[name] for s in theirs) for name in _NAMED}
        return measured | {
            "gain": float(gain.sum()),
            "gain_low": low * len(gain),
            "gain_high": high * len(gain),
            "steps_eq6": float(self.published().descent.steps),
        }

    def section(self, found: Reconstruction, scores: MarginScores) -> dict[str, Any]:
        """Gallery, pairs around the threshold, and SSIM against margin, for the page."""
        return margin_section(
            self.folder,
            id=f"margin-{self.name}",
            name=f"{_TITLES[type(self._choice().config)]}, victim {self.name}",
            knows=self.knowledge.known(),
            found=found,
            scores=scores,
            decoys=self.decoys,
            margins=self.victim.margins,
        )


_NAMED = ("good", "decoy_rate", "tpr_at_1pct", "ssim_at_1pct", "auc", "ssim_median")
_TITLES: dict[type, str] = {FirstLayer: "First layer", HiddenSpan: "Hidden span"}


def _good(scores: list[MarginScores]) -> Tensor:
    """(seeds, n)."""
    return torch.stack([s.members.good.double() for s in scores])


def _correlation(one: Tensor, two: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.double(), two.double()]))[0, 1])
