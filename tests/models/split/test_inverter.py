"""A shadow of the client's own form: drawn anew, never taken over."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from exhume.core.contract import Key, NotApplicable
from exhume.models.drawing import he_normal
from exhume.models.split.inverter import OwnForm

SHAPE = (1, 8, 8)


class Drawn:
    input_shape = SHAPE

    def module(self, key):
        layers = nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)
        return he_normal(lambda: nn.Sequential(*layers), key)


class Loaded(Drawn):
    """A factory that loads a checkpoint by itself."""

    def module(self, key):
        return super().module(Key.from_seed(0))


class Looked(Drawn):
    def module(self, key):
        return nn.Sequential(nn.Identity(), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def test_two_shadows_of_a_form_differ():
    form = OwnForm(Drawn(), "1", "2")
    heads = [form.module(SHAPE, (2, 8, 8), Key.from_seed(i)) for i in (0, 1)]
    assert not torch.equal(*(next(head.parameters()) for head in heads))


def test_a_network_that_brings_its_weights_gives_no_shadow():
    with pytest.raises(NotApplicable, match="the same weights whatever the seed"):
        OwnForm(Loaded(), "1", "2").module(SHAPE, (2, 8, 8), Key.from_seed(3))


def test_a_head_without_weights_is_its_own_form():
    head = OwnForm(Looked(), "1", "2").module(SHAPE, SHAPE, Key.from_seed(0))
    assert torch.equal(head(-torch.ones(1, *SHAPE)), torch.zeros(1, *SHAPE))
