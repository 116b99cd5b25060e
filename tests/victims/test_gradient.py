from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Records
from exhume.models.two_layer import TwoLayer
from exhume.victims.gradient import cut_batches, release_batches


def test_the_gradient_is_that_of_the_paper(make_records, key):
    """dL/da_j = sum_i l'_i sigma(w_j x_i) and dL/dW by hand, for the mean and the sum."""
    network = TwoLayer((6,), 9, 1, "tanh")
    batches = cut_batches(make_records(8, (6,), 2, key), 4)
    parameters = network.initial(key).double()
    weights, outer = network.layout.split(parameters).values()
    for reduction, share in (("mean", 4), ("sum", 1)):
        release, secret = release_batches(network, parameters, batches, reduction=reduction)
        x, y = batches.inputs[1].double(), batches.labels[1].double()
        height = torch.tanh(x @ weights.T)
        slope = (torch.sigmoid(height @ outer[0]) - y) / share
        got = release.layout.split(release.values[1])
        torch.testing.assert_close(got["fc2.weight"][0], slope @ height)
        by_hand = ((slope[:, None] * (1 - height**2)) * outer).T @ x
        torch.testing.assert_close(got["fc1.weight"], by_hand)
        assert secret.open() is batches


def test_local_steps_release_the_average_step(make_records, key):
    network = TwoLayer((6,), 9, 3, "elu")
    batches = cut_batches(make_records(4, (6,), 3, key), 4)
    start = network.initial(key).double()
    one, _ = release_batches(network, start, batches)
    three, _ = release_batches(network, start, batches, steps=3, rate=0.2)
    here = start
    for _ in range(3):
        here = here - 0.2 * release_batches(network, here, batches)[0].values[0]
    torch.testing.assert_close(three.values[0], (start - here) / 0.6)
    close, _ = release_batches(network, start, batches, steps=3, rate=1e-6)
    torch.testing.assert_close(close.values, one.values, rtol=1e-3, atol=1e-6)


def test_refusals(make_records, key):
    records = make_records(4, (6,), 3, key)
    network = TwoLayer((6,), 9, 1, "tanh")
    with pytest.raises(ExhumeError, match="batches of 5 from 4 records"):
        cut_batches(records, 5)
    with pytest.raises(ExhumeError, match="one output takes labels 0 and 1"):
        release_batches(network, network.initial(key), cut_batches(records, 4))
    plain = Records(records.inputs, records.labels % 2, records.classes)
    with pytest.raises(ExhumeError, match="steps: must be at least 1, got 0"):
        release_batches(network, network.initial(key), cut_batches(plain, 2), steps=0)
    with pytest.raises(ExhumeError, match="'cosh' is not one of relu"):
        TwoLayer((6,), 9, 1, "cosh")
    with pytest.raises(ExhumeError, match="width, outputs: must be at least 1, got 0 and 1"):
        TwoLayer((6,), 0)
