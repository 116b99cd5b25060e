"""A server that chooses the weights: what a client gives away that does not check what it is sent (Wang23).

The same batches once more, each an update at weights of `QueryingAttack.query`. This adversary changes what
is sent, so that what it gets stands beside the verdict and never in it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from exhume.attacks.gradient.span import SpanAttack
from exhume.attacks.gradient.tensor import TensorAttack
from exhume.auditing.updates.attacks import UpdateAttack, attack_all
from exhume.auditing.updates.found import found_by
from exhume.auditing.updates.lineups import Truth
from exhume.auditing.updates.made import cases_of
from exhume.core.contract import Architecture, Key, NotApplicable, Progress, QueryingAttack, Records
from exhume.core.results import NOT_JUDGED, AttackSpec, Findings, Section
from exhume.report.folder import RunFolder
from exhume.score.verdict import found_something

__all__ = ["SERVER", "chosen_weights"]

SERVER = AttackSpec(
    "server", "A server that chooses the weights", "Wang23", "updates at weights that it chose"
)
_STAGE = "attacking updates at chosen weights"


def chosen_weights(
    network: Architecture, truth: Truth, key: Key, folder: RunFolder, progress: Progress
) -> Findings:
    """What the best of the querying attacks gets, with a sentence to stand beside the verdict."""
    attacks = _attacks(network)
    query = attacks[0].attack
    assert isinstance(query, QueryingAttack)  # all of them are, and ask for the same weights
    try:
        start = query.query(network, key.fold("query"))
    except NotApplicable:
        why = f"weights to ask at are known for fully connected networks; this is {network}"
        none = Section.inapplicable(SERVER, NotApplicable(why, ever=False))
        return Findings(_beside(none))
    size = len(next(iter(truth.private.values())))
    cases, _ = cases_of(network, start, _joined(list(truth.private.values())), size)
    answers = []
    for place, case in enumerate(cases):
        progress(_STAGE, place, len(cases))
        own = key.fold("update", place)
        answers.append(attack_all(case, attacks, key=own, store=folder.store(), progress=progress))
    progress(_STAGE, len(cases), len(cases))
    found = [
        found_by(one, [some[one.id] for some in answers if one.id in some], truth, key, {})
        for one in attacks
        if any(one.id in some for some in answers)
    ]
    best = max(found, key=lambda one: one.share)
    return replace(best, section=_beside(_adjusted(best.section, len(found))), verdict=NOT_JUDGED)


def _attacks(network: Architecture) -> list[UpdateAttack]:
    """Weights of about 1 / norm of a record, whose numbers are taken to be about a half."""
    images = len(network.input_shape) == 3
    spread = 2 / math.sqrt(math.prod(network.input_shape))
    return [
        UpdateAttack(replace(SERVER, id="span"), SpanAttack(spread=spread, nonnegative=images)),
        UpdateAttack(replace(SERVER, id="tensor"), TensorAttack(spread=spread, nonnegative=images)),
    ]


def _joined(batches: list[Records]) -> Records:
    return Records(
        torch.cat([one.inputs for one in batches]),
        torch.cat([one.labels for one in batches]),
        batches[0].classes,
        batches[0].vocabulary,
    )


def _adjusted(section: Section, tried: int) -> Section:
    """Its line-up is no test of the audit: the p-value allows for its own attacks alone (Bonferroni)."""
    row = section.lineup
    if row is None:
        return section
    return replace(section, lineup=replace(row, adjusted=min(1.0, tried * row.p)))


def _beside(section: Section) -> Section:
    section = replace(section, spec=SERVER, counts=False)
    return replace(section, beside=_sentence(section))


def _sentence(section: Section) -> str:
    who = "A server that chooses the weights"
    if not section.applies:
        return f"{who} was not tried: {section.status.reason}."
    leak = section.leak
    if leak is None or not found_something(section):
        return f"{who} gets no more than chance explains by these attacks; others may get more."
    got = f"{leak.successes} of {leak.trials} records"
    return f"{who} gets {got}: a client that does not check what it is sent gives them away."
