from __future__ import annotations

import pytest
import torch

from exhume.attacks.baseline import MeanRecord, holdings, snap_to_holdings
from exhume.core.contract import (
    Activations,
    Gradient,
    Knowledge,
    Layout,
    NotApplicable,
    Outcome,
    Reconstruction,
    Status,
    Weights,
)
from exhume.store.shards import NullStore

LAYOUT = Layout(("w",), ((2,),))


@pytest.fixture
def knowledge(make_records, key):
    records = make_records(20, (1, 3, 3), 2, key)
    return Knowledge(fixed=records[:8], shadow=records[8:15], public=records[15:])


@pytest.mark.parametrize(
    "release",
    [
        Weights(torch.zeros(3, 2), LAYOUT),
        Gradient(torch.zeros(3, 2), LAYOUT, torch.zeros(2)),
        Activations(torch.zeros(3, 4), "conv1"),
    ],
    ids=lambda release: type(release).__name__,
)
def test_the_mean_of_everything_held(knowledge, key, release):
    found = MeanRecord().prepare(knowledge, key=key, store=NullStore()).run(release)
    assert found.candidates.shape == (3, 1, 1, 3, 3)
    torch.testing.assert_close(found.candidates[2, 0], holdings(knowledge).inputs.mean(0))


def test_who_holds_nothing_has_no_baseline(key):
    with pytest.raises(NotApplicable, match="holds no records"):
        MeanRecord().prepare(Knowledge(), key=key, store=NullStore())


def test_snapping_returns_held_records(knowledge):
    held = holdings(knowledge).inputs
    found = Reconstruction(
        (held[[3, 17]] + 0.01)[:, None], torch.zeros(2, 1), Status(Outcome.CONVERGED)
    )
    assert torch.equal(snap_to_holdings(found, knowledge).candidates[:, 0], held[[3, 17]])
