"""A rescaling that changes no output hides no record from an audit."""

from __future__ import annotations

from pathlib import Path

import exhume

OWNER = Path(__file__).with_name("disguised_owner.py")


def test_rescaled_units_leak_as_they_did(small, tmp_path):
    victim = {"network": f"{OWNER}:net", "train": f"{OWNER}:rescaled"}
    data = small["data"] | {"targets": 20, "shadows": 80}
    done = exhume.audit({**small, "data": data, "victim": victim}, tmp_path / "run")
    assert done.verdict.word == "leaks"
    closed = next(one for one in done.result.attacks if one.spec.id == "closed-form")
    assert closed.metrics["units_aligned"] == 1
    assert closed.lineup.share > 0.4
