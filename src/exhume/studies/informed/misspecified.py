"""What if the informed adversary is wrong about something? Every mistake is made, and its effect measured.

Right knowledge beside: another initialisation, some or all other fixed records, another learning
rate, weights released with fewer bits (known to the adversary or not), two unknown records in place of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from exhume.auditing import Game
from exhume.contract import Records, Weights
from exhume.defences.rounding import FORMATS, Rounding
from exhume.settings import DataSettings
from exhume.studies.arms import ERROR, Arm, Bench, arm_metrics
from exhume.studies.framework import Chart, Claims, Outcome, Point, Run, Scale, Stated, Study
from exhume.train.functional import accuracy
from exhume.victims.informed import release_two_each

__all__ = ["STUDY"]

_SCALES: dict[Scale, DataSettings] = {
    "smoke": DataSettings("mnist", 50, 30, 120, 60, 100),
    "cpu": DataSettings("mnist", 300, 200, 800, 500, 2000),
    "paper": DataSettings("mnist", 10_000, 998, 38_000, 10_000, 1),
}
_SHARES = {"one": 0.0, "1%": 0.01, "10%": 0.1, "all": 1.0}  # of the fixed set that is wrong
_RATES = {"0.1%": 1.001, "1%": 1.01, "10%": 1.1, "100%": 2.0}  # times the true learning rate


def _run(run: Run[DataSettings]) -> Outcome:
    bench = Bench.of(run, run.setting)
    right = bench.game()
    rounded, accuracies = _rounded(bench, right)
    games = {"right": right, **_wrong(bench, right), **rounded, **_two_records(bench, right)}
    arms = {name: bench.play(game) for name, game in games.items()}
    return Outcome(
        claims=_claims(arms),
        metrics=arm_metrics(arms) | accuracies,
        deviations=[
            "Balle22 assumes all of this known; the mistakes and their sizes are ours.",
            "The attack is the closed form; the wrong records come from the adversary's public ones.",
        ],
        charts=[_chart(arms)],
    )


def _believing(game: Game, **wrong: Any) -> Game:
    return replace(game, knowledge=replace(game.knowledge, **wrong))


def _wrong(bench: Bench, game: Game) -> dict[str, Game]:
    """Another start, other records in place of some fixed ones, another rate."""
    parts, victim = bench.parts, bench.settings.victim
    other = game.recipe.architecture.initial(game.key.fold("another start"))
    games = {"other_seed": _believing(game, initial=other)}
    for name, share in _SHARES.items():
        count = min(max(1, round(share * len(parts.fixed))), len(parts.public))
        fixed = Records(
            torch.cat([parts.public.inputs[:count], parts.fixed.inputs[count:]]),
            torch.cat([parts.public.labels[:count], parts.fixed.labels[count:]]),
            parts.fixed.classes,
        )
        games[f"other_records.{name}"] = _believing(game, fixed=fixed)
    for name, factor in _RATES.items():
        recipe = bench.of_victim(replace(victim, rate=victim.rate * factor)).recipe
        games[f"other_rate.{name}"] = _believing(game, recipe=recipe)
    return games


def _rounded(bench: Bench, game: Game) -> tuple[dict[str, Game], dict[str, float]]:
    """Fewer bits, and an adversary who did not expect them, or who rounds its shadow models too."""
    games, accuracies = {}, {}
    release, secret = game.victim
    for name in FORMATS:
        defence = Rounding(name)
        safer = defence.protect(release, game.key)
        assert isinstance(safer, Weights)
        right = accuracy(game.recipe.architecture, safer.parameters[:50], bench.parts.test)
        accuracies[f"{name}.test_accuracy"] = float(right.mean())
        if defence.strength:
            given = replace(game, victim=(safer, secret))
            games[f"{name}.unexpected"] = given
            games[f"{name}.expected"] = _believing(given, recipe=defence.harden(game.recipe))
    return games, accuracies


def _two_records(bench: Bench, game: Game) -> dict[str, Game]:
    start, parts, working = bench.initial, bench.parts, bench.run.working(game.key)
    release, first, second = release_two_each(
        game.recipe, start, parts.fixed, parts.target, chunk=bench.chunk, **working
    )
    secrets = {"first": first, "second": second}
    return {f"two_records.{n}": replace(game, victim=(release, s)) for n, s in secrets.items()}


def _chart(arms: Mapping[str, Arm]) -> Chart:
    shown = {name.replace("_", " ").replace(".", ", "): arm for name, arm in arms.items()}
    ours = [Point(name, arm.mse, *arm.interval) for name, arm in shown.items()]
    oracle = [Point(name, arm.scores.metrics["oracle_mse"]) for name, arm in shown.items()]
    series = {"reconstruction": ours, "nearest-record oracle": oracle}
    mistake, error = "the adversary's mistake", f"{ERROR}, with its 95% interval"
    return Chart("Error under each mistake", mistake, error, series, y_scale="log")


def _claims(arms: Mapping[str, Arm]) -> Claims:
    def stops(arm: str, statement: str) -> Stated:
        """A mistake stops the attack where success is within what chance gives."""
        found = arms[arm].scores.metrics
        return (
            statement,
            "not reported",
            f"success {found['success']:.1%} ({found['success_low']:.1%} to "
            f"{found['success_high']:.1%}), by chance {found['null_success']:.1%}; with the right "
            f"knowledge {arms['right'].scores.metrics['success']:.1%}",
            found["success_low"] <= found["null_success_high"],
        )

    return {
        "other-seed": stops("other_seed", "Another initialisation stops the attack"),
        "one-record": stops("other_records.one", "One wrong fixed record stops the attack"),
        "all-records": stops("other_records.all", "An entirely wrong fixed set stops the attack"),
        "rate": stops("other_rate.1%", "A learning rate that is off by 1% stops the attack"),
        "fp16": stops("fp16.expected", "Releasing in half precision stops the attack"),
        "int8": stops("int8.expected", "Releasing in eight-bit integers stops the attack"),
        "two-records": stops("two_records.first", "A second unknown record stops the attack"),
    }


_TITLE = "An informed adversary who is wrong about something"
STUDY = Study("informed-misspecified", _TITLE, "Balle22", _SCALES, _run, on_device=True)
