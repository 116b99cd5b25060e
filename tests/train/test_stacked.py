"""Stacked training against one module at a time with torch.optim.SGD and autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exhume.bench.shadows import one_at_a_time
from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.activations import ACTIVATIONS
from exhume.models.mlp import MLP
from exhume.train.functional import accuracy
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch, descend
from exhume.train.stacked import bytes_per_model, logits


def records(count, d, classes, key, zero_columns=0):
    generator = key.generator()
    inputs = torch.rand(count, d, generator=generator, dtype=torch.float64)
    if zero_columns:
        inputs[:, torch.randperm(d, generator=generator)[:zero_columns]] = 0
    labels = torch.randint(classes, (count,), generator=generator)
    return Records(inputs, labels, tuple(map(str, range(classes))))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 9),
    d=st.integers(1, 6),
    hidden=st.lists(st.integers(1, 5), max_size=3),
    classes=st.integers(2, 4),
    models=st.integers(1, 4),
    extras=st.integers(0, 2),
    name=st.sampled_from(sorted(ACTIVATIONS)),
    zero=st.integers(0, 3),
    decay=st.sampled_from([0.0, 0.1]),
    fresh=st.booleans(),
)
def test_equals_the_reference(n, d, hidden, classes, models, extras, name, zero, decay, fresh):
    key = Key.from_seed(1)
    mlp = MLP((d,), tuple(hidden), classes, activation=name)
    descent = Descent(steps=4, rate=0.3, momentum=0.8, weight_decay=decay)
    fixed = records(n, d, classes, key.fold("fixed"), min(zero, d))
    flat = records(models * extras, d, classes, key.fold("extra"))
    extra = Records(
        flat.inputs.reshape(models, extras, d), flat.labels.reshape(models, extras), flat.classes
    )
    starts = torch.stack([mlp.initial(key.fold("start", i if fresh else 0)) for i in range(models)])
    starts = starts.double()
    found = descend(mlp, descent, starts if fresh else starts[0], fixed, extra)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        expected = [
            one_at_a_time(mlp, descent, starts[i], fixed, extra[i : i + 1]) for i in range(models)
        ]
    finally:
        torch.set_default_dtype(default)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-9, atol=1e-11)


def test_single_precision_stays_close_over_a_hundred_steps(key):
    mlp = MLP((50,), (10,), 4)
    fixed, extra = records(80, 50, 4, key), records(3, 50, 4, key.fold(1))
    single = [Records(r.inputs.float(), r.labels, r.classes) for r in (fixed, extra.one_each())]
    found = descend(mlp, Descent(), mlp.initial(key), *single)
    exact = descend(mlp, Descent(), mlp.initial(key).double(), fixed, extra.one_each())
    assert float((found - exact).abs().max()) < 1e-5


def test_a_model_does_not_depend_on_its_neighbours(key):
    mlp = MLP((5,), (4,), 3)
    fixed, extra = records(20, 5, 3, key), records(6, 5, 3, key.fold(1)).one_each()
    start = mlp.initial(key).double()
    together = descend(mlp, Descent(steps=20), start, fixed, extra)
    alone = descend(mlp, Descent(steps=20), start, fixed, extra[4:5])
    torch.testing.assert_close(together[4:5], alone, rtol=1e-10, atol=1e-12)


def test_logits_and_accuracy_equal_the_module(key):
    mlp = MLP((2, 3), (4, 5), 3, activation="tanh")
    parameters = torch.stack([mlp.initial(key.fold(i)) for i in range(3)])
    inputs = torch.rand(7, 2, 3, generator=key.generator())
    found = logits(mlp, parameters, inputs)
    for i in range(3):
        module = mlp.build()
        torch.nn.utils.vector_to_parameters(parameters[i], module.parameters())
        torch.testing.assert_close(found[i], module(inputs).detach())
    everything_right = Records(inputs, found[0].argmax(1), ("a", "b", "c"))
    assert accuracy(mlp, parameters, everything_right)[0] == 1


def test_divergence_is_said(key):
    mlp = MLP((5,), (4,), 3, activation="identity")
    fixed = Records(1e3 * torch.rand(8, 5), torch.arange(8) % 3, ("a", "b", "c"))
    with pytest.raises(ExhumeError, match=r"training diverged \(.*rate 1e\+30.*lower the rate"):
        FullBatch(mlp, Descent(rate=1e30)).fit(mlp.initial(key), fixed, fixed.none_for(1), key)


def test_records_of_another_shape_are_refused(key):
    mlp = MLP((5,), (4,), 3)
    fixed = Records(torch.rand(8, 6), torch.arange(8) % 3, ("a", "b", "c"))
    with pytest.raises(ExhumeError, match=r"shape \(6,\) do not fit MLP 5-4-3.*takes \(5,\)"):
        FullBatch(mlp).fit(mlp.initial(key), fixed, fixed.none_for(1), key)


def test_memory_estimate_grows_with_records_and_width():
    small, wide = MLP((10,), (4,), 3), MLP((10,), (400,), 3)

    def estimate(mlp, count):
        return bytes_per_model(mlp, count, Descent())

    assert estimate(small, 10) < estimate(small, 1000) < estimate(wide, 1000)
