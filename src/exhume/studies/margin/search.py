"""Buzaglo23 tunes its attack with the truth in sight. How close does a search without it come?

Settings are drawn at random and halved again and again by what an attacker sees, how well restarts agree. For
comparison every one of them is also run in full and scored with the truth: the best of them is the choice
made in sight, their mean a choice made at random. The residual, which an attacker sees too, is ranked against
the truth as well, and eq. (6) with the authors' published point stands beside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import torch

from exhume import data
from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.eq6 import Equation6
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.search import BlindSearch, Trial, agreement
from exhume.contract import Key, Knowledge, Progress, Reconstruction, Records, Weights
from exhume.models.homogeneous import HomogeneousMLP
from exhume.report.folder import RunFolder
from exhume.scale import run_jobs
from exhume.score.correlation import Correlation, rank_correlation
from exhume.score.margin import score_margin
from exhume.settings import DataSettings, Settings
from exhume.store import NullStore
from exhume.studies.margin.search_claims import search_chart, search_claims
from exhume.studies.study import Outcome, Scale, Study, labelled, pinned, remembered
from exhume.train.margin import MarginDescent
from exhume.victims.margin import MarginVictim, choose, release_margin

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Setting:
    source: str
    classes: int
    each: int
    width: int
    search: BlindSearch
    published: Equation6
    victims: int = 3
    decoys: int = 100  # the count alone matters here


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        "digits",
        classes=3,
        each=3,
        width=60,
        search=BlindSearch(
            FirstLayer(restarts=2, descent=Descent(steps=30), contrast=0.3, largest=0.4), 4, 8
        ),
        published=Equation6(18, descent=replace(Equation6().descent, steps=30)),
        victims=1,
        decoys=60,
    ),
    "cpu": _Setting(
        "cifar10",
        classes=5,
        each=6,
        width=200,
        search=BlindSearch(FirstLayer(restarts=2), trials=16, steps=30),
        published=Equation6(60, descent=replace(Equation6().descent, steps=8000)),
    ),
    "paper": _Setting(
        "cifar10",
        classes=10,
        each=50,
        width=1000,
        search=BlindSearch(FirstLayer(restarts=4), trials=64, steps=50),
        published=Equation6(1000),
    ),
}


@dataclass(frozen=True)
class _Row:
    """One setting: what an attacker sees of it, short and in full, and what the truth says."""

    short: Trial
    good: float
    agreement: float
    residual: float
    seconds: float


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    settings = Settings(seed=seed, data=DataSettings(setting.source))
    pinned(settings.with_values("machine", threads=torch.get_num_threads()), folder)
    records = data.load(setting.source, progress=progress)
    games = []
    for index in range(setting.victims):
        key = Key.from_seed(seed).fold("margin-search", index)
        told = labelled(progress, f"victim {index + 1}")
        games.append(_Game.of(setting, records, key, folder, told))
    played = [game.play() for game in games]
    metrics = {name: fmean(one[name] for one, _ in played) for name in played[0][0]}
    key = Key.from_seed(seed).fold("margin-search")
    several = [rows for _, rows in played]
    seen = {name: _against(name, several, key) for name in ("agreement", "residual", "short")}
    for name, found in seen.items():
        metrics |= found.metrics(f"rank.{name}")
    return Outcome(
        claims=search_claims(metrics, seen),
        metrics=metrics | {"settings": float(sum(map(len, several)))},
        charts=[search_chart(metrics)],
        classes=list(records.classes[: setting.classes]),
        deviations=[
            f"{setting.classes * setting.each} images of {setting.source}, width {setting.width}; the "
            "paper tunes on 500 images.",
            "The space is that of the first-layer attack; the authors' five numbers are those of eq. (6).",
            f"Eq. (6) with the published point has {setting.published.descent.steps} steps.",
        ],
    )


@dataclass(frozen=True, eq=False)
class _Game:
    setting: _Setting
    victim: MarginVictim
    knowledge: Knowledge
    decoys: Records
    key: Key
    folder: RunFolder
    progress: Progress

    @staticmethod
    def of(
        setting: _Setting, records: Records, key: Key, folder: RunFolder, progress: Progress
    ) -> _Game:
        train, decoys = choose(
            records, setting.classes, setting.each, setting.decoys, key.fold("choose")
        )
        wide = (setting.width, setting.width)
        mlp = HomogeneousMLP(records.shape, wide, setting.classes, first_scale=1e-4)
        recipe = MarginDescent(mlp, hasten=0.003, stop_loss=2e-5)
        victim = release_margin(recipe, train, key=key, store=folder.store(), progress=progress)
        knowledge = Knowledge(architecture=mlp, centre=victim.centre)
        return _Game(setting, victim, knowledge, decoys, key, folder, progress)

    def play(self) -> tuple[dict[str, float], list[_Row]]:
        search = self.setting.search
        prepared = search.prepare(
            self.knowledge, key=self.key, store=self.folder.store(), progress=self.progress
        )
        trials = prepared.choose(self.victim.release)
        rows = self._in_sight(trials[: search.trials])
        chosen = next(row for row in rows if row.short.attack == trials[-1].attack)
        sixth = self._published()
        good = [row.good for row in rows]
        return {
            "good_blind": chosen.good,
            "good_sighted": max(good),
            "good_random": fmean(good),
            "good_worst": min(good),
            "good_default": rows[0].good,
            "good_by_residual": min(rows, key=lambda row: row.residual).good,
            "good_eq6": sixth["good"],
            "seconds_eq6": sixth["seconds"],
            "rank_of_blind": float(sum(value > chosen.good for value in good) + 1),
            "records": float(len(self.victim.margins)),
        }, rows

    def _in_sight(self, trials: list[Trial]) -> list[_Row]:
        """Every setting in full, here or on a cluster, then scored."""
        known = [self._kept(trial.attack) for trial in trials]
        shared = (self.knowledge, self.victim.release, self.key)
        jobs = [t.attack if kept is None else None for t, kept in zip(trials, known, strict=True)]
        self.progress("settings in full", 0, len(jobs))
        for index, found in run_jobs(_in_full, jobs, shared=shared):
            if found is not None:
                known[index] = self._kept(trials[index].attack, found)
            self.progress("settings in full", index + 1, len(jobs))
        rows = []
        for trial, kept in zip(trials, known, strict=True):
            assert kept is not None  # loaded, or just computed
            rows.append(_Row(trial, **kept))
        return rows

    def _kept(
        self, attack: FirstLayer, found: Reconstruction | None = None
    ) -> dict[str, float] | None:
        """The numbers of one setting: from the folder, or from what was found; None: neither."""
        if found is None and self.folder.store().load(self._name(attack).digest) is None:
            return None
        return remembered(self.folder, self._name(attack), lambda: self._numbers(found))

    def _name(self, attack: FirstLayer) -> Key:
        return self.key.fold("in full 1", repr(attack), repr(self.setting.source))

    def _numbers(self, found: Reconstruction | None) -> dict[str, float]:
        assert found is not None  # asked for only where there is something to score
        scores = score_margin(self.victim.secret, found, self.decoys, self.victim.centre)
        seen = agreement(found.candidates[0], found.confidence[0], round(found.observed["records"]))
        return {
            "good": scores.metrics["good"],
            "agreement": seen,
            "residual": found.observed["residual"],
            "seconds": found.cost.seconds,
        }

    def _published(self) -> dict[str, float]:
        told = labelled(self.progress, "eq. (6)")
        attack = self.setting.published
        prepared = attack.prepare(
            self.knowledge, key=self.key, store=self.folder.store(), progress=told
        )
        found = prepared.run(self.victim.release)
        scores = score_margin(self.victim.secret, found, self.decoys, self.victim.centre)
        return {"good": scores.metrics["good"], "seconds": found.cost.seconds}


def _in_full(shared: tuple[Knowledge, Weights, Key], attack: FirstLayer) -> Reconstruction:
    knowledge, release, key = shared
    return attack.prepare(knowledge, key=key, store=NullStore()).run(release)


def _against(name: str, several: list[list[_Row]], key: Key) -> Correlation:
    """Spearman's of what an attacker sees with the count; both are ranked within each victim."""
    seen, good = list[float](), list[float]()
    for rows in several:
        values = {
            "agreement": [row.agreement for row in rows],
            "residual": [-row.residual for row in rows],
            "short": [row.short.agreement for row in rows],
        }[name]
        seen += _ranks(values)
        good += _ranks([row.good for row in rows])
    return rank_correlation(torch.tensor(seen), torch.tensor(good), key.fold(name))


def _ranks(values: list[float]) -> list[float]:
    """Ties share their mean rank."""
    return [sum(v < one for v in values) + 0.5 * sum(v == one for v in values) for one in values]


STUDY = Study(
    name="margin-search",
    title="Settings chosen without the truth, against those chosen with it",
    paper="Buzaglo23",
    run=_run,
)
