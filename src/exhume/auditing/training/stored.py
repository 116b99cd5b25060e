"""What training leaves outside the parameters, read as records: a model that stores them hides nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from exhume.attacks.baseline import holdings
from exhume.auditing.training.game import Game, lined_up
from exhume.core.contract import Cost, Outcome, Progress, Records, Status
from exhume.core.results import AttackSpec, Findings, Section
from exhume.score.verdict import leak_of
from exhume.train.own import OwnTraining

__all__ = ["attack_stored"]

_SPEC = AttackSpec(
    "as-stored", "What training stores, looked at", "", "buffers beside the parameters"
)


def attack_stored(game: Game, targets: Records, *, progress: Progress) -> Findings:
    """Every changed tensor outside the parameters that has the size of records is taken for records."""
    recipe, known = game.recipe, game.knowledge
    assert isinstance(recipe, OwnTraining)  # ours change nothing else
    assert known.initial is not None  # an informed adversary has both
    assert known.fixed is not None
    started, answers = time.perf_counter(), []
    for place in range(len(targets)):
        progress("looking at what is stored", place, len(targets))
        records = known.fixed.with_extra(targets[place : place + 1].one_each(), 0)
        stored = recipe.outside(known.initial, records, game.key.fold("stored", place))
        answers.append(_as_records(list(stored.values()), targets.shape))
    progress("looking at what is stored", len(targets), len(targets))
    row, ranks = lined_up(game, targets, answers, holdings(known))
    section = Section(
        _SPEC,
        Status(Outcome.CONVERGED),
        known.known(),
        {"success": row.share, "targets": float(len(targets))},
        leak_of(row),
        cost=Cost(time.perf_counter() - started, len(targets)),
        lineup=row,
        doubt=game.doubt,
    )
    evidence = {
        "targets": targets.inputs,
        "reconstructions": torch.stack(
            [_likest(a, x) for a, x in zip(answers, targets.inputs, strict=True)]
        ),
        "labels": targets.labels,
        "rank": ranks,
    }
    return Findings(section, evidence=evidence, facts=game.facts)


def _as_records(stored: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """(k, *shape)"""
    size = torch.Size(shape).numel()
    rows = [t.float().reshape(-1, *shape) for t in stored if t.numel() and t.numel() % size == 0]
    return torch.cat([torch.zeros(0, *shape), *rows])


def _likest(answers: Tensor, truth: Tensor) -> Tensor:
    """For the page: of what is stored, the row most like the record."""
    if not len(answers):
        return torch.zeros_like(truth)
    return answers[(answers - truth).flatten(1).square().sum(1).argmin()]
