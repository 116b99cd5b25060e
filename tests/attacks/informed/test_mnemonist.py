from __future__ import annotations

import pytest
import torch
from torch import nn

from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.mnemonist import (
    Mnemonist,
    gradient_importance,
    permutation_importance,
    rows_of,
    select,
)
from exhume.attacks.informed.reconn import ErrorCalibration, FittedRecoNN, ReadParameters, RecoNN
from exhume.attacks.informed.shadows import Shadows
from exhume.core.contract import ExhumeError, Key, Layout, Records, Weights
from exhume.models.mlp import MLP
from exhume.models.reconstructors import Dense
from exhume.store.shards import NullStore

MODEL = MLP((4,), (6,), 2)


def planted(key: Key, count: int = 240) -> Shadows:
    """Neurons 1 and 4 store the record, each half of it; everything else is noise."""
    layout = MODEL.layout
    record = torch.rand(count, 4, generator=key.generator())
    noise = torch.randn(count, layout.size, generator=key.fold("noise").generator())
    named = {name: part.clone() for name, part in layout.split(noise).items()}
    named["fc1.weight"][:, 1, :2] = record[:, :2]
    named["fc1.weight"][:, 4, 2:] = record[:, 2:]
    labels = torch.zeros(count, dtype=torch.int64)
    records = Records(record, labels, ("a", "b"))
    return Shadows(layout.join(named), torch.zeros(layout.size), records, layout, 0.0)


ATTACK = RecoNN(Dense((40,)), Training(batch=16, epochs=25, rate=3e-3), held_out=0.2)


def test_rows_are_a_neurons_weights_and_bias():
    rows = rows_of(MODEL.layout)
    assert (rows.layers, rows.sizes, rows.count) == (("fc1", "fc2"), (6, 2), 8)
    named = MODEL.layout.split(rows.of)
    assert named["fc1.weight"][3].tolist() == [3] * 4
    assert named["fc1.bias"].tolist() == [0, 1, 2, 3, 4, 5]
    assert named["fc2.weight"][1].tolist() == [7] * 6
    assert named["fc2.bias"].tolist() == [6, 7]
    ones = rows.sum(torch.ones(3, MODEL.layout.size))
    assert ones[0].tolist() == [5] * 6 + [7] * 2
    assert rows_of(Layout(("c.weight",), ((2, 3, 2, 2),))).of.tolist() == [0] * 12 + [1] * 12
    odd = rows_of(Layout(("n.weight", "n.scale", "n.bias"), ((2, 2), (), (3,))))
    assert odd.of.tolist() == [0, 0, 1, 1, 2, 3, 4, 5]
    assert (odd.layers, odd.sizes) == (("n", "n.scale", "n.bias"), (2, 1, 3))


def test_select():
    importance = torch.tensor([0.1, 5.0, 0.2, 3.0])
    assert select(importance, 0.5).tolist() == [False, True, False, True]
    assert select(importance, 0.01).tolist() == [False, True, False, False]
    drawn = {tuple(select(importance, 0.5, Key.from_seed(s)).tolist()) for s in range(20)}
    assert len(drawn) > 3
    assert all(sum(rows) == 2 for rows in drawn)
    with pytest.raises(ExhumeError, match="share: 0.0 given, legal is 0 < share <= 1"):
        select(importance, 0.0)


def linear_reader(key: Key) -> tuple[FittedRecoNN, torch.Tensor]:
    """A reconstructor z = W x whose attributions can be written down."""
    size = MODEL.layout.size
    network = nn.Sequential(nn.Linear(size, 3, bias=False))
    weight = torch.randn(3, size, generator=key.generator())
    network[0].weight = nn.Parameter(weight, requires_grad=False)
    features = ReadParameters(
        "parameters",
        torch.zeros(size),
        torch.arange(size),
        torch.zeros(size),
        torch.ones(size),
    )
    calibration = ErrorCalibration(torch.zeros(1, 3), torch.zeros(1))
    return FittedRecoNN(RecoNN(), features, network, (3,), calibration), weight


def test_gradient_times_input_against_the_formula(key):
    fitted, weight = linear_reader(key)
    rows = rows_of(MODEL.layout)
    x = torch.randn(30, MODEL.layout.size, generator=key.fold("x").generator())
    found = gradient_importance(fitted, rows, x, key, probes=200)
    naive = []
    for row in range(rows.count):
        mine = rows.of == row
        effect = x[:, mine] @ weight[:, mine].T  # (30, 3): change if the row were at its mean
        naive.append(effect.square().sum(1).mean().sqrt())
    torch.testing.assert_close(found.float(), torch.stack(naive), rtol=0.08, atol=0)


def test_permutation_against_the_formula(key):
    fitted, weight = linear_reader(key)
    weight[:, rows_of(MODEL.layout).of == 2] = 0
    rows = rows_of(MODEL.layout)
    x = torch.randn(30, MODEL.layout.size, generator=key.fold("x").generator())
    growth = permutation_importance(fitted, rows, x, x @ weight.T, key)
    assert growth[2] == pytest.approx(0, abs=1e-6)
    assert (growth[[0, 1, 3, 4, 5, 6, 7]] > 1).all()


@pytest.mark.parametrize("importance", ["gradient", "permutation"])
def test_it_finds_the_rows_that_memorise(key, importance):
    attack = Mnemonist(ATTACK, share=1 / 3, importance=importance)
    fitted = attack.fit(planted(key), key=key, store=NullStore())
    assert fitted.chosen.tolist() == [False, True, False, False, True, False, True, True]
    assert fitted.reconstructor.observed["parameters_read"] == 2 * 5 + 2 * 7


def test_selected_beats_all_beats_random(key):
    shadows, fresh = planted(key), planted(key.fold("fresh"), 60)
    errors = {}
    for selection in ("mnemonist", "all", "random"):
        attack = Mnemonist(ATTACK, share=1 / 3, selection=selection)
        fitted = attack.fit(shadows, key=key, store=NullStore())
        found = fitted.run(Weights(fresh.parameters, fresh.layout))
        errors[selection] = float((found.candidates[:, 0] - fresh.records.inputs).square().mean())
        kept = {"mnemonist": 4 / 8, "all": 1.0, "random": 4 / 8}[selection]
        assert found.observed["superparameters_kept"] == kept
        assert bool(fitted.importance.any()) == (selection != "random")
    assert errors["mnemonist"] < errors["all"] < errors["random"]


def test_errors():
    with pytest.raises(ExhumeError, match="selection: 'x' is not one of mnemonist, random, all"):
        Mnemonist(selection="x")
    with pytest.raises(ExhumeError, match="importance: 'x' is not one of gradient, permutation"):
        Mnemonist(importance="x")
    with pytest.raises(ExhumeError, match="share: 0.0 given"):
        Mnemonist(share=0.0)
