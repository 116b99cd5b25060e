"""From settings to concrete choices: sizes, recipe, chunk, threads, device."""

from __future__ import annotations

import math
import os
from dataclasses import fields

import torch

from exhume.core.contract import Architecture, ExhumeError, Key, Records
from exhume.defences.dp import DPTraining
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.models.own import OwnArchitecture, architecture_named, fully_connected
from exhume.readers import RecordsByRole, Sizes, check_classes
from exhume.settings import Settings, VictimSettings
from exhume.store.scale import Processes, where_now
from exhume.train.fleet import chunk_for
from exhume.train.functional import check_side_by_side, drops, trained_alone
from exhume.train.objective import Objective
from exhume.train.optimisers import Adam, Descent, Optimiser
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.stacked import Order


def sizes_for(records: int, settings: Settings) -> Sizes:
    """Sizes as given; those left at 0 are shares of the records, capped at the notebook's setting.

    Of few records a fifth are targets, so that a leak of a fifth of them is noticed from 250 on.
    """
    given = settings.data
    few = records < 10 * ENOUGH
    return Sizes(
        fixed=given.fixed or min(1000, records // 4),
        target=given.targets or (min(ENOUGH, records // 5) if few else min(200, records // 10)),
        shadow=given.shadows or (2 * records // 5 if few else min(2000, records // 2)),
        public=given.public or min(1000, records // 20),
        test=given.test or min(1000, records // 20),
    )


ENOUGH = 50  # targets that notice a leak of a fifth
_LADDER = (
    *((200, 2000), (150, 1500), (100, 1000), (75, 750), (ENOUGH, 500), (ENOUGH, 350)),
    *((ENOUGH, 200), (ENOUGH, 100), (40, 60), (20, 50)),
)  # targets and shadows
_ALONE = 4  # models in a chunk whose models gain nothing by being trained together: less is lost
_SHARE = (
    0.45  # of a budget, for the models that every attack on weights needs; a control needs as many
)


def sized(settings: Settings, records: int, per_model: float, budget: float) -> Settings:
    """Numbers of targets and shadows, where they are left open, that the budget allows; else the fewest.

    per_model: seconds of training one model; budget: seconds.
    """
    usual = sizes_for(records, settings)
    for targets, shadows in _LADDER:
        chosen = settings.with_values(
            "data",
            targets=settings.data.targets or min(targets, usual.target),
            shadows=settings.data.shadows or min(shadows, usual.shadow),
        )
        if per_model * (chosen.data.targets + chosen.data.shadows) <= _SHARE * budget:
            break
    return chosen


def resolve(settings: Settings, records: Records) -> Settings:
    """Replace every "choose for me" by a number, so that the same run can be had again.

    Whatever can be seen to be impossible is refused here, before anything is written.
    """
    sizes = sizes_for(len(records), settings)
    _check(sizes, records, settings)
    settings = settings.with_values(
        "data",
        fixed=sizes.fixed,
        targets=sizes.target,
        shadows=sizes.shadow,
        public=sizes.public,
        test=sizes.test,
    )
    machine = settings.machine
    recipe, threads = recipe_for(settings, records), threads_for(machine.threads)
    size = recipe.bytes_per_model(sizes.fixed + 1)
    if size > machine.memory << 20:
        raise ExhumeError(
            f"victim: training one such model takes {size >> 20:,} MiB, machine.memory allows "
            f"{machine.memory:,}; choose smaller widths or allow more"
        )
    chunk = machine.chunk or _chunk(recipe, size, (machine.memory << 20) // threads)
    return settings.with_values("machine", chunk=chunk, threads=threads)


def _chunk(recipe: Trains, size: int, memory: int) -> int:
    """What a process trains at once in its share of the memory; few where it trains one after another."""
    by_memory = chunk_for(size, memory)
    alone = isinstance(recipe, OwnTraining) or trained_alone(recipe.architecture)
    return min(_ALONE, by_memory) if alone else by_memory


def _check(sizes: Sizes, records: Records, settings: Settings) -> None:
    if records.vocabulary is not None:
        raise ExhumeError(
            f"{settings.data.source}: token sequences; of these only updates are attacked ([update], with "
            "released = false in [victim]), not trained weights; numbers that are no tokens must be floats"
        )
    check_classes(records, settings.data.source)
    present = len(torch.unique(records.labels))
    if present < 2:
        raise ExhumeError(
            f"{settings.data.source}: {present} class among the labels; a classifier needs two"
        )
    if sizes.target < 2 or sizes.fixed < 1 or sizes.shadow < 1:
        raise ExhumeError(
            f"data: {len(records)} records would give fixed {sizes.fixed}, targets {sizes.target}, "
            f"shadows {sizes.shadow}; at least 1, 2 and 1 are needed"
        )
    if sizes.total > len(records):
        named = f"fixed {sizes.fixed} + targets {sizes.target} + shadows {sizes.shadow}"
        raise ExhumeError(
            f"data: {sizes.total} records needed ({named} + public {sizes.public} + test "
            f"{sizes.test}), {len(records)} available"
        )
    if settings.attack.exact > sizes.target or settings.attack.exact == 1:
        raise ExhumeError(
            f"attack.exact: {settings.attack.exact} given, 0 or from 2 to {sizes.target} targets needed"
        )
    cores = os.cpu_count() or 1  # all: a resumed run keeps its threads wherever it may run now
    if settings.machine.threads > cores:
        raise ExhumeError(
            f"machine.threads: {settings.machine.threads} given, this machine has {cores} cores"
        )
    device_named(settings.machine.device)


Trains = FullBatch | MiniBatch | OwnTraining
_OF_RECIPES = (
    *("optimiser", "batch", "steps", "rate", "momentum", "weight_decay", "schedule"),
    *("label_smoothing", "dropout"),
)


def recipe_for(settings: Settings, records: Records) -> Trains:
    """How the victim trains; the order of its batches derives from the seed."""
    chosen = settings.victim
    network = _network(settings, records)
    if not chosen.train and not chosen.dp_clip and chosen.dp_noise:
        raise ExhumeError(f"dp_noise: {chosen.dp_noise} given without a dp_clip")
    if not chosen.train and not chosen.dp_clip and chosen.dp_sampling < 1:
        raise ExhumeError(f"dp_sampling: {chosen.dp_sampling} given without a dp_clip")
    if chosen.train:
        _check_stated(settings)
        return OwnTraining.of(network, chosen.train, objective=_objective(settings))
    if chosen.dp_steps:
        raise ExhumeError(
            f"dp_steps: {chosen.dp_steps} given; without a train of your own, say steps"
        )
    of_users = isinstance(network, OwnArchitecture) and fully_connected(network) is None
    if of_users and not trained_alone(network):
        check_side_by_side(network)  # before anything is written
    if of_users and trained_alone(network) and chosen.dp_clip:
        layer = "dropout" if drops(network) else "batch norm"
        raise ExhumeError(
            f"dp_clip: with {layer} no record has a gradient of its own to clip; take it out, or replace "
            "batch norm by nn.GroupNorm"
        )
    if chosen.dp_clip and not (
        chosen.schedule == "constant" and _objective(settings) == Objective()
    ):
        raise ExhumeError(
            "dp_clip: private training is there for a constant rate and plain cross-entropy; for others give "
            "a train function of your own"
        )
    recipe = _plain_recipe(network, settings)
    defence = DPTraining(chosen.dp_clip or math.inf, chosen.dp_noise, chosen.dp_sampling)
    hardened = defence.harden(recipe)
    assert isinstance(hardened, FullBatch | MiniBatch)  # hardening keeps the kind of recipe
    return hardened


def ignored_beside_own(settings: Settings) -> str:
    """What is said of training that a function does its own way, in a sentence; empty: nothing."""
    usual, chosen = VictimSettings(), settings.victim
    given = [n for n in _OF_RECIPES if getattr(chosen, n) != getattr(usual, n)]
    if not (chosen.train and given):
        return ""
    return f"{chosen.train} trains its own way: {', '.join(given)} in [victim] change nothing"


def _check_stated(settings: Settings) -> None:
    """Refuse private fields of training of one's own unless all are there: they only say what it does."""
    chosen = settings.victim
    said = {n: getattr(chosen, n) for n in ("dp_clip", "dp_noise", "dp_steps")}
    if not any(said.values()) and chosen.dp_sampling == 1:
        return
    lacking = [name for name, value in said.items() if not value]
    if lacking:
        raise ExhumeError(
            f"{lacking[0]}: {chosen.train} trains its own way; to certify its privacy, say dp_clip, dp_noise "
            f"and dp_steps as it has them (and dp_sampling); {', '.join(lacking)} is missing"
        )


_NETWORKS: dict[str, type[MLP] | type[CNN]] = {"mlp": MLP, "cnn": CNN}


def _network(settings: Settings, records: Records) -> Architecture:
    chosen, shape, outputs = settings.victim, records.shape, len(records.classes)
    if chosen.loss == "mse":  # a record is a row, with its target last
        shape, outputs = (shape[0] - 1,), 1
    if ":" in chosen.network:
        return architecture_named(chosen.network, input_shape=shape, classes=outputs)
    return _NETWORKS[chosen.network](
        input_shape=shape,
        hidden=chosen.hidden,
        outputs=outputs,
        activation=chosen.activation,
        init=chosen.init,
    )


def _plain_recipe(network: Architecture, settings: Settings) -> FullBatch | MiniBatch:
    chosen = settings.victim
    steps, rate, decay = chosen.steps, chosen.rate, chosen.weight_decay
    descent: Optimiser = Descent(steps, rate, chosen.momentum, decay, chosen.schedule)
    if chosen.optimiser in ("adam", "adamw"):
        decoupled, schedule = chosen.optimiser == "adamw", chosen.schedule
        descent = Adam(steps, rate, weight_decay=decay, decoupled=decoupled, schedule=schedule)
    if chosen.optimiser == "gd" and chosen.batch:
        raise ExhumeError(f"batch: {chosen.batch} given, but gd sees all records; choose sgd")
    if chosen.optimiser == "sgd" and not chosen.batch:
        raise ExhumeError("batch: sgd needs the number of records a step sees")
    key = Key.from_seed(settings.seed)
    dropout = key.fold("dropout") if chosen.dropout == "known" and drops(network) else None
    objective = _objective(settings)
    if not chosen.batch:
        return FullBatch(network, descent, objective=objective, dropout=dropout)
    order = Order(chosen.batch, key.fold("batch order"))
    return MiniBatch(network, descent, order, objective, dropout)


def _objective(settings: Settings) -> Objective:
    return Objective(settings.victim.loss, settings.victim.label_smoothing)


def as_known(recipe: Trains, settings: Settings) -> Trains:
    """The recipe as the adversary has it: with the order of the batches, or with one of its own."""
    if settings.victim.batch_order == "known" or not isinstance(recipe, MiniBatch):
        return recipe
    return recipe.with_order(Key.from_seed(settings.seed).fold("adversary's batch order"))


def device_named(name: str) -> torch.device:
    if name.split(":", 1)[0] not in ("cpu", "cuda"):
        raise ExhumeError(f"device: {name!r} cannot be used here: cpu and cuda are known")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ExhumeError(f"device: {name!r} cannot be used here: {first}") from error
    return device


def moved(parts: RecordsByRole, device: torch.device) -> RecordsByRole:
    return RecordsByRole(*(getattr(parts, field.name).to(device) for field in fields(parts)))


def threads_for(asked: int) -> int:
    """As many as asked for; 0: one for each core this process may use, shared out among processes."""
    where = where_now()
    return asked or max(1, _cores() // (where.count if isinstance(where, Processes) else 1))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
