"""The preference for smooth images: refused below 0, and it does make candidates smoother."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume.attacks.margin.descent import SearchDescent
from exhume.attacks.margin.stationarity import FirstLayer
from exhume.core.contract import ExhumeError, Knowledge, Records, Weights
from exhume.models.mlp import HomogeneousMLP
from exhume.store.shards import NullStore
from exhume.train.margin import MarginDescent
from exhume.victims.margin import release_margin


def test_a_negative_weight_is_refused():
    with pytest.raises(ExhumeError, match=r"smooth: must be at least 0, got -1"):
        FirstLayer(smooth=-1.0)


def test_candidates_are_smoother_with_it(key):
    drawn = torch.rand(8, 1, 6, 6, generator=key.fold("pictures").generator())
    records = Records(drawn, torch.arange(8) % 4, tuple("abcd"))
    mlp = HomogeneousMLP((1, 6, 6), (40, 40), 4, first_scale=1e-3)
    recipe = MarginDescent(mlp, stop_loss=1e-3, epochs=3000)
    made = release_margin(recipe, records, key=key, store=NullStore())
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    rough = FirstLayer(restarts=1, descent=SearchDescent(steps=60))

    def variation(attack):
        prepared = attack.prepare(knowledge, key=key, store=NullStore())
        found = prepared.once(made.release.parameters[0], key, [], lambda step: None)
        images = found.inputs.reshape(-1, 1, 6, 6)  # before they are stretched to the full range
        return float(images.diff(dim=2).abs().mean() + images.diff(dim=3).abs().mean())

    assert variation(replace(rough, smooth=0.1)) < variation(rough)


def test_it_has_no_say_where_the_layer_keeps_its_start(key):
    mlp = HomogeneousMLP((1, 6, 6), (40, 40), 4)
    release = Weights(mlp.initial(key)[None], mlp.layout)
    short = FirstLayer(restarts=1, smooth=0.0, descent=SearchDescent(steps=5))

    def found(attack):
        knowledge = Knowledge(architecture=mlp)
        return attack.prepare(knowledge, key=key, store=NullStore()).run(release).candidates

    assert torch.equal(found(replace(short, smooth=0.1)), found(short))
