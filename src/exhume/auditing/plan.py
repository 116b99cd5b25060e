"""The planner: every attack that could be run, what it would cost, and which of them fit the budget.

What is not run is named with its reason. Silence is never shown as safety.

Costs come from operation counts and a nominal speed. Nothing is timed where it can be counted, so that the
same settings give the same plan on every machine, busy or idle. The speeds are those of one core of a common
server, on the slow side. Only the user's own training function has to be timed, in processor seconds, which
are kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn

from exhume.attacks.gradient.text import TextAttack, pooling_of
from exhume.attacks.informed.closed_form import MOST_ANCHORS
from exhume.attacks.informed.reconn import RecoNN
from exhume.attacks.informed.shadows import LIMITS
from exhume.auditing.case import Inputs, Row
from exhume.choices import Trains
from exhume.core.contract import Architecture, ExhumeError, Key, Progress, Recipe, Records, Store
from exhume.core.errors import OutOfTime
from exhume.core.notation import about, duration_of
from exhume.core.records import filled_in
from exhume.core.results import PlannedAttack
from exhume.core.typed_json import to_json
from exhume.models.own import fully_connected
from exhume.models.own_texts import LanguageModel, TextModel
from exhume.models.split.cost import multiply_adds
from exhume.score.verdict import MANY_LEFT_OUT
from exhume.settings import DataSettings
from exhume.store.cache import folder
from exhume.store.memory import size_of
from exhume.store.shards import FolderStore, address, cached, digest
from exhume.store.workers import pinned
from exhume.train.fleet import (
    GENERAL,
    chunk_for,
    forward_operations,
    seconds_per_model_of,
    training_operations,
)

_SEARCHED = 120e9  # a search for inputs of an MLP, counted as if it never ended early
_SWEEPS = 3  # over the places of a text, until its words no longer change
_EACH = 2e-5  # seconds of overhead a text
_READING = 5  # copies of a block while it is read
_FIT = 1 << 17  # bytes to fit one class, the allocator's fragments included: up to 85 KB were seen
_MEMORY = 2 << 30  # of a process that trains models, as `machine.memory` has it by default


_TIMED, _TIMING = (
    3,
    20.0,
)  # trainings that are timed, at most; seconds after which no further one is

KEPT_BACK = 0.3  # of a budget, at most, for controls


def plan_rows(
    rows: Sequence[tuple[str, Row]], budget: float | None
) -> list[tuple[Row, PlannedAttack]]:
    """Rows by the name of their release, in the order given: what applies and fits.

    Without a budget: all that was asked for. With one, what is cheap and exact runs all the same.
    """
    planned: list[tuple[Row, PlannedAttack]] = []
    left = budget
    for release, whole in rows:
        row = whole if left is None else _fitting(whole, left)
        before = [one for _, one in planned if (one.id, one.release) == (row.needs, release)]
        why = ""
        if row.why_not:
            why = f"does not apply: {row.why_not}"
        elif before and not before[0].run:
            why = f"it goes on from {before[0].name}, which was left out"
        elif left is None:
            extra = row.when == "extra"
            why = f"only with --budget; it would take {about(row.seconds)}" if extra else ""
        elif row.seconds > left and not row.exact:
            why = f"it would take {about(row.seconds)}, {duration_of(left)} of the budget were left"
        else:
            left = max(0.0, left - row.seconds)
        planned.append((row, _planned(row, release, why)))
    return planned


def _fitting(row: Row, seconds: float) -> Row:
    """As it is if it fits or cannot be made to; else on as many records as do."""
    if row.why_not or row.fewer is None or row.seconds <= seconds:
        return row
    return row.fewer(seconds) or row


def _planned(row: Row, release: str, why: str) -> PlannedAttack:
    return PlannedAttack(
        id=row.id,
        name=row.spec.name,
        release=release,
        threat=row.threat,
        estimated_seconds=round(row.seconds, 1),
        run=not why,
        why=why,
        records=row.records,
        models=row.models,
        steps=row.steps,
    )


@dataclass(frozen=True, eq=False)
class PlannedRelease:
    kind: str
    name: str
    inputs: Inputs
    attacks: tuple[PlannedAttack, ...]
    control_seconds: float | None = None  # of the easiest control, estimated; None: there is none
    given: int = 0  # records that were read for it
    copies: tuple[tuple[int, int], ...] = ()  # near-duplicates, and records asked, of each set

    @property
    def warnings(self) -> list[str]:
        """Sets in which a fifth of the records or more have a double, and what was filled in."""
        return [
            f"warning: {copies:,} of {count:,} records are near-duplicates of others, and the line-up "
            "keeps one of each; the result will be of the rest"
            for copies, count in self.copies
            if count and copies >= MANY_LEFT_OUT * count
        ] + [f"warning: {said}" for said in filled_in(self.inputs.columns)]

    @property
    def records(self) -> str:
        """What is used of the records that are given."""
        used = sum(count for count, _ in self.inputs.uses)
        among = (
            f"{used:,} of the {self.given:,}" if used and self.given else f"{used or self.given:,}"
        )
        roles = ", ".join(f"{count:,} {what}" for count, what in self.inputs.uses if count)
        where = self.inputs.data or "files"
        return f"records: {among} in {where}{f': {roles}' if roles else ''}"


@dataclass(frozen=True, eq=False)
class Plan:
    """What an audit would do, before it does it."""

    releases: tuple[PlannedRelease, ...]
    budget: float | None

    @property
    def seconds(self) -> float:
        """Seconds of all attacks that are run, estimated."""
        attacks = (attack for one in self.releases for attack in one.attacks)
        return sum((attack.estimated_seconds for attack in attacks if attack.run), 0.0)

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of all attacks that are run, estimated, over all threads."""
        rows = ((one.inputs.threads, attack) for one in self.releases for attack in one.attacks)
        return sum((threads * a.estimated_seconds for threads, a in rows if a.run), 0.0)

    def lines(self) -> list[str]:
        """For the console."""
        lines = []
        for one in self.releases:
            lines.append(f"plan: {one.name} (seed {one.inputs.seed}, threads {one.inputs.threads})")
            lines += [f"  {one.records}"] if one.given or one.inputs.uses else []
            lines += [f"  {warning}" for warning in one.warnings]
            lines += [f"  {said}" for said in (one.inputs.size, one.inputs.takes) if said]
            lines += [f"  doubt: {doubt}" for doubt in one.inputs.doubts]
            lines += [f"  models are trained {one.inputs.place}"] if one.inputs.place else []
            lines += [f"  attack: {_line(attack)}" for attack in one.attacks if attack.run]
            lines += [f"  left out: {a.name}: {a.why}" for a in one.attacks if not a.run]
            if one.control_seconds is not None and any(a.run for a in one.attacks):
                seconds = about(one.control_seconds)
                lines.append(f"  if nothing comes back: controls, the easiest takes {seconds}")
        limit = "no limit" if self.budget is None else f"budget {duration_of(self.budget)}"
        cpu = f"{max(1, round(self.cpu_seconds)):,} CPU seconds"
        return [*lines, f"plan: {about(self.seconds)} in all, {cpu} ({limit})"]

    def to_json(self) -> dict[str, Any]:
        return {
            "releases": [
                {
                    "kind": one.kind,
                    "name": one.name,
                    "seed": one.inputs.seed,
                    "data": one.inputs.data,
                    "threads": one.inputs.threads,
                    "place": one.inputs.place,
                    "size": one.inputs.size,
                    "takes": one.inputs.takes,
                    "doubts": list(one.inputs.doubts),
                    "given": one.given,
                    "warnings": one.warnings,
                    "uses": {what: count for count, what in one.inputs.uses},
                    "attacks": to_json(one.attacks),
                    "control_seconds": one.control_seconds,
                }
                for one in self.releases
            ],
            "budget_seconds": self.budget,
            "estimated_seconds": round(self.seconds, 1),
            "estimated_cpu_seconds": round(self.cpu_seconds, 1),
        }


