"""What the informed adversary's game takes, before it is played: operations, memory, disk and time, by stage.

Counted, not timed, and at the nominal speeds of `train.cost`: the same on every machine. The user's own
training function has no count of operations; its seconds are measured elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from exhume.attacks.informed.reconn import RecoNN
from exhume.attacks.informed.shadows import LIMITS, closed_form_bytes, reconn_bytes
from exhume.choices import Trains
from exhume.core.contract import Key
from exhume.core.notation import duration_of
from exhume.models.split.cost import multiply_adds
from exhume.settings import DataSettings
from exhume.store.memory import size_of
from exhume.train.fleet import GENERAL, chunk_for, seconds_per_model_of, training_operations

__all__ = ["Stage", "closed_form_stage", "game_stages", "reconn_stage", "training_stage"]

_MEMORY = 2 << 30  # of a process that trains models, as `machine.memory` has it by default


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
