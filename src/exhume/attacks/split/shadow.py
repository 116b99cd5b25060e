"""A shadow of the client around the server's own bodies (Ensembler24).

The server knows its bodies' weights and has records like the client's. It trains a head and a tail of its
own around the frozen bodies until that pipeline classifies: the bodies force its head towards the
client's. Which bodies count is the question of the defence; `Reads` says what the server assumes.
With `match`, the shadow's features must also have the moments of those that the client has sent (ours).

Cost: one training of a small head and tail, through the bodies that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.attacks.split.moments import moment_distance, moments
from exhume.core.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Records,
    Store,
)
from exhume.models.drawing import he_normal
from exhume.models.split.channel import FreshNoise
from exhume.models.split.inverter import OwnForm, ShadowHead
from exhume.store.shards import digest
from exhume.train.single import Schedule, train_module

LEARNED = "learned"
"""Stands for a list of bodies: a weight for each is learned with the shadow (the adaptive attacker)."""

Reads = tuple[int, ...] | str

_JUDGED = 0.1  # share of the records that judges a shadow


@dataclass(frozen=True, eq=False)
class Server:
    """What the adversary holds: its bodies and records like the client's."""

    bodies: tuple[nn.Module, ...]
    records: Records
    features: tuple[int, ...]  # shape of what the client sends for one input
    seen: Tensor | None = None  # (n, *features) what it has sent before
    sigma: float = 0.0  # of the fresh noise on all that it sends

    @property
    def digests(self) -> tuple[str, ...]:
        weights = (t for body in self.bodies for t in body.state_dict().values())
        looked_on = () if self.seen is None else (digest(self.seen),)
        return (digest(self.records), *(digest(t) for t in weights), *looked_on, *self.noise)

    @property
    def noise(self) -> tuple[str, ...]:
        """What fresh noise adds to the address of work that depends on it."""
        return (f"fresh {self.sigma}",) if self.sigma else ()

    def noisy(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Features as the client would send them."""
        if not self.sigma:
            return features
        sent: Tensor = FreshNoise(self.sigma)(features, generator)
        return sent


def server_of(knowledge: Knowledge, who: str) -> Server:
    """The server's side of what is known; bodies are the parts named body0, body1, …"""
    bodies: list[nn.Module] = []
    while f"body{len(bodies)}" in knowledge.parts:
        bodies.append(knowledge.parts[f"body{len(bodies)}"])
    lacking = [*knowledge.lacking("shadow", "features"), *([] if bodies else ["parts"])]
    if lacking:
        raise NotApplicable(f"{who} needs to know: {', '.join(lacking)}", ever=True)
    assert knowledge.shadow is not None
    assert knowledge.features is not None
    fresh = knowledge.parts.get("fresh")
    sigma = fresh.sigma if isinstance(fresh, FreshNoise) else 0.0
    return Server(tuple(bodies), knowledge.shadow, knowledge.features, knowledge.seen, sigma)


@dataclass(frozen=True, eq=False)
class Shadow:
    """A pipeline of the server's own."""

    head: nn.Module
    accuracy: float  # on records that it was not trained on: the server can observe it
    weights: Tensor  # (N,) how much each body counts


def train_shadow(
    server: Server,
    reads: Reads,
    head: ShadowHead | OwnForm,
    schedule: Schedule,
    *,
    match: float = 0.0,
    key: Key,
    store: Store,
    progress: Progress,
) -> Shadow:
    """Head and tail around the bodies, frozen and in eval mode; a tenth of the records is kept to judge.

    match: weight of the difference between the moments of its features and of those seen.
    """
    count = len(server.bodies)
    chosen = tuple(range(count)) if isinstance(reads, str) else reads
    if not chosen or max(chosen) >= count or (isinstance(reads, str) and reads != LEARNED):
        raise ExhumeError(f"reads: {reads!r} is neither {LEARNED!r} nor a choice of {count} bodies")
    bodies = [server.bodies[i].eval().requires_grad_(False) for i in chosen]
    device = server.records.inputs.device
    made = head.module(server.records.shape, server.features, key).to(device)
    tail = _tail(bodies, server, key)
    own = nn.ModuleDict({"head": made, "tail": tail})
    start = torch.zeros(len(chosen), device=device)
    choice = nn.Parameter(start, requires_grad=isinstance(reads, str))
    own.register_parameter("choice", choice)
    order = torch.randperm(len(server.records), generator=key.fold("judged").generator())
    aside = max(1, round(_JUDGED * len(order)))
    judged, used = server.records[order[:aside]], server.records[order[aside:]]

    wanted = _wanted(server, match)

    def answer(features: Tensor) -> Tensor:
        return _joined(bodies, tail, torch.softmax(choice, 0), features)

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        features = server.noisy(made(used.inputs[rows]), generator)
        entropy = F.cross_entropy(answer(features), used.labels[rows])
        if not wanted or len(rows) < 2:
            return entropy
        return entropy + match * moment_distance(moments(features), wanted)

    train_module(
        own,
        loss,
        len(used),
        schedule,
        inputs=(*server.digests, str(chosen), str(reads == LEARNED), str(match)),
        key=key,
        store=store,
        progress=progress,
        stage="training the shadow",
    )
    generator = key.fold("judging").generator()
    with torch.no_grad():
        right = [
            answer(server.noisy(made(x), generator)).argmax(1) == y
            for x, y in zip(
                torch.split(judged.inputs, 500), torch.split(judged.labels, 500), strict=True
            )
        ]
    weights = torch.zeros(count)
    weights[list(chosen)] = torch.softmax(choice.detach(), 0).cpu()
    return Shadow(made, float(torch.cat(right).double().mean()), weights)


def _wanted(server: Server, match: float) -> list[Tensor]:
    if not match:
        return []
    if server.seen is None:
        raise NotApplicable("matching moments needs to know: seen", ever=True)
    return moments(server.seen)


def _joined(
    bodies: Sequence[nn.Module], tail: nn.Module, weights: Tensor, features: Tensor
) -> Tensor:
    answers = [w * body(features).flatten(1) for w, body in zip(weights, bodies, strict=True)]
    logits: Tensor = tail(torch.cat(answers, 1))
    return logits


def _tail(bodies: Sequence[nn.Module], server: Server, key: Key) -> nn.Module:
    device = server.records.inputs.device
    try:
        with torch.no_grad():
            sent = torch.zeros(1, *server.features, device=device)
            answers = [body(sent).flatten(1) for body in bodies]
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ExhumeError(
            f"parts: a body cannot take features of shape {server.features}, so it belongs to another "
            f"network or split ({first})"
        ) from error
    size = sum(answer.shape[1] for answer in answers)
    tail = he_normal(lambda: nn.Linear(size, len(server.records.classes)), key.fold("tail"))
    return tail.to(device)