def _line(attack: PlannedAttack) -> str:
    counts = {"records": attack.records, "models": attack.models, "steps": attack.steps}
    sizes = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f"{attack.name}: {', '.join([*sizes, about(attack.estimated_seconds)])}"


# What it may take


@dataclass(eq=False)
class Clock:
    """Progress that ends the work behind it when the time is over, and all that follows after Ctrl-C.

    What is finished is never ended: its result is there.
    """

    shown: Progress
    ends: float = math.inf  # by `time.perf_counter`
    interrupted: bool = False

    def allow(self, seconds: float | None) -> None:
        """So many from now on; None: no limit."""
        self.ends = math.inf if seconds is None else time.perf_counter() + seconds

    @property
    def left(self) -> float:
        """Seconds, at least 0."""
        return max(0.0, self.ends - time.perf_counter())

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.shown(stage, done, total)
        if done < total and (self.interrupted or time.perf_counter() >= self.ends):
            raise OutOfTime(BY_HAND if self.interrupted else TOO_LATE)


TOO_LATE, BY_HAND = "the budget ended before it was done", "it was stopped by Ctrl-C"


def stopped(progress: Progress, why: BaseException) -> str:
    """Why a piece of work has no result. After Ctrl-C nothing else begins; who has no clock just ends."""
    if isinstance(why, KeyboardInterrupt):
        if not isinstance(progress, Clock) or progress.interrupted:
            raise why
        progress.interrupted = True
        return BY_HAND
    return str(why)


