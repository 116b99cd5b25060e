"""One margin victim attacked with every seed: our attack, and eq. (6) as published for as many seconds.

Seconds are turned into steps by a fixed rate, so that results do not depend on the clock. Measured on one
core for 3072-1000-1000-10, n = 100, eq. (6) with 200 candidates: one of its steps (75 ms) takes as long as
2.6 of the first layer's with as many candidates (29 ms) or 8.6 of the hidden span's with 250 (8.7 ms);
7 leaves room for the decompositions before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from exhume.attacks.margin.descent import SearchDescent
from exhume.attacks.margin.hidden_span import HiddenSpan, Strongest
from exhume.attacks.margin.restarts import Restarts
from exhume.attacks.margin.stationarity import Equation6, FirstLayer
from exhume.auditing import margin_findings
from exhume.choices import device_named
from exhume.core.contract import Attack, Key, Knowledge, Reconstruction, Records
from exhume.core.results import AttackSpec, Findings
from exhume.models.heads import Head
from exhume.models.mlp import HomogeneousMLP
from exhume.score.intervals import bootstrap
from exhume.score.margin import MarginScores, above_bar, score_margin
from exhume.studies.arms import mounted
from exhume.studies.framework import Run, Scale
from exhume.train.functional import accuracy
from exhume.train.margin import MarginDescent
from exhume.victims.margin import MarginVictim, release_margin

GOOD = "images above SSIM 0.4"
ONE_THREAD: Mapping[Scale, int] = {
    "smoke": 1,
    "cpu": 1,
}  # several wait for each other beside other work
_FIRST, _HIDDEN = 2.6, 7.0  # of our steps in the time of one of eq. (6)


def quick(restarts: int = 1, steps: int = 40) -> Strongest:
    """An attack of seconds, on digits."""
    first = FirstLayer(
        restarts=restarts, descent=SearchDescent(steps=steps), contrast=0.3, largest=0.4
    )
    slower = SearchDescent(steps=steps, rate=0.2)
    hidden = HiddenSpan(restarts=restarts, descent=slower, contrast=0.3, largest=0.4)
    return Strongest(first, hidden)


def crowded(restarts: int, steps: int = 150) -> FirstLayer:
    """The first layer's attack for few neurons an image: smoother gates.

    Settings were chosen on one victim of 100 images, width 200, with a key of its own.
    """
    return FirstLayer(alpha=5.0, restarts=restarts, descent=SearchDescent(steps=steps, rate=0.1))


def from_small_start(
    shape: tuple[int, ...], width: int, outputs: int, *, growing: float = 0.003
) -> MarginDescent:
    """The first of two hidden layers starts small, so that training ends near the margin without decay.

    growing: the loss below which steps grow; 0: they never do. One output tells two classes apart.
    """
    small = HomogeneousMLP(shape, (width, width), outputs, first_scale=1e-4)
    head: Head = "binary" if outputs == 1 else "multiclass"
    return MarginDescent(small, head, growing_steps=growing)


def decayed(
    shape: tuple[int, ...], width: int, outputs: int, decay: float, epochs: int
) -> MarginDescent:
    """A standard start, trained with weight decay for so many epochs."""
    plain = HomogeneousMLP(shape, (width, width), outputs)
    return MarginDescent(plain, weight_decay=decay, stop_loss=0.0, epochs=epochs)


def settled(
    shape: tuple[int, ...], width: int, outputs: int, decay: float, epochs: int
) -> MarginDescent:
    """As `decayed`, with momentum and a falling rate: at rest in a tenth of the epochs."""
    plain = decayed(shape, width, outputs, decay, epochs)
    return replace(plain, rate=0.25, momentum=0.9, schedule="cosine")


@dataclass(frozen=True, eq=False)
class Played:
    metrics: dict[str, float]
    findings: Findings  # for the page
    good: Tensor  # (n,) share of the seeds that bring an image back


@dataclass(frozen=True, eq=False)
class MarginGame:
    """A victim, its null, and how it is attacked."""

    run: Run[Any]
    name: str
    attack: Strongest | FirstLayer
    recipe: MarginDescent
    victim: MarginVictim
    decoys: Records
    key: Key
    seeds: int = 1  # of the attack

    @staticmethod
    def begun(
        run: Run[Any],
        name: str,
        attack: Strongest | FirstLayer,
        recipe: MarginDescent,
        chosen: tuple[Records, Records],
        *,
        key: Key,
        own: Key | None = None,
    ) -> MarginGame:
        """Train the victim. chosen: what it is trained on, and decoys; own: the attack's key, if another."""
        train, decoys = chosen
        here = run.part(f"victim {name}").working(key)
        victim = release_margin(recipe, train, **here, device=device_named(run.asked.device))
        return MarginGame(run, name, attack, recipe, victim, decoys, own or key)

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
                theirs.append(self.attacked(self.published(), label, self._key(index))[1])
            if not index:
                shown = self.findings(found, scores)
        metrics = self._measured(ours) | (self._gain(ours, theirs) if against else {})
        return Played(metrics, shown, _good(ours).mean(0))

    def once(self, index: int) -> tuple[Reconstruction, MarginScores]:
        """Our attack with one seed."""
        label = f"victim {self.name}, seed {index + 1}"
        return self.attacked(self._headed(), label, self._key(index))

    def attacked(
        self, attack: Attack, label: str, key: Key | None = None
    ) -> tuple[Reconstruction, MarginScores]:
        """Any attack on this victim. key: None: the game's own."""
        here = self.run.part(label)
        found = mounted(attack, self.knowledge, self.victim.release, key or self.key, here)
        found = _on_cpu(found)
        return found, self.scored(found)

    def scored(self, found: Reconstruction) -> MarginScores:
        return score_margin(self.victim.secret, found, self.decoys, self.victim.centre)

    @property
    def test_accuracy(self) -> float:
        """On the decoys, none of which was trained on."""
        centred = self.decoys.inputs - self.victim.centre
        test = Records(centred, self.decoys.labels, self.decoys.classes)
        parameters = self.victim.release.parameters.cpu()
        return float(accuracy(self.recipe.architecture, parameters, test)[0])

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
        prepared = self._headed().prepare(self.knowledge, key=self.key, store=self.run.store)
        if isinstance(prepared, Restarts):
            return prepared
        return prepared.choice(self.victim.release)

    def _key(self, index: int) -> Key:
        return self.key.fold("attack", index)

    def _measured(self, ours: list[MarginScores]) -> dict[str, float]:
        """Means over the seeds; the interval is over images."""
        measured = {name: fmean(s.metrics[name] for s in ours) for name in _NAMED}
        records = len(self.victim.margins)
        low, high = bootstrap(_good(ours).mean(0), self.key.fold("good"))
        measured |= {f"good_seed{i}": score.metrics["good"] for i, score in enumerate(ours)}
        measured["above_bar"] = fmean(above_bar(score)[0]["above_bar"] for score in ours)
        return measured | {
            "good_low": low * records,
            "good_high": high * records,
            "records": float(records),
            "ssim_against_margin": margin_and_likeness(self.victim, ours[0]),
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

    def findings(
        self, found: Reconstruction, scores: MarginScores, spec: AttackSpec | None = None
    ) -> Findings:
        """Gallery, pairs around the threshold, and SSIM against margin, for the page."""
        if spec is None:
            title = f"{_TITLES[type(self._choice().config)]}, victim {self.name}"
            spec = AttackSpec(f"margin-{self.name}", title, "Buzaglo23", "the released weights")
        known, margins = self.knowledge.known(), self.victim.margins
        return margin_findings(spec, known, found, scores, self.decoys, margins=margins)


def margin_and_likeness(victim: MarginVictim, scores: MarginScores) -> float:
    """Correlation, over training images, of the margin with the SSIM of what came back."""
    both = torch.stack([victim.margins.double(), scores.members.ssim.double()])
    return float(torch.corrcoef(both)[0, 1])


_NAMED = ("good", "decoy_rate", "tpr_at_1pct", "ssim_at_1pct", "auc", "ssim_median")
_TITLES: dict[type, str] = {FirstLayer: "First layer", HiddenSpan: "Hidden span"}


def _on_cpu(found: Reconstruction) -> Reconstruction:
    """Where records are scored."""
    labels = None if found.labels is None else found.labels.cpu()
    return replace(
        found, candidates=found.candidates.cpu(), confidence=found.confidence.cpu(), labels=labels
    )


def _good(scores: list[MarginScores]) -> Tensor:
    """(seeds, n)."""
    return torch.stack([s.members.good.double() for s in scores])
