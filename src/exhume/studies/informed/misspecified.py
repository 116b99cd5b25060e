"""What if the informed adversary is wrong about something? Every mistake is made, and its effect measured.

Right knowledge beside: another initialisation, some or all other fixed records, another learning
rate, weights released with fewer bits (known to the adversary or not), two unknown records in place of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from exhume import data
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.auditing import Game, dealt, informed_game
from exhume.choices import recipe_for, resolve
from exhume.contract import Progress, Records, Store, Weights
from exhume.defences.rounding import FORMATS, Rounding
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.settings import DataSettings, Settings
from exhume.studies.arms import Arm, play
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned
from exhume.train.functional import accuracy
from exhume.victims.informed import release_two_each

__all__ = ["STUDY"]

_SCALES: dict[Scale, DataSettings] = {
    "smoke": DataSettings("mnist", fixed=50, targets=30, shadows=120, public=60, test=100),
    "cpu": DataSettings("mnist", fixed=300, targets=200, shadows=800, public=500, test=2000),
    "paper": DataSettings(
        "mnist", fixed=10_000, targets=998, shadows=38_000, public=10_000, test=1
    ),
}
_SHARES = {"one": 0.0, "1%": 0.01, "10%": 0.1, "all": 1.0}  # of the fixed set that is wrong
_RATES = {"0.1%": 1.001, "1%": 1.01, "10%": 1.1, "100%": 2.0}  # times the true learning rate
_ROUNDED = tuple(name for name in FORMATS if name != "fp32")


@dataclass(frozen=True, eq=False)
class _Bench:
    """One victim, to be attacked with several kinds of knowledge."""

    game: Game
    settings: Settings
    records: Records
    store: Store
    progress: Progress

    def attack(self, game: Game, release: Weights | None = None) -> Arm:
        closed = ClosedForm(chunk=self.settings.machine.chunk)
        return play(game, closed, store=self.store, progress=self.progress, release=release)

    def believing(self, **wrong: Any) -> Game:
        return replace(self.game, knowledge=replace(self.game.knowledge, **wrong))


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    records = data.load("mnist", progress=progress)
    settings = pinned(resolve(Settings(seed=seed, data=_SCALES[scale]), records), folder)
    store = folder.store()
    game = informed_game(settings, records, store=store, progress=progress)
    bench = _Bench(game, settings, records, store, progress)
    arms = {"right": bench.attack(game), **_wrong_start(bench), **_wrong_records(bench)}
    arms |= _wrong_rate(bench)
    rounded, accuracies = _rounded(bench)
    arms |= rounded | _two_records(bench)
    metrics = {name: value for arm in arms for name, value in arms[arm].metrics(arm).items()}
    return Outcome(
        claims=_claims(arms),
        metrics=metrics | accuracies,
        classes=list(records.classes),
        deviations=[
            "Balle22 assumes all of this known; the mistakes and their sizes are ours.",
            "The attack is the closed form; the wrong records come from the adversary's public ones.",
        ],
        charts=[_chart(arms)],
    )


def _wrong_start(bench: _Bench) -> dict[str, Arm]:
    other = bench.game.recipe.architecture.initial(bench.game.key.fold("another start"))
    return {"other_seed": bench.attack(bench.believing(initial=other))}


def _wrong_records(bench: _Bench) -> dict[str, Arm]:
    """The adversary has other records in place of some fixed ones."""
    parts = dealt(bench.settings, bench.records)
    arms = {}
    for name, share in _SHARES.items():
        count = max(1, round(share * len(parts.fixed)))
        count = min(count, len(parts.public))
        fixed = Records(
            torch.cat([parts.public.inputs[:count], parts.fixed.inputs[count:]]),
            torch.cat([parts.public.labels[:count], parts.fixed.labels[count:]]),
            parts.fixed.classes,
        )
        arms[f"other_records.{name}"] = bench.attack(bench.believing(fixed=fixed))
    return arms


def _wrong_rate(bench: _Bench) -> dict[str, Arm]:
    arms = {}
    for name, factor in _RATES.items():
        rate = bench.settings.victim.rate * factor
        recipe = recipe_for(bench.settings.with_values("victim", rate=rate), bench.records)
        arms[f"other_rate.{name}"] = bench.attack(bench.believing(recipe=recipe))
    return arms


def _rounded(bench: _Bench) -> tuple[dict[str, Arm], dict[str, float]]:
    """Fewer bits, and an adversary who did not expect them, or who rounds its shadow models too."""
    arms, accuracies = {}, {}
    release, recipe = bench.game.victim[0], bench.game.recipe
    test = dealt(bench.settings, bench.records).test
    for name in ("fp32", *_ROUNDED):
        defence = Rounding(name)
        safer = defence.protect(release, bench.game.key)
        assert isinstance(safer, Weights)
        right = accuracy(recipe.architecture, safer.parameters[:50], test)
        accuracies[f"{name}.test_accuracy"] = float(right.mean())
        if defence.strength:
            arms[f"{name}.unexpected"] = bench.attack(bench.game, safer)
            knowing = bench.believing(recipe=defence.harden(recipe))
            arms[f"{name}.expected"] = bench.attack(knowing, safer)
    return arms, accuracies


def _two_records(bench: _Bench) -> dict[str, Arm]:
    parts = dealt(bench.settings, bench.records)
    initial = bench.game.knowledge.initial
    assert initial is not None  # the informed adversary has it
    release, first, second = release_two_each(
        bench.game.recipe,
        initial,
        parts.fixed,
        parts.target,
        key=bench.game.key,
        store=bench.store,
        chunk=bench.settings.machine.chunk,
        progress=bench.progress,
    )
    return {
        "two_records.first": bench.attack(replace(bench.game, victim=(release, first))),
        "two_records.second": bench.attack(replace(bench.game, victim=(release, second))),
    }


def _chart(arms: dict[str, Arm]) -> Chart:
    shown = {name.replace("_", " ").replace(".", ", "): arm for name, arm in arms.items()}
    ours = [Point(name, arm.mse, *arm.interval) for name, arm in shown.items()]
    oracle = [Point(name, arm.scores.metrics["oracle_mse"]) for name, arm in shown.items()]
    return Chart(
        "Error under each mistake",
        "the adversary's mistake",
        "mean squared error, with its 95% interval",
        {"reconstruction": ours, "nearest-record oracle": oracle},
        y_scale="log",
    )


def _claims(arms: dict[str, Arm]) -> list[Claim]:
    def stops(arm: str, id_: str, statement: str) -> Claim:
        """A mistake stops the attack where success is within what chance gives."""
        found = arms[arm].scores.metrics
        return Claim(
            id_,
            statement,
            "not reported",
            f"success {found['success']:.1%} ({found['success_low']:.1%} to "
            f"{found['success_high']:.1%}), by chance {found['null_success']:.1%}; with the right "
            f"knowledge {arms['right'].scores.metrics['success']:.1%}",
            found["success_low"] <= found["null_success_high"],
        )

    return [
        stops("other_seed", "other-seed", "Another initialisation stops the attack"),
        stops("other_records.one", "one-record", "One wrong fixed record stops the attack"),
        stops("other_records.all", "all-records", "An entirely wrong fixed set stops the attack"),
        stops("other_rate.1%", "rate", "A learning rate that is off by 1% stops the attack"),
        stops("fp16.expected", "fp16", "Releasing in half precision stops the attack"),
        stops("int8.expected", "int8", "Releasing in eight-bit integers stops the attack"),
        stops("two_records.first", "two-records", "A second unknown record stops the attack"),
    ]


STUDY = Study(
    name="informed-misspecified",
    title="An informed adversary who is wrong about something",
    paper="Balle22",
    run=_run,
)
