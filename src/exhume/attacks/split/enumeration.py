"""Try the selections: a shadow for every subset of bodies, the one that classifies best is inverted.

The Ensembler's client reads P of N bodies in secret. The server can train a shadow through any subset; if
that through the client's own subset classifies best, the secret is found. How many of the 2^N - 1 subsets
are tried is the budget; the smallest number of bodies comes first, then the order of the indices.

Cost: one shadow training for each subset, through as many bodies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice

from exhume.attacks.split.facing import faced
from exhume.attacks.split.inversion import FittedInversion, ShadowInversion, fit_decoder
from exhume.attacks.split.shadow import Shadow, server_of, train_shadow
from exhume.core.contract import Cost, ExhumeError, Key, Knowledge, Progress, Store, silent


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
        decoder, left = fit_decoder(
            best[0].head,
            server,
            own.decoder,
            own.decoder_schedule,
            key=key.fold("decoder", str(best[1])),
            store=store,
            progress=progress,
        )
        observed |= {
            "shadow_accuracy": best[0].accuracy,
            "mse_on_own_features": left,
            "subsets": float(len(tried)),
            **{f"chosen_{i}": float(i in best[1]) for i in range(len(server.bodies))},
        }
        head = best[0].head
        if own.upright and server.seen is not None:
            decoder, head, facing = faced(decoder, head, server.seen, server.records.inputs)
            observed |= facing
        cost = Cost(time.perf_counter() - started, models=len(tried) + 1)
        return FittedInversion(decoder, head, server, observed, cost)
