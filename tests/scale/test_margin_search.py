"""A blind search on a cluster makes the choice that it makes here."""

from __future__ import annotations

import pytest
import torch

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.search import BlindSearch
from exhume.contract import Knowledge, Weights
from exhume.models.homogeneous import HomogeneousMLP
from exhume.scale import Cluster, spread_over
from exhume.store import NullStore

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.xdist_group("ray")]


def test_the_same_choice_here_and_there(cluster, key):
    mlp = HomogeneousMLP((1, 5, 5), (30, 20), 3)
    release = Weights(mlp.initial(key)[None], mlp.layout)
    search = BlindSearch(FirstLayer(rank=6, descent=Descent(steps=4)), trials=4, steps=2)

    def trials():
        prepared = search.prepare(Knowledge(architecture=mlp), key=key, store=NullStore())
        return prepared.choose(release)

    here = trials()
    with spread_over(Cluster(cluster.address)):
        there = trials()
    assert [t.attack for t in there] == [t.attack for t in here]
    assert [t.agreement for t in there] == pytest.approx([t.agreement for t in here], abs=1e-6)
    assert torch.isfinite(torch.tensor([t.residual for t in there])).all()
