from __future__ import annotations

import pytest
import torch

from exhume.studies.claims import line, spread


def test_a_point_is_what_spread_wrote(key):
    metrics = spread("arm.share", torch.tensor([0.1, 0.3, 0.5]), key)
    assert metrics["arm.share"] == pytest.approx(0.3)
    (drawn,) = line({7: "arm"}, "share", metrics)
    assert (drawn.x, drawn.y, drawn.low) == (7, metrics["arm.share"], metrics["arm.share_low"])
    assert drawn.high == metrics["arm.share_high"]
    (alone,) = line({"seven": "arm"}, "share", {"arm.share": 0.3})
    assert (alone.x, alone.y, alone.low, alone.high) == ("seven", 0.3, None, None)
    same = spread("share", torch.zeros(3), key)  # shares of parameters, not successes to be counted
    assert (same["share_low"], same["share_high"]) == (0, 0)
