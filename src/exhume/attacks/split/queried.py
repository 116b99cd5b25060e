"""Decode what a client sends after asking it: its answers to chosen inputs train the decoder directly.

Ensembler24 forbids this; He et al. 2019 call it the black-box setting. Neither bodies nor a shadow are
needed.

Cost: `steps` steps of the decoder.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.releases import Answer, EachSent
from exhume.attacks.split.inversion import train_decoder
from exhume.core.contract import Cost, ExhumeError, Key, Knowledge, Progress, Store, silent
from exhume.models.split.inverter import Decoder
from exhume.store.shards import digest
from exhume.train.single import Schedule

_AT_ONCE = 500
_ROUND = 20  # steps of one round at least


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
        knowledge.require("asking the client", "shadow", "answers")
        assert knowledge.shadow is not None
        assert knowledge.answers is not None
        inputs, answers = knowledge.shadow.inputs, knowledge.answers
        if len(inputs) != len(answers) or len(inputs) < 2:
            raise ExhumeError(f"answers: {len(answers)} to {len(inputs)} inputs; at least 2 needed")
        started = time.perf_counter()
        network = self.decoder.module(tuple(answers.shape[1:]), knowledge.shadow.shape, key)
        network = network.to(inputs.device)
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

        def answer(sent: Tensor) -> Answer:
            with torch.no_grad():
                found = torch.cat([network(part) for part in torch.split(sent, _AT_ONCE)])
                far = torch.cdist(sent.flatten(1), answers.flatten(1)).min(1).values
            return found[:, None], -far[:, None]

        features = tuple(answers.shape[1:])
        wanted = f"the client answered with {features}"
        return EachSent(knowledge.shadow.shape, features, wanted, answer, cost)
