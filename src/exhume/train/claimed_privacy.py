"""What the owner's own training promises: its noise, clipping, sampling and steps.

Either said, or read from Opacus: while the owner's function runs once, every `PrivacyEngine.make_private` is
noted, and what its accountant has counted is what was done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from exhume.core.contract import NotApplicable
from exhume.train.dp import Privacy

__all__ = ["ClaimedPrivacy", "privacy_of", "read_from_opacus"]


@dataclass(frozen=True)
class ClaimedPrivacy:
    """A privacy that can be certified, and who says it."""

    privacy: Privacy
    steps: int
    by: str = "the settings"

    def __str__(self) -> str:
        return f"{self.privacy}, {self.steps} steps, by {self.by}"


def read_from_opacus(train: Callable[[], object]) -> ClaimedPrivacy | None:
    """Runs `train`; None where it does not use Opacus. Raises `NotApplicable` for what has no certificate."""
    with _watching() as seen:
        train()
    if not seen and "opacus" in sys.modules and not seen.ready:  # it was imported just now
        with _watching() as seen:
            train()
    if not seen:
        return None
    if len(seen) > 1:
        raise NotApplicable(
            f"Opacus: {len(seen)} private trainings in one are not certified so far", ever=True
        )
    return privacy_of(*seen[0])


def privacy_of(engine: Any, optimiser: Any, loader: Any) -> ClaimedPrivacy:
    """The privacy of Opacus's `PrivacyEngine` after training, and of what its `make_private` returned.

    Raises `NotApplicable` with the reason why there is no certificate.
    """
    from opacus.data_loader import DPDataLoader
    from opacus.optimizers import DPOptimizer

    history = list(engine.accountant.history)
    if not history:
        raise NotApplicable("Opacus: no private step was taken", ever=True)
    kinds = {(float(noise), float(rate)) for noise, rate, _ in history}
    if len(kinds) > 1:
        raise NotApplicable(
            f"Opacus: noise or sampling rate changed while it trained ({len(kinds)} of them); one is needed",
            ever=True,
        )
    if type(optimiser) is not DPOptimizer or not isinstance(optimiser.max_grad_norm, int | float):
        raise NotApplicable(
            f"Opacus: {type(optimiser).__name__}: only flat clipping to one norm is certified so far",
            ever=True,
        )
    noise, rate = kinds.pop()
    if rate < 1 and not isinstance(loader, DPDataLoader):
        raise NotApplicable(
            f"Opacus: the batches were not drawn by Poisson sampling, so that a rate of {rate:g} promises "
            "nothing; leave poisson_sampling on",
            ever=True,
        )
    if not noise:
        raise NotApplicable(
            "Opacus: noise multiplier 0; without noise nothing is guaranteed", ever=False
        )
    steps = sum(int(count) for _, _, count in history)
    return ClaimedPrivacy(
        Privacy(float(optimiser.max_grad_norm), noise, min(1.0, rate)), steps, "Opacus"
    )


class _Noted(list[tuple[Any, Any, Any]]):
    """Engines, optimisers and loaders; ready: Opacus could be watched."""

    ready = False


@contextmanager
def _watching() -> Iterator[_Noted]:
    noted = _Noted()
    engine = getattr(sys.modules.get("opacus"), "PrivacyEngine", None)
    if engine is None:
        yield noted
        return
    noted.ready, make = True, engine.make_private

    def watched(self: Any, **options: Any) -> Any:
        made = make(self, **options)
        noted.append((self, made[1], made[-1]))
        return made

    engine.make_private = watched
    try:
        yield noted
    finally:
        engine.make_private = make
