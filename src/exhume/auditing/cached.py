"""A reconstruction as tensors, so that a finished attack is found again when a run is taken up."""

from __future__ import annotations

from collections.abc import Callable

from exhume.core.contract import Cost, NotApplicable, Outcome, Reconstruction, Shard, Status, Store

__all__ = ["cached_reconstruction"]


def cached_reconstruction(
    store: Store, address: str, make: Callable[[], Reconstruction]
) -> Reconstruction:
    """What the store holds for the address; else made now and saved. Not applicable is a result too."""
    held = store.load(address)
    if held is None or "outcome" not in held.notes:
        try:
            found = make()
        except NotApplicable as why:
            found = Reconstruction.none(1, (), why)
        held = _packed(found)
        store.save(address, held)
    return _unpacked(held)


def _packed(found: Reconstruction) -> Shard:
    notes = {
        "outcome": found.status.outcome.value,
        "reason": found.status.reason,
        "ever": found.status.ever,
        "observed": dict(found.observed),
        "seconds": found.cost.seconds,
        "models": found.cost.models,
    }
    tensors = {"candidates": found.candidates, "confidence": found.confidence}
    return Shard(tensors if found.labels is None else tensors | {"labels": found.labels}, notes)


def _unpacked(held: Shard) -> Reconstruction:
    notes = held.notes
    return Reconstruction(
        held["candidates"],
        held["confidence"],
        Status(Outcome(notes["outcome"]), notes["reason"], notes["ever"]),
        Cost(notes["seconds"], notes["models"]),
        held.get("labels"),
        notes["observed"],
    )
