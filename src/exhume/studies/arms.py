"""Arms: an attack mounted on a release, and one arm of the informed adversary's game with its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.baseline import holdings
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.auditing import Findings, Game, attack_targets, informed_game, split_roles
from exhume.choices import Trains, recipe_for, resolve
from exhume.core.contract import (
    Attack,
    Key,
    Knowledge,
    Outcome,
    Reconstruction,
    Records,
    Release,
    Status,
)
from exhume.core.results import AttackSpec, Section
from exhume.readers import RecordsByRole
from exhume.score.features import InputScores
from exhume.score.intervals import bootstrap
from exhume.score.targets import TargetScores, score_targets
from exhume.settings import DataSettings, MachineSettings, Settings, VictimSettings
from exhume.store.shards import NullStore
from exhume.studies.claims import prefixed
from exhume.studies.framework import Run
from exhume.victims.informed import Victim, first_of

ERROR = "mean squared error"
KEPT = ("mse", "mae", "mae_plus_mse", "label_accuracy", "success", "null_success", "oracle_mse")

BALLE22 = VictimSettings(momentum=0.9)
"""The released model of Balle22's notebook: one hidden layer of ten ELUs, 100 full-batch steps at 0.1."""

BALLE22_CNN = replace(BALLE22, network="cnn", rate=0.01)
"""That of its Table V, for CIFAR-10."""


def mounted(
    attack: Attack, knowledge: Knowledge, release: Release, key: Key, run: Run[Any] | None = None
) -> Reconstruction:
    """Prepare an attack and run it. run: where its work is kept and its progress goes; None: nowhere."""
    if run is None:
        return attack.prepare(knowledge, key=key, store=NullStore()).run(release)
    return attack.prepare(knowledge, **run.working(key)).run(release)


@dataclass(frozen=True, eq=False)
class Arm:
    """What an attack brought back, and how good it was."""

    scores: TargetScores
    found: Reconstruction
    interval: tuple[float, float]  # of the mean squared error, 95%, over targets

    @property
    def errors(self) -> Tensor:
        """(t,) squared error of every target."""
        return self.scores.attack.mse

    @property
    def mse(self) -> float:
        return self.scores.metrics["mse"]

    @property
    def seconds(self) -> float:
        return self.found.cost.seconds

    def metrics(self, prefix: str) -> dict[str, float]:
        """The scores worth a line each, named after the arm; null_success is the rate by chance."""
        found, (low, high) = self.scores.metrics, self.interval
        named = {name: found[name] for name in KEPT if name in found}
        named |= {"mse_low": low, "mse_high": high, "targets": found["targets"]}
        return prefixed(prefix, named | {"seconds": self.seconds})


def scored(game: Game, found: Reconstruction, victim: Victim | None = None) -> Arm:
    """What was reconstructed of a game's targets, scored. victim: the first of them; None: all."""
    truth, pool, key = (victim or game.victim)[1], holdings(game.knowledge), game.key
    scores = score_targets(truth, found, pool, key.fold("score"), baselines={})
    return Arm(scores, found, bootstrap(scores.attack.mse, key.fold("interval")))


class Measured(Protocol):
    def metrics(self, prefix: str) -> dict[str, float]: ...


def arm_metrics(arms: Mapping[str, Measured]) -> dict[str, float]:
    """The metrics of all arms, each named after its arm."""
    return {metric: value for name in arms for metric, value in arms[name].metrics(name).items()}


