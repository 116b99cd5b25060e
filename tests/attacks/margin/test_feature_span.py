"""Images behind convolutions: found where weight decay has removed the start, refused elsewhere."""

from __future__ import annotations

import pytest
import torch

from exhume import readers
from exhume.attacks.margin.descent import SearchDescent
from exhume.attacks.margin.feature_span import FeatureSpan
from exhume.core.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Reconstruction,
    Records,
    Weights,
)
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.store.shards import NullStore
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

NET = CNN((1, 8, 8), (12,), (3,), (1,), (40,), 3, "relu", "torch")
QUICK = FeatureSpan(
    restarts=2,
    starts=6.0,
    contrast=0.3,
    largest=0.4,
    variation=0.3,
    descent=SearchDescent(steps=70, rate=0.1),
)


def few() -> Records:
    digits = readers.load("digits")
    rows = torch.cat([(digits.labels == c).nonzero()[:2, 0] for c in range(3)])
    return digits[rows]


def trained(decay: float, steps: int = 400) -> tuple[Weights, Records]:
    records = few()
    centred = Records(records.inputs - records.inputs.mean(0), records.labels, records.classes)
    start = NET.initial(Key.from_seed(1))
    recipe = FullBatch(NET, Descent(steps, 0.1, 0.9, decay))
    flat = recipe.fit(start, centred, centred.none_for(1), Key.from_seed(2))
    return Weights(flat, NET.layout), records


@pytest.fixture(scope="module")
def decayed() -> tuple[Weights, Records]:
    return trained(0.02)


def attacked(release: Weights, records: Records, attack: FeatureSpan = QUICK) -> Reconstruction:
    known = Knowledge(architecture=NET, centre=records.inputs.mean(0))
    return attack.prepare(known, key=Key.from_seed(3), store=NullStore()).run(release)


def cosines(candidates: torch.Tensor, records: Records, centre: torch.Tensor) -> torch.Tensor:
    """(n,) of each record with the nearest candidate."""
    units = [
        torch.nn.functional.normalize((x - centre).flatten(1), dim=1)
        for x in (candidates, records.inputs)
    ]
    return (units[0] @ units[1].T).max(0).values


def test_training_images_come_back_and_others_do_not(decayed) -> None:
    release, records = decayed
    found = attacked(release, records)
    centre = records.inputs.mean(0)
    assert found.observed["records"] == 6
    digits = readers.load("digits")
    near = cosines(found.found(0), records, centre)
    far = cosines(found.found(0), digits[torch.arange(1000, 1100)], centre)
    assert int((near > 0.99).sum()) >= 4
    assert float((far > 0.9).double().mean()) <= 0.05


def test_the_same_key_gives_the_same_bits(decayed) -> None:
    release, records = decayed
    quick = FeatureSpan(restarts=1, descent=SearchDescent(steps=10, rate=0.1))
    one, two = attacked(release, records, quick), attacked(release, records, quick)
    assert torch.equal(one.candidates, two.candidates)


def test_a_layer_that_keeps_its_start_is_refused() -> None:
    release, records = trained(0.0, 50)
    found = attacked(release, records)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert "fc1.weight" in found.status.reason
    assert "keeps its random start" in found.status.reason


def test_a_fully_connected_network_is_for_another_attack() -> None:
    mlp = MLP((1, 8, 8), (20, 20), 3, "relu")
    known = Knowledge(architecture=mlp)
    release = Weights(mlp.initial(Key.from_seed(0))[None], mlp.layout)
    found = QUICK.prepare(known, key=Key.from_seed(0), store=NullStore()).run(release)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert "HiddenSpan" in found.status.reason


def test_what_it_needs_is_said() -> None:
    key, store = Key.from_seed(0), NullStore()
    with pytest.raises(NotApplicable, match="needs the architecture"):
        QUICK.prepare(Knowledge(), key=key, store=store)
    with pytest.raises(NotApplicable, match="is for images"):
        QUICK.prepare(Knowledge(architecture=MLP((5,), (4,), 2)), key=key, store=store)
    with pytest.raises(ExhumeError, match=r"centre: shape \(2,\) given"):
        QUICK.prepare(Knowledge(architecture=NET, centre=torch.zeros(2)), key=key, store=store)
