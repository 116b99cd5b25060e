from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from exhume import readers
from exhume.attacks.split.inversion import QueriedInversion
from exhume.core.contract import (
    Activations,
    ExhumeError,
    Knowledge,
    NotApplicable,
    Outcome,
    Weights,
)
from exhume.models.drawing import he_normal
from exhume.models.mlp import MLP
from exhume.models.split.inverter import Decoder
from exhume.models.split.pipeline import Pipeline, SplitClient
from exhume.readers import Sizes
from exhume.store.shards import NullStore
from exhume.victims.split import queried_knowledge, release_features

QUICK = QueriedInversion(Decoder(16), steps=120, rate=1e-2)


@pytest.fixture
def game(key):
    """A client whose head and noise are as they were drawn."""
    parts = readers.split(readers.load("digits"), Sizes(0, 40, 400, 0, 0), key)
    head = he_normal(
        lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()), key
    ).requires_grad_(False)
    noise = 0.2 * torch.randn(8, 8, 8, generator=key.generator())
    pipeline = Pipeline(SplitClient(head, noise, (0,), nn.Identity()), (nn.Identity(),), "0")
    release, secret = release_features(pipeline, parts.target)
    return queried_knowledge(pipeline, parts.shadow), release, secret.open().inputs


def error(found, game):
    null = (game[0].shadow.inputs.mean(0) - game[2]).square().mean()
    return float((found.candidates[:, 0] - game[2]).square().mean() / null)


def test_answers_are_what_the_client_sends(game):
    knowledge, _, _ = game
    assert knowledge.known() == ("shadow", "answers", "features")
    assert tuple(knowledge.answers.shape[1:]) == knowledge.features == (8, 8, 8)


def test_queries_bring_the_inputs_back_and_more_of_them_more(game, key):
    knowledge = game[0]
    found = QUICK.prepare(knowledge, key=key, store=NullStore()).run(game[1])
    assert error(found, game) < 0.1
    few = replace(knowledge, shadow=knowledge.shadow[:3], answers=knowledge.answers[:3])
    fewer = QUICK.prepare(few, key=key, store=NullStore()).run(game[1])
    assert error(found, game) < error(fewer, game) < 1
    assert float(found.confidence.mean()) > float(fewer.confidence.mean())


def test_killed_and_resumed_it_ends_with_the_same_bits(game, key, dying_store):
    def run(store):
        return QUICK.prepare(game[0], key=key, store=store).run(game[1]).candidates

    whole, store = run(NullStore()), dying_store(2)
    with pytest.raises(KeyboardInterrupt):
        run(store)
    assert torch.equal(run(store), whole)


def test_what_does_not_fit_is_said(game, key):
    knowledge, release, _ = game
    prepared = replace(QUICK, steps=1).prepare(knowledge, key=key, store=NullStore())
    with pytest.raises(ExhumeError, match=r"\(4, 8, 8\), the client answered with \(8, 8, 8\)"):
        prepared.run(Activations(release.values[:, :4], "0"))
    weights = Weights(torch.zeros(1, 3), MLP((1,), (), 2).layout)
    assert prepared.run(weights).status.outcome is Outcome.NOT_APPLICABLE
    with pytest.raises(NotApplicable, match="needs to know: shadow, answers"):
        QUICK.prepare(Knowledge(), key=key, store=NullStore())
    short = replace(knowledge, answers=knowledge.answers[:1])
    with pytest.raises(ExhumeError, match="answers: 1 to 400 inputs; at least 2 needed"):
        QUICK.prepare(short, key=key, store=NullStore())
    with pytest.raises(ExhumeError, match="steps, batch and rate must be positive"):
        QueriedInversion(steps=0)