# What it costs: operations, at a nominal speed


def network_seconds(network: nn.Module, shape: tuple[int, ...], threads: int) -> float:
    """Seconds of one record's way through a network."""
    return seconds_of(2 * multiply_adds(network, shape), threads)


def seconds_of(operations: float, threads: int = 1) -> float:
    """At the nominal speed of any module but a stack of MLPs."""
    return operations / (GENERAL * threads)


def search_seconds(architecture: Architecture, records: int) -> float:
    """Seconds of a search for inputs that goes through the network and back so many times."""
    speed = GENERAL if fully_connected(architecture) is None else _SEARCHED
    return 3 * records * forward_operations(architecture) / speed


def language_seconds(net: LanguageModel, batch: int) -> float:
    """Seconds of a language model's update: each token after each beginning, through its first layers."""
    tried = (batch * net.length) ** 2 / 32
    return seconds_of(forward_operations(net) * (tried + 3 * batch)) + 2.0


def text_seconds(net: TextModel, batch: int) -> float:
    """Seconds of one update of a text model: some sweeps over places and tokens, where it is searched."""
    kind = pooling_of(net, net.initial(Key.from_seed(0))).kind if net.head else "other"
    if kind != "other":
        return 2.0 + 0.1 * batch
    usual = TextAttack()
    options = min(usual.options, batch * net.length)
    sentences = batch * _SWEEPS * usual.starts * options * net.length + usual.largest
    return 2.0 + seconds_of(sentences * forward_operations(net)) + _EACH * sentences


def seconds_per_model(
    recipe: Recipe, fixed: Records, *, threads: int, initial: torch.Tensor, key: Key, store: Store
) -> float:
    """Seconds of training one model on so many records and one more, where so many are trained at once."""
    counted = seconds_per_model_of(recipe, len(fixed), threads)
    return _timed(recipe, fixed, initial, key, store) / threads if counted is None else counted


def _timed(recipe: Recipe, fixed: Records, initial: torch.Tensor, key: Key, store: Store) -> float:
    """Processor seconds of one training in one thread: what else the machine does is not counted.

    The least of three, since the first also loads what it needs; kept in the user's cache folder, so that the
    same call plans the same.
    """
    place = address("processor seconds per model", recipe, (digest(fixed), digest(initial)), key, 0)
    with contextlib.suppress(ExhumeError):  # a folder that cannot be written
        store = FolderStore(folder() / "timings")

    def timed() -> dict[str, torch.Tensor]:
        spent: list[float] = []
        with pinned(1):
            while len(spent) < _TIMED and sum(spent) < _TIMING:
                started = time.process_time()
                recipe.fit(initial, fixed, fixed.none_for(1), key)
                spent.append(time.process_time() - started)
        return {"seconds": torch.tensor(min(spent), dtype=torch.float64)}

    return float(cached(store, place, timed)["seconds"])


@dataclass(frozen=True)
class Stage:
    """A piece of work that is done after another one."""

    name: str
    operations: float | None  # None: nobody knows, since it is the user's own code
    memory: int  # bytes of one process, at most
    disk: int  # bytes that stay, or lie there while it is done
    seconds: float  # of one thread, nominal
    spreads: bool = False  # over workers

    def hours(self, workers: int, threads: int) -> float:
        """workers: of one thread each; threads: of the process that starts them."""
        return self.seconds / (workers if self.spreads else threads) / 3600

    def line(self, workers: int, threads: int) -> str:
        counted = "" if self.operations is None else f"{self.operations:.1e} operations, "
        disk = f", {size_of(self.disk)} on disk" if self.disk else ""
        spent = duration_of(3600 * self.hours(workers, threads))
        return f"{self.name}: {counted}{size_of(self.memory)} of memory at most{disk}, {spent}"


