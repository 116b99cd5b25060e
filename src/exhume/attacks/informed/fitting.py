"""Training a reconstructor on pairs of features and records, resumably, its epoch chosen on held-out shadows.

    loss = MAE + MSE + perceptual * LPIPS + adversarial * (-log D(reconstruction))     Balle22 §V

Every few epochs networks, optimisers and the best epoch so far go into the store at one address; a
killed job that is started again continues there and ends with the same bits, because epoch e draws
its order from `key.fold("epoch", e)`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from exhume.attacks.informed.learner import Learner, Training, pixel_loss
from exhume.core.contract import ExhumeError, Key, Progress, Store, silent
from exhume.store.shards import address, digest

__all__ = ["Fit", "Pairs", "error_on", "fit"]

_AT_ONCE = 1024  # rows of one evaluation


@dataclass(frozen=True, eq=False)
class Pairs:
    features: Tensor  # (n, f)
    records: Tensor  # (n, *shape)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Tensor) -> Pairs:
        return Pairs(self.features[rows], self.records[rows])


@dataclass(frozen=True, eq=False)
class Fit:
    network: nn.Module  # as after the chosen epoch
    epoch: int  # 0: the start was best
    errors: Tensor  # (epochs run + 1,) MAE + MSE on the choosing shadows; NaN-free


def fit(
    network: nn.Module,
    training: Training,
    train: Pairs,
    choose: Pairs,
    *,
    key: Key,
    store: Store,
    progress: Progress = silent,
    stage: str = "training the reconstructor",
) -> Fit:
    """Train in place; the network returned is that of the epoch with the least error on `choose`."""
    learner = Learner(network, training, train.records.shape[1:], key, progress)
    name = _name(network, training, train, choose, key)
    saved = store.load(name)
    if saved is None:
        errors = [error_on(network, choose)]
        best = _copy(network)
    else:
        errors = saved["errors"].tolist()
        best = {n: saved[f"best.{n}"].to(t.device) for n, t in network.state_dict().items()}
        if any(name.startswith("network.") for name in saved):
            learner.restore(saved)
    epoch, total = len(errors) - 1, training.epochs
    progress(stage, epoch, total)
    while epoch < total and not _patience_over(errors, training.patience):
        order = torch.randperm(len(train), generator=key.fold("epoch", epoch).generator())
        for rows in torch.split(order.to(train.features.device), training.batch):
            learner.step(train.features[rows], train.records[rows])
        epoch += 1
        error = error_on(network, choose)
        if not torch.isfinite(torch.tensor(error)):
            raise ExhumeError(
                f"training the reconstructor diverged in epoch {epoch} (rate {training.rate}): "
                "its error is not finite; lower the rate"
            )
        if error < min(errors):
            best = _copy(network)
        errors.append(error)
        ended = epoch == total or _patience_over(errors, training.patience)
        if ended or epoch % training.checkpoint == 0:
            store.save(name, _state(None if ended else learner, best, errors))
        progress(stage, total if ended else epoch, total)
    network.load_state_dict(best)
    network.requires_grad_(False).eval()
    listed = torch.tensor(errors, dtype=torch.float64)
    return Fit(network, int(listed.argmin()), listed)


@torch.no_grad()
def error_on(network: nn.Module, pairs: Pairs) -> float:
    """Mean MAE + MSE of the network's reconstructions."""
    total = 0.0
    for rows in torch.split(torch.arange(len(pairs), device=pairs.features.device), _AT_ONCE):
        part = pairs[rows]
        total += float(pixel_loss(network(part.features), part.records)) * len(part)
    return total / len(pairs)


def _patience_over(errors: list[float], patience: int) -> bool:
    """Has the least error not improved for so many epochs? A patience of 0 never ends."""
    return patience > 0 and len(errors) - 1 - errors.index(min(errors)) >= patience


def _name(network: nn.Module, training: Training, train: Pairs, choose: Pairs, key: Key) -> str:
    """How often a checkpoint is made decides nothing, so it is no part of the address."""
    start = tuple(digest(tensor) for tensor in network.state_dict().values())
    given = (train.features, train.records, choose.features, choose.records)
    inputs = (*start, *(digest(tensor) for tensor in given), str(network))
    return address("fit_reconstructor", replace(training, checkpoint=1), inputs, key, 0)


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def _state(
    learner: Learner | None, best: dict[str, Tensor], errors: list[float]
) -> dict[str, Tensor]:
    """What a run has to keep: once it is finished, only what it ends with."""
    kept = {f"best.{name}": tensor for name, tensor in best.items()}
    running = {} if learner is None else learner.state()
    return {**running, **kept, "errors": torch.tensor(errors, dtype=torch.float64)}
