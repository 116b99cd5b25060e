"""A reconstruction as tensors, so that a finished attack is found again when a run is taken up."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

from exhume.contract import Cost, NotApplicable, Outcome, Reconstruction, Status, Store

__all__ = ["kept"]


def kept(store: Store, address: str, make: Callable[[], Reconstruction]) -> Reconstruction:
    """What the store holds for the address; else made now and saved. Not applicable is a result too."""
    held = store.load(address)
    if held is None:
        try:
            found = make()
        except NotApplicable as why:
            found = Reconstruction.none(1, (), why)
        held = _packed(found)
        store.save(address, held)
    return _unpacked(held)


def _packed(found: Reconstruction) -> dict[str, Tensor]:
    words = {
        "outcome": found.status.outcome.value,
        "reason": found.status.reason,
        "ever": found.status.ever,
        "observed": dict(found.observed),
        "seconds": found.cost.seconds,
        "models": found.cost.models,
    }
    text = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
    tensors = {"candidates": found.candidates, "confidence": found.confidence, "words": text}
    return tensors if found.labels is None else tensors | {"labels": found.labels}


def _unpacked(held: dict[str, Tensor]) -> Reconstruction:
    words = json.loads(held["words"].numpy().tobytes().decode())
    return Reconstruction(
        held["candidates"],
        held["confidence"],
        Status(Outcome(words["outcome"]), words["reason"], words["ever"]),
        Cost(words["seconds"], words["models"]),
        held.get("labels"),
        words["observed"],
    )
