from __future__ import annotations

import pytest
import torch

from exhume.studies.claims import point, spread


def test_a_point_is_what_spread_wrote(key):
    metrics = spread("share", torch.tensor([0.1, 0.3, 0.5]), key)
    assert metrics["share"] == pytest.approx(0.3)
    drawn = point(7, "share", metrics)
    assert (drawn.x, drawn.y, drawn.low) == (7, metrics["share"], metrics["share_low"])
    assert drawn.high == metrics["share_high"]
    same = spread("share", torch.zeros(3), key)  # shares of parameters, not successes to be counted
    assert (same["share_low"], same["share_high"]) == (0, 0)
