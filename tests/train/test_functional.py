"""The general path against one module at a time with torch.optim.SGD, and against the path by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from exhume.bench.shadows import one_at_a_time
from exhume.core.contract import ExhumeError, Layout, Records
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.train import functional, stacked
from exhume.train.dp import Privacy
from exhume.train.functional import SideBySide
from exhume.train.optimisers import Adam, Descent
from exhume.train.recipe import FullBatch, descend, follow

SMALL = CNN((2, 7, 7), (3, 4), (3, 2), (2, 1), (5,), 3)


@pytest.mark.parametrize("extras", [0, 1, 2])
@pytest.mark.parametrize("fresh", [False, True])
def test_equals_the_reference_across_blocks(make_records, key, monkeypatch, extras, fresh):
    monkeypatch.setattr(functional, "_BLOCK", 4)
    descent = Descent(steps=10, rate=0.2, weight_decay=0.01)
    fixed = make_records(10, (2, 7, 7), 3, key)
    flat = make_records(3 * extras, (2, 7, 7), 3, key.fold("extra"))
    extra = Records(
        flat.inputs.reshape(3, extras, 2, 7, 7), flat.labels.reshape(3, extras), flat.classes
    )
    starts = torch.stack([SMALL.initial(key.fold(i if fresh else 0)) for i in range(3)])
    recipe = FullBatch(SMALL, descent)
    found = recipe.fit(starts if fresh else starts[0], fixed, extra, key)
    expected = [one_at_a_time(SMALL, descent, starts[i], fixed, extra[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_both_paths_agree_on_an_mlp(make_records, key):
    mlp = MLP((6,), (5, 4), 3, activation="tanh")
    fixed = make_records(100, (6,), 3, key)
    extra = make_records(4, (6,), 3, key.fold("extra")).one_each()
    start = mlp.initial(key)
    by_hand = descend(mlp, Descent(steps=30), start, fixed, extra)
    engine = SideBySide.of(mlp, fixed, extra)
    general = follow(engine, Descent(steps=30), start.expand(4, -1))
    torch.testing.assert_close(by_hand, general, rtol=1e-4, atol=1e-5)


def test_logits_and_accuracy_equal_the_module(make_records, key):
    parameters = torch.stack([SMALL.initial(key.fold(i)) for i in range(3)])
    inputs = make_records(70, (2, 7, 7), 3, key).inputs
    found = functional.logits(SMALL, parameters, inputs)
    module = SMALL.build()
    torch.nn.utils.vector_to_parameters(parameters[1], module.parameters())
    torch.testing.assert_close(found[1], module(inputs).detach(), rtol=1e-4, atol=1e-5)
    right = Records(inputs, found[1].argmax(1), ("a", "b", "c"))
    assert functional.accuracy(SMALL, parameters, right)[1] == 1
    mlp = MLP((2, 7, 7), (4,), 3)
    flat = mlp.initial(key)[None]
    assert torch.equal(functional.logits(mlp, flat, inputs), stacked.logits(mlp, flat, inputs))


def test_memory_is_bounded_by_the_block():
    few, many = (functional.bytes_per_model(CNN(), n, Descent()) for n in (10, 64))
    assert few < many == functional.bytes_per_model(CNN(), 100_000, Descent())
    assert many > 64 * 4 * (2 * 3600 + 2 * 4608)  # at least the outputs of both convolutions
    assert functional.bytes_per_model(CNN(), 64, Adam()) > many
    private = FullBatch(CNN(), Descent(), Privacy(clip=1.0)).bytes_per_model(64)
    assert private > 8 * 4 * CNN().layout.size  # eight records' gradients


@dataclass(frozen=True)
class Normalised:
    """An architecture with running statistics."""

    input_shape: tuple[int, ...] = (4,)

    @property
    def layout(self) -> Layout:
        return Layout.of(self.build())

    def initial(self, key):
        return torch.zeros(self.layout.size)

    def build(self):
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_running_statistics_are_refused(make_records, key):
    fixed = make_records(5, (4,), 3, key)
    recipe = FullBatch(Normalised())
    with pytest.raises(ExhumeError, match=r"0 \(BatchNorm1d\) takes statistics over the batch"):
        recipe.fit(recipe.architecture.initial(key), fixed, fixed.none_for(1), key)


def test_own_gradients_equal_autograd(make_records, key):
    parameters = torch.stack([SMALL.initial(key.fold(i)) for i in range(3)])
    own = make_records(3, (2, 7, 7), 3, key)
    found = functional.own_gradients(SMALL, parameters, own.one_each())
    module = SMALL.build()
    for i in range(3):
        torch.nn.utils.vector_to_parameters(parameters[i], module.parameters())
        loss = nn.functional.cross_entropy(module(own.inputs[i : i + 1]), own.labels[i : i + 1])
        each = torch.autograd.grad(loss, list(module.parameters()))
        torch.testing.assert_close(found[i], torch.cat([g.flatten() for g in each]))


def test_watch_is_shown_the_parameters_before_each_step(make_records, key):
    fixed, extra = make_records(6, (2, 7, 7), 3, key), make_records(2, (2, 7, 7), 3, key)
    start, seen = SMALL.initial(key), []
    for steps in (2, 3):
        seen.clear()
        trained = descend(
            SMALL,
            Descent(steps=steps),
            start,
            fixed,
            extra.one_each(),
            watch=lambda now: seen.append(now.clone()),
        )
        if steps == 2:
            after_two = trained
    assert len(seen) == 3
    assert torch.equal(seen[0], start.expand(2, -1))
    assert torch.equal(seen[2], after_two)
