"""A server that chooses the weights: what a client gives away that does not check what it is sent (Wang23).

This adversary changes what is sent, so that what it gets stands beside the verdict and never in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from exhume.attacks.gradient.span import SpanAttack
from exhume.attacks.gradient.tensor import TensorAttack
from exhume.auditing.case import Row
from exhume.core.contract import Architecture, Attack, Key, NotApplicable, QueryingAttack
from exhume.core.results import AttackSpec, Findings, Section
from exhume.score.verdict import found_something

_SERVER = AttackSpec(
    "server", "A server that chooses the weights", "Wang23", "updates at weights that it chose"
)
SERVERS = ("server-span", "server-tensor")


def server_rows(
    network: Architecture, records: int, view: Callable[[Any, Any, Any], Any]
) -> list[Row]:
    """Weights of about 1 / norm of a record, whose numbers are taken to be about a half.

    view: the case at the weights that are asked for.
    """
    images = len(network.input_shape) == 3
    spread = 2 / math.sqrt(math.prod(network.input_shape))
    attacks: tuple[Attack, ...] = (
        SpanAttack(spread=spread, nonnegative=images),
        TensorAttack(spread=spread, nonnegative=images),
    )
    threat = "sees a client's update at weights that it chose itself"
    specs = (replace(_SERVER, id=one) for one in SERVERS)
    return [
        Row(spec, one, threat, 0.1 * records, records, role="beside", view=view)
        for spec, one in zip(specs, attacks, strict=True)
    ]


def chosen_start(network: Architecture, key: Key) -> Tensor:
    """(p,) the weights that the first of the attacks asks for; both ask for the same."""
    query = server_rows(network, 0, lambda *_: None)[0].attack
    assert isinstance(query, QueryingAttack)
    try:
        return query.query(network, key)
    except NotApplicable:
        why = f"weights to ask at are known for fully connected networks; this is {network}"
        raise NotApplicable(why, ever=False) from None


def best_server(servers: Sequence[Findings]) -> Findings:
    """The better of the two, with a sentence; its p-value allows for the two alone (Bonferroni)."""
    best = max(servers, key=lambda one: one.section.leak.share if one.section.leak else -1.0)
    section, row = best.section, best.section.lineup
    if row is not None:
        lineup = replace(row, adjusted=min(1.0, len(servers) * row.p))
        section = replace(section, lineup=lineup)
    section = replace(section, spec=_SERVER, counts=False)
    return replace(best, section=replace(section, beside=_sentence(section)), facts={})


def _sentence(section: Section) -> str:
    who = "A server that chooses the weights"
    if not section.applies:
        return f"{who} was not tried: {section.status.reason}."
    leak = section.leak
    if leak is None or not found_something(section):
        return f"{who} gets no more than chance explains by these attacks; others may get more."
    got = f"{leak.successes} of {leak.trials} records"
    return f"{who} gets {got}: a client that does not check what it is sent gives them away."
