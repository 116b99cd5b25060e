"""Decode what the client sends: a shadow of its head, and a network that inverts the shadow (Ensembler24).

`Likelihood` inverts the shadow head by search, for the input whose features are those that the client sent:

    min over x in [0, 1]:   ||h(x) - f||² / ||f||²  +  smooth · TV(x)

started from the mean record, or from a decoder's answer. Where the shadow is close to the client, this
needs no trained inverse; where it is not, the decoder's prior is missing and the answer shows it.

Cost: `steps` forward and backward passes of the shadow head for all inputs.

`Committee` takes several shadows and answers with the mean of what their decoders draw.

`SubsetSearch` tries the selections: a shadow for every subset of bodies, and the one that classifies best is
inverted. The Ensembler's client reads P of N bodies in secret. The server can train a shadow through any
subset; if that through the client's own subset classifies best, the secret is found. How many of the 2^N - 1
subsets are tried is the budget; the smallest number of bodies comes first, then the order of the indices.

Cost: one shadow training for each subset, through as many bodies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice

import torch
from torch import Tensor, nn

from exhume.attacks.releases import Answer, EachSent, features_of
from exhume.attacks.split.shadow import (
    LEARNED,
    Reads,
    ServerSide,
    Shadow,
    resolve_contrast_sign,
    server_of,
    train_shadow,
)
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
    Store,
    silent,
)
from exhume.core.records import total_variation
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
        observed = dict[str, float]()
        if self.starts > 1:
            observed |= {f"shadow_accuracy_{i}": one.accuracy for i, one in enumerate(shadows)}
        if self.reads == LEARNED:
            observed |= {f"weight_{i}": float(w) for i, w in enumerate(shadow.weights)}
        own = key.fold("decoder", str(self.reads))
        fitted = self.inverted(server, shadow, key=own, store=store, progress=progress)
        return replace(
            fitted,
            observed={**fitted.observed, **observed},
            cost=Cost(time.perf_counter() - started, models=self.starts + 1),
        )

    def inverted(
        self, server: ServerSide, shadow: Shadow, *, key: Key, store: Store, progress: Progress
    ) -> FittedInversion:
        """The decoder of a shadow; mirrored, where that is wanted and what it draws looks like negatives."""
        decoder, left = fit_decoder(
            shadow.head,
            server,
            self.decoder,
            self.decoder_schedule,
            key=key,
            store=store,
            progress=progress,
        )
        head = shadow.head
        observed = {"shadow_accuracy": shadow.accuracy, "mse_on_own_features": left}
        if self.upright and server.seen is not None:
            decoder, head, facing = resolve_contrast_sign(
                decoder, head, server.seen, server.records.inputs
            )
            observed |= facing
        return FittedInversion(decoder, head, server, observed, Cost())


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
    server: ServerSide,
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
    train_decoder(
        network,
        features[used],
        records.inputs[used],
        schedule,
        noisy=server.noisy,
        known=(digest(features), digest(records), *server.noise),
        key=key,
        store=store,
        progress=progress,
    )
    sent = server.noisy(features[judged], key.fold("judging").generator())
    with torch.no_grad():
        left = (network(sent) - records.inputs[judged]).square().mean()
    return network, float(left)


def train_decoder(
    network: nn.Module,
    features: Tensor,
    inputs: Tensor,
    schedule: Schedule,
    *,
    noisy: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    least: int = 0,
    known: tuple[str, ...],
    key: Key,
    store: Store,
    progress: Progress,
) -> None:
    """Least squares from features (n, *features) to inputs (n, *shape), in place.

    noisy: what the client adds to its features, anew at every step; least: pairs of an epoch, where there are
    fewer they come around several times; known: what the address of the work depends on besides.
    """

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        rows = rows % len(inputs)
        sent = noisy(features[rows], generator) if noisy else features[rows]
        error: Tensor = (network(sent) - inputs[rows]).square().mean()
        return error

    train_module(
        network,
        loss,
        max(len(inputs), least),
        schedule,
        inputs=known,
        key=key,
        store=store,
        progress=progress,
        stage="training the decoder",
    )


@dataclass(frozen=True, eq=False)
class FittedInversion:
    """Good for whatever the same client sends."""

    decoder: nn.Module
    head: nn.Module  # what the decoder inverts
    server: ServerSide
    observed: dict[str, float]
    cost: Cost

    @property
    def wanted(self) -> str:
        return f"the bodies take {self.server.features}"

    def run(self, releases: Release) -> Reconstruction:
        shape, features = self.server.records.shape, self.server.features
        decoded = EachSent(shape, features, self.wanted, self._answer, self.cost, self.observed)
        return decoded.run(releases)

    @torch.no_grad()
    def _answer(self, values: Tensor) -> Answer:
        found = torch.cat([self.decoder(part) for part in torch.split(values, _AT_ONCE)])
        return found[:, None], -mismatch(self.head, found, values)[:, None]


@torch.no_grad()
def mismatch(head: nn.Module, found: Tensor, features: Tensor) -> Tensor:
    """(n,) how far the head of what was found is from the features, over their own size. Observable."""
    apart = [
        (head(x) - f).flatten(1).norm(dim=1) / f.flatten(1).norm(dim=1).clamp_min(1e-12)
        for x, f in zip(torch.split(found, _AT_ONCE), torch.split(features, _AT_ONCE), strict=True)
    ]
    return torch.cat(apart)


@dataclass(frozen=True)
class Likelihood:
    """Maximum likelihood with total variation, through the head that another inversion has found.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: what the inversion it starts from assumes.
    Guarantees: nothing about the truth is used; the number of steps is fixed, and the weight of the total
    variation is the caller's.
    Reference: He et al. 2019 (regularised maximum likelihood); Ensembler24 leaves it out.
    """

    inversion: ShadowInversion | TrueHeadInversion = ShadowInversion()
    steps: int = 200
    rate: float = 0.05
    smooth: float = 0.01  # weight of the total variation
    from_decoder: bool = True  # start at the decoder's answer; False: at the mean record

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.rate > 0 or self.smooth < 0:
            raise ExhumeError(f"steps and rate must be positive, smooth at least 0: {self}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedLikelihood:
        inner = self.inversion.prepare(knowledge, key=key, store=store, progress=progress)
        return FittedLikelihood(self, inner, progress)


@dataclass(frozen=True, eq=False)
class FittedLikelihood:
    attack: Likelihood
    inner: FittedInversion
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        first = self.inner.run(releases)
        server = self.inner.server
        values = features_of(releases, server.records.shape, server.features, self.inner.wanted)
        if isinstance(values, Reconstruction):
            return values
        started = time.perf_counter()
        start = first.candidates[:, 0]
        if not self.attack.from_decoder:
            start = server.records.inputs.mean(0).expand_as(start)
        how = self.attack
        found = search_inputs(
            self.inner.head,
            start,
            values,
            within=(start.new_tensor(0.0), start.new_tensor(1.0)),
            steps=how.steps,
            rate=how.rate,
            smooth=how.smooth,
            progress=partial(self.progress, "searching"),
        )
        seconds = first.cost.seconds + time.perf_counter() - started
        return replace(
            first,
            candidates=found[:, None],
            confidence=-mismatch(self.inner.head, found, values)[:, None],
            cost=Cost(seconds, first.cost.models),
        )


def search_inputs(
    head: nn.Module,
    start: Tensor,
    features: Tensor,
    *,
    within: tuple[Tensor, Tensor],
    steps: int,
    rate: float,
    smooth: float,
    progress: Callable[[int, int], object],
) -> Tensor:
    """(n, *shape) inputs whose features are (n, *features): Adam on the logits of their numbers.

    All inputs at once; their problems do not touch each other. within: between which values numbers lie;
    smooth: weight of the total variation.
    """
    low, high = within
    wide = (high - low).clamp_min(1e-6)
    inside = ((start - low) / wide).clamp(0.01, 0.99)
    logits = torch.log(inside / (1 - inside)).detach().requires_grad_()
    optimiser = torch.optim.Adam([logits], rate)
    size = features.flatten(1).square().sum(1).clamp_min(1e-12)
    for step in range(steps):
        progress(step, steps)
        with torch.enable_grad():
            inputs = low + wide * torch.sigmoid(logits)
            left = (head(inputs) - features).flatten(1).square().sum(1) / size
            loss = (left + smooth * total_variation(inputs)).sum()
            (logits.grad,) = torch.autograd.grad(loss, logits)
        optimiser.step()
    progress(steps, steps)
    found: Tensor = low + wide * torch.sigmoid(logits.detach())
    return found


@dataclass(frozen=True)
class Committee:
    """Several inversions, of different bodies or from different starts; agreement is the confidence.

    One that is given twice starts differently the second time.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: what the inversion assumes.
    Guarantees: nothing about the truth is used.
    Reference: ours; Ensembler24 leaves it out.
    """

    inversions: tuple[ShadowInversion, ...] = (ShadowInversion(),) * 3

    def __post_init__(self) -> None:
        if len(self.inversions) < 2:
            raise ExhumeError(
                f"inversions: at least 2 make a committee, got {len(self.inversions)}"
            )

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedCommittee:
        members = []
        for index, inversion in enumerate(self.inversions):
            again = inversion in self.inversions[:index]
            own = key.fold("member", index) if again else key
            members.append(inversion.prepare(knowledge, key=own, store=store, progress=progress))
        return FittedCommittee(tuple(members))


@dataclass(frozen=True, eq=False)
class FittedCommittee:
    members: tuple[FittedInversion, ...]

    def run(self, releases: Release) -> Reconstruction:
        found = [member.run(releases) for member in self.members]
        if found[0].status.outcome is Outcome.NOT_APPLICABLE:
            return found[0]
        drawn = torch.stack([one.candidates for one in found])
        apart = drawn.var(0).flatten(2).mean(2)
        return replace(
            found[0],
            candidates=drawn.mean(0),
            confidence=-apart,
            cost=Cost(sum(f.cost.seconds for f in found), sum(f.cost.models for f in found)),
            observed={
                f"{name}.{index}": value
                for index, one in enumerate(found)
                for name, value in one.observed.items()
            },
        )


@dataclass(frozen=True)
class SubsetSearch:
    """Train a shadow through every subset of bodies, keep the one with the best held-out accuracy.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: the server's bodies, records of the training distribution, the shape of the features. No query.
    Guarantees: the choice is made by the shadows' accuracy on held-out records, never by the truth.
    Reference: ours; Ensembler24 counts 2^N - 1 trials as its security and does not try them.
    """

    size: int = 0  # bodies the client reads, if the server knows P; 0: any number
    budget: int = 1000  # subsets tried at most
    inversion: ShadowInversion = ShadowInversion()  # its own `reads` is replaced by each subset

    def __post_init__(self) -> None:
        if self.size < 0 or self.budget < 1:
            raise ExhumeError(f"size at least 0 and budget at least 1 needed: {self}")

    def subsets(self, bodies: int) -> Iterator[tuple[int, ...]]:
        sizes = [self.size] if self.size else range(1, bodies + 1)
        every = (subset for size in sizes for subset in combinations(range(bodies), size))
        return islice(every, self.budget)

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedInversion:
        server = server_of(knowledge, "trying the selections")
        if self.size > len(server.bodies):
            raise ExhumeError(f"size: {self.size} of {len(server.bodies)} bodies cannot be chosen")
        started, own = time.perf_counter(), self.inversion
        tried = list(self.subsets(len(server.bodies)))
        best: tuple[Shadow, tuple[int, ...]] | None = None
        observed = {}
        for done, subset in enumerate(tried):
            progress("trying the selections", done, len(tried))
            shadow = train_shadow(
                server,
                subset,
                own.head,
                own.shadow_schedule,
                match=own.match,
                key=key.fold("shadow", str(subset)),
                store=store,
                progress=silent,
            )
            observed[f"shadow_accuracy.{'+'.join(map(str, subset))}"] = shadow.accuracy
            if best is None or shadow.accuracy > best[0].accuracy:
                best = (shadow, subset)
        progress("trying the selections", len(tried), len(tried))
        assert best is not None  # the budget is at least 1
        shadow, chosen = best
        fitted = own.inverted(
            server, shadow, key=key.fold("decoder", str(chosen)), store=store, progress=progress
        )
        observed |= {
            "subsets": float(len(tried)),
            **{f"chosen_{i}": float(i in chosen) for i in range(len(server.bodies))},
        }
        return replace(
            fitted,
            observed={**fitted.observed, **observed},
            cost=Cost(time.perf_counter() - started, models=len(tried) + 1),
        )
