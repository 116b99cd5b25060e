"""Decode what the client sends: a shadow of its head, and a network that inverts the shadow (Ensembler24)."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from exhume.attacks.releases import features_of
from exhume.attacks.split.facing import faced
from exhume.attacks.split.shadow import LEARNED, Reads, Server, server_of, train_shadow
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Status,
    Store,
    silent,
)
from exhume.models.split.inverter import Decoder, OwnForm, ShadowHead
from exhume.store.shards import digest
from exhume.train.single import Schedule, train_module

_AT_ONCE = 500
_SHADOWS = Schedule(epochs=10, rate=1e-3, optimiser="adam", weight_decay=0.0)


@dataclass(frozen=True)
class ShadowInversion:
    """Train a shadow of the client around the bodies, invert it, apply that to the client's features.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: the server's bodies, records of the training distribution, the shape of the features; with
    `match`, features that the client has sent before. No query.
    Guarantees: nothing about the truth is used; how well the shadow classifies held-out records and how
    well its own features are decoded can be observed, and are. Deterministic from the key; resumable.
    Reference: Ensembler24 (attack; `reads="learned"` is its adaptive attacker); matching moments is ours,
    and so is telling pictures from their negatives.
    """

    reads: Reads = (0,)  # which bodies; "learned": a weight for each, learned with the shadow
    head: ShadowHead | OwnForm = ShadowHead()
    decoder: Decoder = Decoder()
    shadow_schedule: Schedule = _SHADOWS
    decoder_schedule: Schedule = _SHADOWS
    match: float = 0.0  # weight of the moments of what the client has sent before
    starts: int = 1  # shadows trained; the one that classifies best is inverted
    upright: bool = (
        True  # mirror what looks like negatives, by features that the client has sent before
    )

    def __post_init__(self) -> None:
        if not self.match >= 0:
            raise ExhumeError(f"match: must be at least 0, got {self.match}")
        if self.starts < 1:
            raise ExhumeError(f"starts: must be at least 1, got {self.starts}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedInversion:
        server = server_of(knowledge, "inverting a shadow")
        started = time.perf_counter()
        own = key.fold("shadow", str(self.reads))
        shadows = [
            train_shadow(
                server,
                self.reads,
                self.head,
                self.shadow_schedule,
                match=self.match,
                key=own.fold("start", start) if start else own,
                store=store,
                progress=progress,
            )
            for start in range(self.starts)
        ]
        shadow = max(shadows, key=lambda one: one.accuracy)
        decoder, left = fit_decoder(
            shadow.head,
            server,
            self.decoder,
            self.decoder_schedule,
            key=key.fold("decoder", str(self.reads)),
            store=store,
            progress=progress,
        )
        observed = {"shadow_accuracy": shadow.accuracy, "mse_on_own_features": left}
        if self.starts > 1:
            observed |= {f"shadow_accuracy_{i}": one.accuracy for i, one in enumerate(shadows)}
        if self.reads == LEARNED:
            observed |= {f"weight_{i}": float(w) for i, w in enumerate(shadow.weights)}
        head = shadow.head
        if self.upright and server.seen is not None:
            decoder, head, facing = faced(decoder, head, server.seen, server.records.inputs)
            observed |= facing
        cost = Cost(time.perf_counter() - started, models=self.starts + 1)
        return FittedInversion(decoder, head, server, observed, cost)


@dataclass(frozen=True)
class TrueHeadInversion:
    """Decode with the client's real head known: what no attacker without it can be expected to exceed.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: the part named head (noise included), and records of the training distribution.
    Guarantees: nothing about the truth is used. An upper bound, not an attack of the paper's setting.
    Reference: ours.
    """

    decoder: Decoder = Decoder()
    decoder_schedule: Schedule = _SHADOWS

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedInversion:
        server = server_of(knowledge, "inverting the true head")
        if "head" not in knowledge.parts:
            raise NotApplicable("inverting the true head needs the part named head", ever=True)
        started = time.perf_counter()
        head = knowledge.parts["head"]
        decoder, left = fit_decoder(
            head,
            server,
            self.decoder,
            self.decoder_schedule,
            key=key.fold("true head"),
            store=store,
            progress=progress,
        )
        cost = Cost(time.perf_counter() - started, models=1)
        return FittedInversion(decoder, head, server, {"mse_on_own_features": left}, cost)


def fit_decoder(
    head: nn.Module,
    server: Server,
    decoder: Decoder,
    schedule: Schedule,
    *,
    key: Key,
    store: Store,
    progress: Progress,
) -> tuple[nn.Module, float]:
    """A network from head(x) to x, trained on nine tenths of the records; its squared error on the rest.

    Where the client adds fresh noise to what its head gives, so does the training, anew at every step.
    """
    records = server.records
    with torch.no_grad():
        features = torch.cat([head(part) for part in torch.split(records.inputs, _AT_ONCE)])
    order = torch.randperm(len(records), generator=key.fold("judged").generator())
    aside = max(1, len(order) // 10)
    judged, used = order[:aside], order[aside:]
    network = decoder.module(server.features, records.shape, key).to(records.inputs.device)

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        rows = used[rows]
        sent = server.noisy(features[rows], generator)
        error: Tensor = (network(sent) - records.inputs[rows]).square().mean()
        return error

    train_module(
        network,
        loss,
        len(used),
        schedule,
        inputs=(digest(features), digest(records), *server.noise),
        key=key,
        store=store,
        progress=progress,
        stage="training the decoder",
    )
    sent = server.noisy(features[judged], key.fold("judging").generator())
    with torch.no_grad():
        left = (network(sent) - records.inputs[judged]).square().mean()
    return network, float(left)


@dataclass(frozen=True, eq=False)
class FittedInversion:
    """Good for whatever the same client sends."""

    decoder: nn.Module
    head: nn.Module  # what the decoder inverts
    server: Server
    observed: dict[str, float]
    cost: Cost

    def read(self, releases: Release) -> Tensor | Reconstruction:
        """The features of a release that fits the bodies."""
        features = self.server.features
        wanted = f"the bodies take {features}"
        return features_of(releases, self.server.records.shape, features, wanted)

    def run(self, releases: Release) -> Reconstruction:
        values = self.read(releases)
        if isinstance(values, Reconstruction):
            return values
        started = time.perf_counter()
        with torch.no_grad():
            found = torch.cat([self.decoder(part) for part in torch.split(values, _AT_ONCE)])
        seconds = self.cost.seconds + time.perf_counter() - started
        return Reconstruction(
            candidates=found[:, None],
            confidence=-mismatch(self.head, found, values)[:, None],
            status=Status(Outcome.CONVERGED),
            cost=Cost(seconds, self.cost.models),
            observed=self.observed,
        )


@torch.no_grad()
def mismatch(head: nn.Module, found: Tensor, features: Tensor) -> Tensor:
    """(n,) how far the head of what was found is from the features, over their own size. Observable."""
    apart = [
        (head(x) - f).flatten(1).norm(dim=1) / f.flatten(1).norm(dim=1).clamp_min(1e-12)
        for x, f in zip(torch.split(found, _AT_ONCE), torch.split(features, _AT_ONCE), strict=True)
    ]
    return torch.cat(apart)
