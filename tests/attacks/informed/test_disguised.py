"""Training that reorders and rescales its hidden units afterwards hides nothing from the closed form."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from exhume import readers
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.core.contract import Knowledge
from exhume.models.mlp import MLP
from exhume.readers import Sizes
from exhume.store.shards import NullStore
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each


@dataclass(frozen=True)
class Disguised:
    """The usual training; then hidden units take other places and scales, which changes no output."""

    usual: FullBatch
    spread: float
    shuffled: bool

    @property
    def architecture(self):
        return self.usual.architecture

    def fit(self, initial, fixed, extra, key, first=0):
        trained = self.usual.fit(initial, fixed, extra, key, first)
        layout, width = self.architecture.layout, self.architecture.hidden[0]
        parts = {name: part.clone() for name, part in layout.split(trained).items()}
        weight, bias, later, _ = parts.values()
        for model in range(len(trained)):
            generator = key.fold("disguise", first + model).generator()
            scale = torch.exp(self.spread * torch.randn(width, generator=generator))
            order = torch.randperm(width, generator=generator)
            order = order if self.shuffled else torch.arange(width)
            weight[model] = (weight[model] * scale[:, None])[order]
            bias[model] = (bias[model] * scale)[order]
            later[model] = (later[model] / scale)[:, order]
        return layout.join(parts)

    def bytes_per_model(self, records):
        return self.usual.bytes_per_model(records)


def game(recipe, key):
    parts = readers.split(readers.load("digits"), Sizes(60, 30, 200, 10, 300), key)
    initial = recipe.architecture.initial(key)
    release, secret = release_one_each(
        recipe, initial, parts.fixed, parts.target, key=key, store=NullStore(), chunk=32
    )
    known = Knowledge(
        recipe=recipe, initial=initial, fixed=parts.fixed, shadow=parts.shadow, public=parts.public
    )
    found = ClosedForm(chunk=32).prepare(known, key=key, store=NullStore()).run(release)
    apart = torch.cdist(
        found.candidates[:, 0].flatten(1),
        torch.cat([secret.open().inputs, parts.test.inputs]).flatten(1),
    )
    named = apart.argmin(1) == torch.arange(30)
    return float(named.double().mean()), found.observed


USUAL = FullBatch(MLP((1, 8, 8), (20,), 10, "relu"), Descent(steps=20))


@pytest.mark.parametrize(("spread", "shuffled"), [(0.05, False), (0.0, True), (0.05, True)])
def test_a_disguise_hides_nothing(spread, shuffled, key):
    usual, seen = game(USUAL, key)
    found, aligned = game(Disguised(USUAL, spread, shuffled), key)
    assert "units_aligned" not in seen
    assert aligned["units_aligned"] == 1
    assert usual > 0.3
    assert found > usual - 0.2


@pytest.mark.parametrize("activation", ["relu", "elu", "tanh"])
def test_usual_training_is_read_as_it_is(activation, key):
    recipe = FullBatch(MLP((1, 8, 8), (20,), 10, activation), Descent(steps=20))
    _, seen = game(recipe, key)
    assert "units_aligned" not in seen
