"""One margin victim attacked with every seed: our attack, and eq. (6) as published for as many seconds."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from exhume.attacks.margin.eq6 import Equation6
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.contract import Key, Knowledge, Progress, Reconstruction, Records
from exhume.report.folder import RunFolder
from exhume.score.intervals import bootstrap
from exhume.score.margin import MarginScores, score_margin
from exhume.store import NullStore, address, digest
from exhume.train.margin import MarginDescent
from exhume.victims.margin import MarginVictim

__all__ = ["MarginGame", "labelled"]


def labelled(progress: Progress, label: str) -> Progress:
    return lambda stage, done, total: progress(f"{label}: {stage}", done, total)


@dataclass(frozen=True, eq=False)
class MarginGame:
    """A victim, its null, and how it is attacked."""

    name: str
    attack: FirstLayer
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

    def play(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Both attacks with every seed: means and the paired gain, and a section for the report."""
        ours, theirs = [], []
        for index in range(self.seeds):
            found, scores = self.once(index)
            ours.append(scores)
            published = self._published(found.cost.seconds, self._key(index))
            label = f"victim {self.name}, seed {index + 1}, eq. (6)"
            theirs.append(self._score(self._attack(published, self._key(index), label)))
            if not index:
                section = self.section(found, scores)
        return self._measured(ours, theirs), section

    def once(self, index: int) -> tuple[Reconstruction, MarginScores]:
        """Our attack with one seed."""
        attack = replace(self.attack, head=self.recipe.head)
        found = self._attack(attack, self._key(index), f"victim {self.name}, seed {index + 1}")
        return found, self._score(found)

    def _key(self, index: int) -> Key:
        return self.key.fold("attack", index)

    def _attack(self, attack: FirstLayer | Equation6, key: Key, label: str) -> Reconstruction:
        prepared = attack.prepare(
            self.knowledge,
            key=key,
            store=self.folder.store(),
            progress=labelled(self.progress, label),
        )
        return prepared.run(self.victim.release)

    def _published(self, seconds: float, key: Key) -> Equation6:
        """Eq. (6) with the steps that fit into so many seconds; decided once, then kept."""
        records = len(self.victim.margins)
        attack = Equation6(candidates=2 * records, head=self.recipe.head)
        name = address(
            "margin equal seconds", attack, (digest(self.victim.release.parameters),), key, 0
        )
        store = self.folder.store()
        saved = store.load(name)
        if saved is None:
            each = (self._timed(attack, 12, key) - self._timed(attack, 2, key)) / 10
            saved = {"steps": torch.tensor(max(1, round(seconds / max(each, 1e-4))))}
            store.save(name, saved)
        return replace(attack, descent=replace(attack.descent, steps=int(saved["steps"])))

    def _timed(self, attack: Equation6, steps: int, key: Key) -> float:
        """Seconds of a short run; the difference of two leaves out what happens before the first step."""
        trial = replace(attack, descent=replace(attack.descent, steps=steps))
        prepared = trial.prepare(self.knowledge, key=key, store=NullStore())
        started = time.perf_counter()
        prepared.run(self.victim.release)
        return time.perf_counter() - started

    def _score(self, found: Reconstruction) -> MarginScores:
        return score_margin(self.victim.secret, found, self.decoys, self.victim.centre)

    def _measured(self, ours: list[MarginScores], theirs: list[MarginScores]) -> dict[str, float]:
        """Means over the seeds; the gain is paired by image, averaged over the seeds first."""

        def good(scores: list[MarginScores]) -> Tensor:
            return torch.stack([s.members.good.double() for s in scores])

        gain = (good(ours) - good(theirs)).mean(0)
        low, high = bootstrap(gain, self.key.fold("gain"))
        named = ("good", "decoy_rate", "tpr_at_1pct", "ssim_at_1pct", "auc", "ssim_median")
        measured = {name: fmean(s.metrics[name] for s in ours) for name in named}
        measured |= {f"{name}_eq6": fmean(s.metrics[name] for s in theirs) for name in named}
        for index, score in enumerate(ours):
            measured[f"good_seed{index}"] = score.metrics["good"]
        records = len(self.victim.margins)
        near = _correlation(self.victim.margins, ours[0].members.ssim)
        return measured | {
            "gain": float(gain.sum()),
            "gain_low": low * records,
            "gain_high": high * records,
            "records": float(records),
            "ssim_against_margin": near,
            **self.victim.report,
        }

    def section(self, found: Reconstruction, scores: MarginScores) -> dict[str, Any]:
        file = f"margin-{self.name}.safetensors"
        evidence = scores.evidence | {"margins": self.victim.margins}
        self.folder.write_tensors(file, evidence)
        return {
            "id": f"margin-{self.name}",
            "name": f"First layer, victim {self.name}",
            "paper": "Buzaglo23",
            "sees": "the released weights",
            "knows": list(self.knowledge.known()),
            "status": {"outcome": found.status.outcome.value, "reason": "", "ever": True},
            "metrics": {**scores.metrics, **found.observed},
            "cost": asdict(found.cost),
            "evidence": file,
            "notes": ["Beside each reconstruction: the decoy that resembles it most."],
        }


def _correlation(one: Tensor, two: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.double(), two.double()]))[0, 1])
