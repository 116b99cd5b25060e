"""Private batches, an attack on their gradients, and two numbers that several studies report."""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import (
    Architecture,
    Attack,
    Gradient,
    Key,
    Knowledge,
    Reconstruction,
    Records,
)
from exhume.score.batches import BatchScores, score_batches
from exhume.score.lineup import Lineup, likeness
from exhume.studies.arms import mounted
from exhume.victims import secret_of
from exhume.victims.gradient import cut_batches

_RECOVERED = 0.01  # relative error


def even_odd_batches(
    records: Records, batches: int, size: int, key: Key, *, unit: bool = True
) -> Records:
    """(batches, size, *shape) drawn at random, two classes. unit: of unit norm; else as they are."""
    picked = torch.randperm(len(records), generator=key.generator())[: batches * size]
    inputs = records.inputs[picked].float()
    if unit:
        norms = inputs.flatten(1).norm(dim=1)
        inputs = inputs / norms.reshape(-1, *([1] * (inputs.ndim - 1)))
    return cut_batches(Records(inputs, records.labels[picked] % 2, ("even", "odd")), size)


def unit_vectors(d: int, batch: int, key: Key, *, classes: int = 2) -> Records:
    """(1, batch, d) of unit norm, uniform."""
    draws = torch.randn(1, batch, d, generator=key.fold("records").generator())
    labels = torch.randint(classes, (1, batch), generator=key.fold("labels").generator())
    names = tuple(str(i) for i in range(classes))
    return Records(draws / draws.norm(dim=2, keepdim=True), labels, names)


def attacked(
    attack: Attack,
    network: Architecture,
    seen: Gradient,
    private: Records,
    key: Key,
    *,
    size: int | None = None,
    up_to_sign: bool = False,
) -> tuple[Reconstruction, BatchScores]:
    """What an attack finds in gradients, scored with the batches behind. size: as far as it is known."""
    found = mounted(attack, Knowledge(architecture=network, batch_size=size), seen, key)
    return found, score_batches(secret_of(private), found, up_to_sign=up_to_sign)


def came_back(
    found: Reconstruction, scores: BatchScores, private: Records, others: Records, key: Key
) -> dict[str, Tensor]:
    """Of each record of one batch: whether it is recovered (at most 1% away), leads the line-up of 99 others
    of its class, and its PSNR; and whether the records were counted.
    """
    truth, got = private.inputs.flatten(1).double(), scores.matched[0].flatten(1).double()
    error = (got - truth).norm(dim=1) / truth.norm(dim=1)
    pool = torch.cat([private.inputs, others.inputs])
    release = torch.full((len(pool),), -1)
    release[: len(private)] = 0
    labels = torch.cat([private.labels, others.labels])
    lineup = Lineup(likeness([found.found()], pool), release, labels)
    return {
        "recovered": (error <= _RECOVERED).double(),
        "identified": lineup.score(key.fold("lineup"), draws=1).identified.double(),
        "psnr": scores.psnr[0].double().clamp_max(100),
        "counted": (scores.sizes == len(private)).double(),
    }


def utility(seen: Gradient, plain: Gradient) -> float:
    """Mean cosine of protected updates with the true ones: what is left of the step's direction."""
    return float(torch.cosine_similarity(seen.values, plain.values, dim=1).mean())