def training_stage(recipe: Trains, sizes: DataSettings, name: str = "") -> Stage:
    """The released and the shadow models."""
    models = sizes.targets + sizes.shadows + 1
    parameters = recipe.architecture.layout.size
    size = recipe.bytes_per_model(sizes.fixed + 1)
    each = training_operations(recipe, sizes.fixed)
    seconds = seconds_per_model_of(recipe, sizes.fixed, 1)
    gathered = 4 * parameters * sizes.shadows
    return Stage(
        f"training {models:,} models{name}",
        None if each is None else each * models,
        chunk_for(size, _MEMORY) * size,
        4 * parameters * models + (gathered if gathered > LIMITS.models else 0),
        (seconds or 0.0) * models,
        spreads=True,
    )


def closed_form_bytes(  # noqa: PLR0917
    shadows: int, parameters: int, held: int, values: int, classes: int, largest: int
) -> int:
    """Peak memory of fitting the closed form; held: records it holds, of so many values each.

    largest: shadows of the most frequent label.
    """
    components = min(held, values)
    models = min(4 * shadows * parameters, LIMITS.models)
    read = 8 * shadows * parameters
    blocks = _READING * 8 * largest * parameters
    if read > LIMITS.whole:
        read, blocks = 0, 2 * min(_READING * LIMITS.block, blocks)
    kernels = 8 * -(-shadows // largest) * largest**2
    kept = 8 * shadows * components + 8 * shadows * values
    basis = 16 * held * values + 40 * components**2
    working = 8 * (7 * largest**2 + 10 * largest * components)
    labels = 8 * 8 * min(shadows, MOST_ANCHORS) ** 2
    return models + read + kernels + kept + max(basis, working + blocks, labels) + _FIT * classes


def reconn_bytes(shadows: int, parameters: int, values: int, *, span: bool, network: int) -> int:
    """Peak memory of fitting RecoNN; network: its parameters."""
    models = min(4 * shadows * parameters, LIMITS.models)
    columns = min(parameters, shadows, LIMITS.span) if span else parameters
    basis = 4 * columns * parameters * 3 + 40 * columns**2 if span else 0
    blocks = _READING * min(LIMITS.block, 4 * shadows * parameters)
    pairs = 4 * shadows * (columns + values)
    return models + max(basis, pairs + 8 * 4 * network) + pairs + blocks


def closed_form_stage(
    recipe: Trains, sizes: DataSettings, shape: tuple[int, ...], classes: int, name: str = ""
) -> Stage:
    """Fitting the closed form; labels are taken to be balanced."""
    shadows, values = sizes.shadows, prod(shape)
    largest = -(-shadows // classes)
    held = sizes.fixed + shadows + sizes.public
    parameters = recipe.architecture.layout.size
    operations = 2.0 * shadows * largest * parameters
    operations += classes * (10.0 * largest**3 + 68.0 * largest**2 * min(values, held))
    operations += 2.0 * held * values * min(values, held)
    memory = closed_form_bytes(shadows, parameters, held, values, classes, largest)
    return Stage(f"fitting the closed form{name}", operations, memory, 0, operations / GENERAL)


def reconn_stage(
    attack: RecoNN, recipe: Trains, sizes: DataSettings, shape: tuple[int, ...], name: str = ""
) -> Stage:
    """Training the published reconstructor."""
    parameters, shadows = recipe.architecture.layout.size, sizes.shadows
    read = min(parameters, shadows, LIMITS.span) if attack.span else parameters
    network = attack.network.build(read, shape, Key.from_seed(0))
    weights = sum(tensor.numel() for tensor in network.parameters())
    forward = 2 * multiply_adds(network, (read,))
    operations = 3.0 * forward * shadows * attack.training.epochs
    memory = reconn_bytes(shadows, parameters, prod(shape), span=attack.span, network=weights)
    seconds = operations / GENERAL
    return Stage(f"training RecoNN{name}", operations, memory, 16 * weights, seconds)


def game_stages(
    recipe: Trains, sizes: DataSettings, shape: tuple[int, ...], classes: int, name: str = ""
) -> list[Stage]:
    """The game with the closed form."""
    return [
        training_stage(recipe, sizes, name),
        closed_form_stage(recipe, sizes, shape, classes, name),
    ]
