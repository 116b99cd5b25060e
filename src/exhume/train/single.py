"""One loop for one module: mini-batches, a rate that rises and falls, checkpoints after every epoch.

Whatever is trained (a classifier, a shadow of one, a decoder) gives its loss on some rows; the loop owns
order, optimiser and resume. Epoch e draws its order from `key.fold("epoch", e)` and everything else
random from generators that the loss is handed, so that a killed job ends with the same bits.

While a module is trained its images lie channel by channel for every pixel (channels last), in which a CPU's
convolutions are some 1.4 times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Progress, Store, silent
from exhume.store.shards import address, digest
from exhume.train.rmsprop import FusedRMSProp

__all__ = ["Loss", "Schedule", "optimiser_state", "restore_optimiser", "train_module"]

Loss = Callable[[Tensor, torch.Generator], Tensor]
"""(rows of the batch, a generator for this step) to the scalar to be lowered."""

_WARM = 0.1  # share of the steps in which the rate rises


@dataclass(frozen=True)
class Schedule:
    """How long and how fast. The rate rises linearly over a tenth of the steps, then falls as a cosine."""

    epochs: int = 10
    batch: int = 128
    rate: float = 0.1
    optimiser: str = "sgd"  # with momentum 0.9, or "adam"
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        if self.optimiser not in ("sgd", "adam"):
            raise ExhumeError(f"optimiser: {self.optimiser!r} is not one of sgd, adam")
        if self.epochs < 0 or self.batch < 1 or not self.rate > 0 or self.weight_decay < 0:
            raise ExhumeError(f"epochs, batch, rate and weight_decay are not legal: {self}")

    def factor(self, step: int, steps: int) -> float:
        """Learning-rate multiplier at `step` of `steps`."""
        warm = max(1, round(_WARM * steps))
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def train_module(
    module: nn.Module,
    loss: Loss,
    count: int,
    schedule: Schedule,
    *,
    inputs: tuple[str, ...],
    key: Key,
    store: Store,
    progress: Progress = silent,
    stage: str,
) -> nn.Module:
    """Train the module's parameters that require a gradient, in place, on rows 0 to count - 1.

    inputs: digests of all that the loss depends on besides the module, for the address in the store.
    The module is returned in eval mode, without gradients.
    """
    module.train()
    _lay_out(module, _layout())
    trained = [p for p in module.parameters() if p.requires_grad]
    optimiser = _optimiser(trained, schedule)
    start = tuple(digest(tensor) for tensor in module.state_dict().values())
    name = address(f"train_module {stage}", schedule, (*inputs, *start), key, count)
    done = _resume(store.load(name), module, optimiser)
    batches = math.ceil(count / schedule.batch)
    steps = schedule.epochs * batches
    progress(stage, done, schedule.epochs)
    for epoch in range(done, schedule.epochs):
        order = torch.randperm(count, generator=key.fold("epoch", epoch).generator())
        generator = key.fold("noise", epoch).generator()
        for index, rows in enumerate(torch.split(order, schedule.batch)):
            _step(optimiser, loss(rows, generator), schedule, epoch * batches + index, steps)
        if not all(bool(torch.isfinite(p).all()) for p in trained):
            raise ExhumeError(
                f"{stage}: training diverged in epoch {epoch + 1} (rate {schedule.rate}); lower the rate"
            )
        ended = epoch + 1 == schedule.epochs
        store.save(name, _state(module, None if ended else optimiser, epoch + 1))
        progress(stage, epoch + 1, schedule.epochs)
    _lay_out(module, torch.contiguous_format)
    return module.requires_grad_(False).eval()


def _layout() -> torch.memory_format:
    """Channels last is the faster one; without AVX-512 its backward pass aborts the process."""
    wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
    return torch.channels_last if wide else torch.contiguous_format


def _lay_out(module: nn.Module, form: torch.memory_format) -> None:
    """Rearrange the weights of convolutions in memory; images follow them through the network."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=form)


def _optimiser(trained: list[nn.Parameter], schedule: Schedule) -> torch.optim.Optimizer:
    if schedule.optimiser == "sgd":
        return torch.optim.SGD(
            trained, schedule.rate, momentum=0.9, weight_decay=schedule.weight_decay
        )
    return torch.optim.Adam(trained, schedule.rate, weight_decay=schedule.weight_decay)


def _step(
    optimiser: torch.optim.Optimizer, loss: Tensor, schedule: Schedule, step: int, steps: int
) -> None:
    for group in optimiser.param_groups:
        group["lr"] = schedule.rate * schedule.factor(step, steps)
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimiser.step()


def _state(
    module: nn.Module, optimiser: torch.optim.Optimizer | None, epochs: int
) -> dict[str, Tensor]:
    """What a run has to keep: once it is finished, only what it ends with."""
    kept = {f"module.{n}": t for n, t in module.state_dict().items()}
    kept["epochs"] = torch.tensor(epochs)
    return kept if optimiser is None else kept | optimiser_state("optimiser", optimiser)


def _resume(
    kept: Mapping[str, Tensor] | None, module: nn.Module, optimiser: torch.optim.Optimizer
) -> int:
    """Take up what was put down; the number of epochs already done."""
    if kept is None:
        return 0
    own = module.state_dict()
    module.load_state_dict({n: kept[f"module.{n}"].to(own[n].device) for n in own})
    restore_optimiser("optimiser", optimiser, kept)
    return int(kept["epochs"])


def optimiser_state(prefix: str, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state without RMSProp's first moment, which each step overwrites unread."""
    unread = {"exp_avg"} if isinstance(optimiser, FusedRMSProp) else set()
    return {
        f"{prefix}.{index}.{name}": torch.as_tensor(value)
        for index, values in optimiser.state_dict()["state"].items()
        for name, value in values.items()
        if name not in unread and value is not None
    }


def restore_optimiser(
    prefix: str, optimiser: torch.optim.Optimizer, kept: Mapping[str, Tensor]
) -> None:
    """The inverse of `optimiser_state`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in kept.items():
        if name.startswith(f"{prefix}."):
            index, quantity = name.removeprefix(f"{prefix}.").split(".")
            state.setdefault(int(index), {})[quantity] = tensor
            if quantity == "exp_avg_sq":
                state[int(index)].setdefault("exp_avg", torch.zeros_like(tensor))
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
