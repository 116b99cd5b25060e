"""What Buzaglo23 leaves for later: does protecting the records on the margin stop the reconstruction?

Victims that trained on noisy copies of all their records, of the half nearest to the margin, or of as many at
random; the noise white or with each record's own spectrum. Each is attacked twice, once by an adversary who
also tries every candidate smoothed. Stopping early and several noisy copies are there for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from exhume import data
from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.smoothed import Smoothed
from exhume.contract import Key, Knowledge, Progress, Records
from exhume.defences.margin import NoisyMargin, ProtectedDescent
from exhume.models.homogeneous import HomogeneousMLP
from exhume.report.folder import RunFolder
from exhume.report.margin import margin_section
from exhume.score.margin import score_margin
from exhume.settings import DataSettings, Settings
from exhume.studies.margin.defence_claims import EARLY, defence_charts, defence_claims
from exhume.studies.study import Outcome, Scale, Study, labelled, pinned
from exhume.train.functional import accuracy
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose, release_margin

__all__ = ["STUDY"]

_HALF = 0.5


@dataclass(frozen=True)
class _Setting:
    source: str
    classes: int
    each: int
    width: int
    attack: FirstLayer
    strengths: tuple[float, ...] = (0.5, 1.0, 2.0)
    copies: int = 4
    victims: int = 2  # networks of each kind, on images of their own
    decoys: int = 1000
    shown: tuple[str, ...] = ("none", "record.all.2", "record.margin.2")

    def arms(self) -> dict[str, NoisyMargin]:
        """Name to defence; stopping early is none of these."""
        arms = {"none": NoisyMargin()}
        for s in self.strengths:
            arms[f"white.all.{s:g}"] = NoisyMargin(s, colour="white")
            arms[f"record.all.{s:g}"] = NoisyMargin(s)
            arms[f"record.margin.{s:g}"] = NoisyMargin(s, share=_HALF)
            arms[f"record.random.{s:g}"] = NoisyMargin(s, share=_HALF, whom="random")
        middle = self.strengths[len(self.strengths) // 2]
        name = f"white.copies{self.copies}.{middle:g}"
        arms[name] = NoisyMargin(middle, colour="white", copies=self.copies)
        return arms


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        "digits",
        classes=3,
        each=4,
        width=60,
        attack=FirstLayer(restarts=1, descent=Descent(steps=40), contrast=0.3, largest=0.4),
        strengths=(2.0,),
        copies=2,
        victims=1,
        decoys=60,
    ),
    "cpu": _Setting("cifar10", classes=5, each=10, width=300, attack=FirstLayer(restarts=2)),
    "paper": _Setting(
        "cifar10", classes=10, each=50, width=1000, attack=FirstLayer(restarts=16), victims=3
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    settings = Settings(seed=seed, data=DataSettings(setting.source))
    pinned(settings.with_values("machine", threads=torch.get_num_threads()), folder)
    records = data.load(setting.source, progress=progress)
    measured: dict[str, list[dict[str, float]]] = {}
    sections: list[dict[str, Any]] = []
    for index in range(setting.victims):
        key = Key.from_seed(seed).fold("margin-defence", index)
        game = _Game(setting, records, key, folder, labelled(progress, f"victim {index + 1}"))
        for name, numbers in game.play(sections if index == 0 else None).items():
            measured.setdefault(name, []).append(numbers)
    metrics = {
        f"{name}.{metric}": fmean(one[metric] for one in several)
        for name, several in measured.items()
        for metric in several[0]
    }
    images = setting.classes * setting.each
    return Outcome(
        claims=defence_claims(setting.strengths, metrics),
        metrics=metrics | {"records": float(images), "victims": float(setting.victims)},
        attacks=sections,
        classes=list(records.classes[: setting.classes]),
        charts=defence_charts(setting.strengths, metrics),
        deviations=[
            f"{images} images in {setting.classes} classes of {setting.source}, width {setting.width}; "
            "steps grow as the loss falls.",
            "Test images are the decoys; none of them was trained on.",
        ],
    )


@dataclass(frozen=True, eq=False)
class _Game:
    """One choice of images, trained on in every way."""

    setting: _Setting
    records: Records
    key: Key
    folder: RunFolder
    progress: Progress

    def play(self, sections: list[dict[str, Any]] | None) -> dict[str, dict[str, float]]:
        setting = self.setting
        train, decoys = choose(
            self.records, setting.classes, setting.each, setting.decoys, self.key.fold("choose")
        )
        wide = (setting.width, setting.width)
        mlp = HomogeneousMLP(self.records.shape, wide, setting.classes, first_scale=1e-4)
        plain = MarginDescent(mlp, hasten=0.003, stop_loss=2e-5)
        found = {
            name: self._arm(name, plain, defence, train, decoys, sections=sections)
            for name, defence in setting.arms().items()
        }
        early = replace(plain, stop_loss=EARLY)
        found["early"] = self._arm("early", early, NoisyMargin(), train, decoys, sections=sections)
        return found

    def _arm(
        self,
        name: str,
        plain: MarginDescent,
        defence: NoisyMargin,
        train: Records,
        decoys: Records,
        *,
        sections: list[dict[str, Any]] | None,
    ) -> dict[str, float]:
        store, told = self.folder.store(), labelled(self.progress, name)
        recipe = defence.harden(plain)
        assert isinstance(recipe, MarginDescent | ProtectedDescent)  # it keeps the kind
        victim = release_margin(recipe, train, key=self.key, store=store, progress=told)
        knowledge = Knowledge(architecture=plain.architecture, centre=victim.centre)
        scored = {}
        for who, attack in (
            ("plain", self.setting.attack),
            ("smoothed", Smoothed(self.setting.attack)),
        ):
            prepared = attack.prepare(knowledge, key=self.key, store=store, progress=told)
            found = prepared.run(victim.release)
            scored[who] = score_margin(victim.secret, found, decoys, victim.centre)
            if sections is not None and who == "plain" and name in self.setting.shown:
                sections.append(
                    margin_section(
                        self.folder,
                        id=name.replace(".", "-"),
                        name=f"First layer, defence {name}",
                        knows=knowledge.known(),
                        found=found,
                        scores=scored[who],
                        decoys=decoys,
                        margins=victim.margins,
                    )
                )
        good = scored["plain"].members.good
        chosen = self._chosen(plain, defence, train, victim.centre)
        centred = Records(decoys.inputs - victim.centre, decoys.labels, decoys.classes)
        right = accuracy(plain.architecture, victim.release.parameters, centred)
        return {
            "good": float(good.sum()),
            "good_smoothed": scored["smoothed"].metrics["good"],
            "good_chosen": float(good[chosen].sum()),
            "good_others": float(good[~chosen].sum()),
            "decoy_rate": scored["plain"].metrics["decoy_rate"],
            "tpr_at_1pct": scored["plain"].metrics["tpr_at_1pct"],
            "test_accuracy": float(right[0]),
            "residual_at_truth": victim.report["residual_at_truth"],
            "on_margin": victim.report["on_margin"],
        }

    def _chosen(
        self, plain: MarginDescent, defence: NoisyMargin, train: Records, centre: torch.Tensor
    ) -> torch.Tensor:
        """(n,) who is protected; without a defence, the half that one of the margin would protect."""
        shown = defence if defence.strength else NoisyMargin(1.0, share=_HALF)
        recipe = shown.harden(plain)
        assert isinstance(recipe, ProtectedDescent)  # its strength is not zero
        centred = Records(train.inputs - centre, train.labels, train.classes)
        initial = plain.architecture.initial(self.key.fold("victim"))
        return recipe.protected(
            initial, centred, key=self.key.fold("defence"), store=self.folder.store()
        )


STUDY = Study(
    name="margin-defence",
    title="Does protecting the records on the margin stop the reconstruction?",
    paper="Buzaglo23",
    run=_run,
)
