"""Buzaglo23 tunes its attack with the truth in sight. How close does a search without it come?

Settings are drawn at random and halved again and again by what an attacker sees, how well restarts agree. For
comparison every one of them is also run in full and scored with the truth: the best of them is the choice
made in sight, their mean a choice made at random. The residual, which an attacker sees too, is ranked against
the truth as well, and eq. (6) with the authors' published point stands beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from exhume.attacks.margin.eq6 import Equation6
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.search import BlindSearch, agreement
from exhume.contract import Key
from exhume.score.correlation import Correlation, rank_correlation
from exhume.studies.arms import arm_metrics, mounted
from exhume.studies.claims import mean_of, more
from exhume.studies.framework import Chart, Claims, Outcome, Point, Run, Scale, Study
from exhume.studies.margin.game import MarginGame, from_small_start, quick
from exhume.victims.margin import choose

__all__ = ["STUDY"]

_Row = dict[str, float]
"""One setting: what an attacker sees of it, short and in full, and what the truth says."""


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


def _published(candidates: int, steps: int) -> Equation6:
    return Equation6(candidates, descent=replace(Equation6().descent, steps=steps))


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        "digits", 3, 3, 60, BlindSearch(quick(2, 30).first, 4, 8), _published(18, 30), 1, decoys=60
    ),
    "cpu": _Setting(
        "cifar10", 5, 6, 200, BlindSearch(FirstLayer(restarts=2), 16, 30), _published(60, 8000)
    ),
    "paper": _Setting(
        "cifar10", 10, 50, 1000, BlindSearch(FirstLayer(restarts=4), 64, 50), Equation6(1000)
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("margin-search")
    played = [_play(run, index) for index in range(setting.victims)]
    metrics, several = mean_of(numbers for numbers, _ in played), [rows for _, rows in played]
    seen = {name: _against(name, several, key) for name in ("agreement", "residual", "short")}
    metrics |= arm_metrics({f"rank.{name}": found for name, found in seen.items()})
    return Outcome(
        claims=_claims(metrics, seen),
        metrics=metrics | {"settings": float(sum(map(len, several)))},
        charts=[_chart(metrics)],
        classes=list(run.records(setting.source).classes[: setting.classes]),
        deviations=[
            f"{setting.classes * setting.each} images of {setting.source}, width {setting.width}; the "
            "paper tunes on 500 images.",
            "The space is that of the first-layer attack; the authors' five numbers are those of eq. (6).",
            f"Eq. (6) with the published point has {setting.published.descent.steps} steps.",
        ],
    )


def _play(run: Run[_Setting], index: int) -> tuple[dict[str, float], list[_Row]]:
    """One victim: settings chosen blindly, then every one of them in full and scored."""
    setting, records, victim = run.setting, run.records(run.setting.source), f"victim {index + 1}"
    search, key, here = setting.search, run.key.fold("margin-search", index), run.part(victim)
    drawn = choose(records, setting.classes, setting.each, setting.decoys, key.fold("choose"))
    small = from_small_start(records.shape, setting.width, setting.classes)
    recipe = replace(small, stop_loss=2e-5)
    game = MarginGame.begun(run, str(index + 1), search.base, recipe, drawn, key=key)
    prepared = search.prepare(game.knowledge, **here.working(game.key))
    trials = prepared.choose(game.victim.release)
    sent = replace(game, run=run.to_send())
    tried = {f"{victim}, setting {i}": trial for i, trial in enumerate(trials[: search.trials])}
    jobs = {name: (sent, trial.attack) for name, trial in tried.items()}
    full = here.arms("settings in full", _in_full, jobs)
    rows = [full[name] | {"short": trial.agreement} for name, trial in tried.items()]
    chosen = next(full[name] for name in tried if tried[name].attack == trials[-1].attack)
    sixth, scores = game.attacked(run.setting.published, f"{victim}, eq. (6)")
    good = [row["good"] for row in rows]
    return {
        "good_blind": chosen["good"],
        "good_sighted": max(good),
        "good_random": fmean(good),
        "good_worst": min(good),
        "good_default": good[0],
        "good_by_residual": min(rows, key=lambda row: row["residual"])["good"],
        "good_eq6": scores.metrics["good"],
        "seconds_eq6": sixth.cost.seconds,
        "rank_of_blind": float(sum(value > chosen["good"] for value in good) + 1),
        "records": float(len(game.victim.margins)),
    }, rows


def _in_full(_: Run[_Setting], job: tuple[MarginGame, FirstLayer]) -> dict[str, float]:
    game, attack = job
    found = mounted(attack, game.knowledge, game.victim.release, game.key)
    records = round(found.observed["records"])
    return {
        "good": game.scored(found).metrics["good"],
        "agreement": agreement(found.candidates[0], found.confidence[0], records),
        "residual": found.observed["residual"],
    }


def _against(name: str, several: list[list[_Row]], key: Key) -> Correlation:
    """Spearman's of what an attacker sees with the count; both are ranked within each victim."""
    seen, good = list[float](), list[float]()
    for rows in several:
        seen += _ranks([-row[name] if name == "residual" else row[name] for row in rows])
        good += _ranks([row["good"] for row in rows])
    return rank_correlation(torch.tensor(seen), torch.tensor(good), key.fold(name))


def _ranks(values: list[float]) -> list[float]:
    """Ties share their mean rank."""
    return [sum(v < one for v in values) + 0.5 * sum(v == one for v in values) for one in values]


def _claims(m: Mapping[str, float], seen: Mapping[str, Correlation]) -> Claims:
    return {
        "close": (
            "The blind choice brings back at least 90% of what the choice made with the truth does",
            "tuned with the truth",
            f"{m['good_blind']:g} against {m['good_sighted']:g}",
            m["good_blind"] >= 0.9 * m["good_sighted"],
        ),
        "better-than-random": (
            "The blind choice is better than a setting drawn at random",
            "—",
            f"{m['good_blind']:g} against {m['good_random']:.1f} on average",
            m["good_blind"] > m["good_random"],
        ),
        "agreement": (
            "Agreement between restarts ranks settings as the truth does (interval above 0)",
            "—",
            f"{seen['agreement']}; after the first short round {seen['short']}",
            seen["agreement"].low > 0,
        ),
        "residual": (
            "The residual ranks settings as the truth does (interval above 0)",
            "the objective of eq. (6)",
            f"{seen['residual']}; its choice brings back {m['good_by_residual']:g}",
            seen["residual"].low > 0,
        ),
        "published": (
            "The blind choice brings back more than eq. (6) with the published point",
            "chosen with the truth",
            *more(m["good_blind"], m["good_eq6"]),
        ),
    }


def _chart(m: Mapping[str, float]) -> Chart:
    choices = {
        "with the truth": "good_sighted",
        "blind search": "good_blind",
        "defaults": "good_default",
        "at random": "good_random",
        "least residual": "good_by_residual",
        "eq. (6), published": "good_eq6",
    }
    points = {"mean over victims": [Point(name, m[metric]) for name, metric in choices.items()]}
    title = "Images that come back, by how the setting was chosen"
    return Chart(title, "choice", "images with SSIM above 0.4", points)


_TITLE = "Settings chosen without the truth, against those chosen with it"
STUDY = Study("margin-search", _TITLE, "Buzaglo23", _SCALES, _run)
