"""The Ensembler's cost: the client of N bodies against that of one body, and what else a request costs.

ratio: head, selection and tail of a client with one body over those of a client that reads P of N answers.
The bodies' work and the network are in neither. Both clients have the same head and add a noise map; one
tail reads P answers side by side, the other one.
All with the same number of threads, in one run, repeats interleaved, the best of each kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exhume.bench.entries import each_case, entry
from exhume.core.contract import Key, Progress
from exhume.models.split.blueprint import Blueprint
from exhume.models.split.cost import both_clients, request_cost
from exhume.models.split.networks import ResNet18
from exhume.models.split.pipeline import Pipeline, SplitClient


@dataclass(frozen=True)
class BodiesCase:
    bodies: int  # N
    selected: int  # P
    width: int = 64  # of the ResNet-18
    inputs: int = 1  # of one request


CASES = (
    BodiesCase(1, 1),
    BodiesCase(4, 2),
    BodiesCase(10, 4),
    BodiesCase(10, 4, width=16),
    BodiesCase(10, 4, width=16, inputs=32),
)
_REPEATS, _CLIENT_REPEATS = 5, 200


def run(progress: Progress) -> list[dict[str, Any]]:
    return measure(CASES, progress, repeats=_REPEATS, client_repeats=_CLIENT_REPEATS)


def measure(
    cases: Sequence[BodiesCase], progress: Progress, *, repeats: int, client_repeats: int
) -> list[dict[str, Any]]:
    def measured(case: BodiesCase) -> dict[str, Any]:
        return _measured(case, repeats, client_repeats)

    return each_case("ensembler", cases, measured, progress)


def _measured(case: BodiesCase, repeats: int, client_repeats: int) -> dict[str, Any]:
    plan = Blueprint(ResNet18(width=case.width), "conv1", "pool")
    defended = _pipeline(case, plan)
    client = (
        defended.client
    )  # beside it one with the same head and noise: selection and tail differ
    other = SplitClient(client.head, client.noise, (0,), plan.tail(1).eval())
    single = Pipeline(other, defended.bodies[:1], plan.first)
    generator = Key.from_seed(0).fold("bench ensembler").generator()
    inputs = torch.rand(case.inputs, 3, 32, 32, generator=generator)
    many = max(min(40, client_repeats), client_repeats // case.inputs)
    cost = request_cost(defended, inputs, repeats=repeats)
    several, alone = both_clients(defended, single, inputs, repeats=many)
    more = {
        "client_ratio": several / alone,
        "bodies_in_turn_seconds": cost.in_turn,
        "slowest_body_seconds": cost.slowest_body,
        "bytes_up": cost.bytes_up,
        "bytes_up_once": cost.bytes_up_once,
        "bytes_down": cost.bytes_down,
    }
    which = f"N = {case.bodies}, P = {case.selected}, ResNet-18 of width {case.width}"
    name = f"{which}, {case.inputs} inputs"
    return entry("ensembler", name, several, alone, many, more)


def _pipeline(case: BodiesCase, plan: Blueprint) -> Pipeline:
    """Weights as they are drawn: they do not matter for the time."""
    feature, _ = plan.shapes()
    parts = [plan.split() for _ in range(case.bodies)]
    noise = torch.randn(feature, generator=Key.from_seed(0).generator())
    tail = plan.tail(case.selected).eval()
    selected = tuple(range(case.selected))
    bodies = tuple(part.body.requires_grad_(False).eval() for part in parts)
    return Pipeline(SplitClient(parts[0].head.eval(), noise, selected, tail), bodies, plan.first)