@dataclass(frozen=True, eq=False)
class Bench:
    """Where the informed adversary's game is played: a run, settings and records."""

    run: Run[Any]
    settings: Settings
    records: Records

    @staticmethod
    def of(
        run: Run[Any],
        sizes: DataSettings,
        victim: VictimSettings = BALLE22,
        records: Records | None = None,
    ) -> Bench:
        """records: others than those that the sizes name."""
        machine = MachineSettings(threads=run.threads, device=run.asked.device)
        records = run.records(sizes.source) if records is None else records
        settings = Settings(run.seed, sizes, victim, machine=machine)
        return Bench(run, resolve(settings, records), records)

    @property
    def chunk(self) -> int:
        return self.settings.machine.chunk

    @property
    def closed_form(self) -> ClosedForm:
        return ClosedForm(chunk=self.chunk)

    @property
    def key(self) -> Key:
        return Key.from_seed(self.settings.seed)

    @cached_property
    def parts(self) -> RecordsByRole:
        """Who holds which records."""
        return split_roles(self.settings, self.records)

    @property
    def recipe(self) -> Trains:
        return recipe_for(self.settings, self.records)

    @property
    def initial(self) -> Tensor:
        """(p,) where training starts unless a game is given another start."""
        drawn = self.recipe.architecture.initial(self.key.fold("victim"))
        return drawn.to(self.parts.fixed.inputs.device)

    def seeded(self, index: int, label: str = "") -> Bench:
        """This arm with one of the seeds that follow the run's own."""
        own = self.settings.with_seed(self.run.seed + index)
        return replace(self, settings=own, run=self.run.part(label) if label else self.run)

    def seeds(self, count: int) -> list[Bench]:
        """This arm with each of so many seeds."""
        return [self.seeded(index, f"seed {index + 1}") for index in range(count)]

    def of_victim(self, victim: VictimSettings) -> Bench:
        return replace(self, settings=replace(self.settings, victim=victim))

    def rechunked(self, sizes: DataSettings | None = None) -> Bench:
        """This arm, of other sizes if given, with as many models at once as then fit into memory."""
        machine = replace(self.settings.machine, chunk=0)
        own = replace(self.settings, data=sizes or self.settings.data, machine=machine)
        return replace(self, settings=resolve(own, self.records))

    def game(self, initial: Tensor | None = None) -> Game:
        """initial: (p,) where training starts; None draws it."""
        store, progress = self.run.store, self.run.progress
        return informed_game(
            self.settings, self.records, store=store, progress=progress, initial=initial
        )

    def audited(self, game: Game | None = None) -> Findings:
        """The closed form on all targets, as the audit has it."""
        store, progress = self.run.store, self.run.progress
        own = game or self.game()
        return attack_targets(own, self.settings, store, progress)

    def play(
        self,
        game: Game,
        attack: Attack | None = None,
        *,
        shadows: int | None = None,
        targets: int | None = None,
    ) -> Arm:
        """Attack the first targets with the first shadows; None: all of them, by the closed form."""
        knowledge, key = game.knowledge, game.key
        if shadows is not None and knowledge.shadow is not None:
            knowledge = replace(knowledge, shadow=knowledge.shadow[:shadows])
        victim = game.victim if targets is None else first_of(game.victim, targets)
        chosen = self.closed_form if attack is None else attack
        found = mounted(chosen, knowledge, victim[0], key.fold("attack"), self.run)
        return scored(game, found, victim)


# Galleries: a card for each row of a result


_ACROSS = 4
_SHOWN = _ACROSS**2
_NOTE = "Every card is one row of the result, under its label: up to sixteen records, and what came back."


def pictured(
    sections: Mapping[str, Mapping[str, InputScores]], paper: str, sees: str
) -> tuple[list[Findings], list[str]]:
    """Sections of the page by name, and the names of all rows: the cards' labels."""
    found, names = list[Findings](), list[str]()
    for name, rows in sections.items():
        evidence = {
            "targets": torch.stack([mosaic(row.targets) for row in rows.values()]),
            "reconstructions": torch.stack([mosaic(row.reconstructions) for row in rows.values()]),
            "mse": torch.stack([row.each["mse"].mean() for row in rows.values()]),
            "labels": torch.arange(len(rows)) + len(names),
        }
        names += rows
        spec = AttackSpec(name.lower().replace(" ", "-"), name, paper, sees)
        section = Section(spec, Status(Outcome.CONVERGED), notes=(_NOTE,))
        found.append(Findings(section, evidence=evidence))
    return found, names


def mosaic(images: Tensor) -> Tensor:
    """(n, c, h, w): the first sixteen as one image, four in a row, with a pixel between; black if fewer."""
    shown = images[:_SHOWN].float()
    shown = F.pad(shown, [0, 1, 0, 1, 0, 0, 0, _SHOWN - len(shown)])
    _, c, h, w = shown.shape
    rows = shown.reshape(_ACROSS, _ACROSS, c, h, w).permute(2, 0, 3, 1, 4)
    return rows.reshape(c, _ACROSS * h, _ACROSS * w).contiguous()
