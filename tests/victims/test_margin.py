"""Which training images count as on the margin."""

from __future__ import annotations

import pytest
import torch

from exhume.victims.margin import on_margin


@pytest.mark.parametrize(
    ("margins", "counted"),
    [
        ([1.0, 1.05, 1.2, 9.0], [True, True, False, False]),
        ([1.0, 1.05, -0.3, 9.0], [True, True, False, False]),  # one error, the margin stays
        ([-1.0, -2.0], [False, False]),
        ([0.0, 0.5], [False, True]),
    ],
)
def test_an_image_that_is_classified_wrong_does_not_move_the_margin(margins, counted):
    assert on_margin(torch.tensor(margins)).tolist() == counted
