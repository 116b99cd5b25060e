"""Decode what the client sends: a shadow of its head, and a network that inverts the shadow (Ensembler24).

`Likelihood` inverts the shadow head by search, for the input whose features are those that the client sent:

    min over x in [0, 1]:   ||h(x) - f||² / ||f||²  +  smooth · TV(x)

started from a decoder's answer. `Committee` takes several shadows and answers with the mean of what their
decoders draw. `SubsetSearch` tries the selections: the Ensembler's client reads P of N bodies in secret, and
if a shadow through its own subset classifies best, the secret is found. How many of the 2^N - 1 subsets are
tried is the budget. `QueriedInversion` asks the client, which Ensembler24 forbids (the black-box setting of
He et al. 2019): its answers to chosen inputs train the decoder, and neither bodies nor a shadow are needed.

Cost: one training of a shadow (for each subset, through as many bodies) and of a decoder; `Likelihood`
besides `steps` forward and backward passes of the shadow head for all inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice

import torch
from torch import Tensor, nn

from exhume.attacks.releases import Answer, EachSent
from exhume.attacks.split.shadow import (
    LEARNED,
    Reads,
    ServerSide,
    Shadow,
    head_of,
    resolve_contrast_sign,
    server_of,
    train_shadow,
)
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
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
_ROUND = 20  # steps of one round at least
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
        who = "inverting the true head"
        server, head, started = (
            server_of(knowledge, who),
            head_of(knowledge, who),
            time.perf_counter(),
        )
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

    def run(self, releases: Release) -> Reconstruction:
        return self.each.run(releases)

    @property
    def each(self) -> EachSent:
        shape, features = self.server.records.shape, self.server.features
        wanted = f"the bodies take {features}"
        return EachSent(shape, features, wanted, self._answer, self.cost, self.observed)

    @torch.no_grad()
    def decoded(self, values: Tensor) -> Tensor:
        """(n, *features) to (n, *shape)."""
        return torch.cat([self.decoder(part) for part in torch.split(values, _AT_ONCE)])

    def _answer(self, values: Tensor) -> Answer:
        inputs = self.decoded(values)
        return inputs[:, None], -mismatch(self.head, inputs, values)[:, None]


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

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.rate > 0 or self.smooth < 0:
            raise ExhumeError(f"steps and rate must be positive, smooth at least 0: {self}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachSent:
        inner = self.inversion.prepare(knowledge, key=key, store=store, progress=progress)

        def answer(values: Tensor) -> Answer:
            start = inner.decoded(values)
            inputs = search_inputs(
                inner.head,
                start,
                values,
                within=(start.new_tensor(0.0), start.new_tensor(1.0)),
                steps=self.steps,
                rate=self.rate,
                smooth=self.smooth,
                progress=partial(progress, "searching"),
            )
            return inputs[:, None], -mismatch(inner.head, inputs, values)[:, None]

        return replace(inner.each, answer=answer)


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
    ) -> EachSent:
        members = []
        for index, inversion in enumerate(self.inversions):
            again = inversion in self.inversions[:index]
            member_key = key.fold("member", index) if again else key
            prepared = inversion.prepare(knowledge, key=member_key, store=store, progress=progress)
            members.append(prepared.each)

        def answer(values: Tensor) -> Answer:
            drawn = torch.stack([member.answer(values)[0] for member in members])
            return drawn.mean(0), -drawn.var(0).flatten(2).mean(2)

        costs = [member.cost for member in members]
        return replace(
            members[0],
            answer=answer,
            cost=Cost(sum(cost.seconds for cost in costs), sum(cost.models for cost in costs)),
            observed={
                f"{name}.{index}": value
                for index, member in enumerate(members)
                for name, value in member.observed.items()
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


@dataclass(frozen=True)
class QueriedInversion:
    """Train a decoder on inputs of the server's own and what the client sent for them.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: records and, as their answers, what the client sends for them: queries.
    Guarantees: nothing about the truth is used; the number of steps hardly depends on that of the queries.
    Confidence is how near the features are to some that were asked for. Deterministic; resumable.
    Reference: He et al. 2019 (query attack); outside Ensembler24's setting.
    """

    decoder: Decoder = Decoder()
    steps: int = 1000
    batch: int = 32
    rate: float = 3e-3

    def __post_init__(self) -> None:
        if min(self.steps, self.batch) < 1 or not self.rate > 0:
            raise ExhumeError(f"steps, batch and rate must be positive: {self}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachSent:
        held, answers = knowledge.require("asking the client", "shadow", "answers")
        inputs, features = held.inputs, tuple(answers.shape[1:])
        if len(inputs) != len(answers) or len(inputs) < 2:
            raise ExhumeError(f"answers: {len(answers)} to {len(inputs)} inputs; at least 2 needed")
        started = time.perf_counter()
        network = self.decoder.module(features, held.shape, key).to(inputs.device)
        count = max(len(inputs), self.batch * min(_ROUND, self.steps))
        rounds = max(1, round(self.steps * self.batch / count))
        train_decoder(
            network,
            answers,
            inputs,
            Schedule(rounds, self.batch, self.rate, "adam", 0.0),
            least=count,
            known=(digest(inputs), digest(answers)),
            key=key,
            store=store,
            progress=progress,
        )
        cost = Cost(time.perf_counter() - started, models=1)

        @torch.no_grad()
        def answer(sent: Tensor) -> Answer:
            drawn = torch.cat([network(part) for part in torch.split(sent, _AT_ONCE)])
            far = torch.cdist(sent.flatten(1), answers.flatten(1)).min(1).values
            return drawn[:, None], -far[:, None]

        return EachSent(held.shape, features, f"the client answered with {features}", answer, cost)
