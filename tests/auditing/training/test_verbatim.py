"""Records that training writes into parameters are found by looking, whatever the attacks say."""

from __future__ import annotations

from pathlib import Path

import pytest

import exhume

OWNER = Path(__file__).with_name("verbatim_owner.py")


def audited(small, network, train, out):
    victim = {"network": f"{OWNER}:{network}", "train": f"{OWNER}:{train}"}
    data = small["data"] | {"targets": 30, "shadows": 20, "fixed": 30}
    return exhume.audit({**small, "data": data, "victim": victim}, out)


@pytest.mark.parametrize("network", ["rows", "columns", "larger", "embedded"])
def test_a_third_of_the_records_as_they_are_leaks(network, small, tmp_path):
    done = audited(small, network, "keep", tmp_path / "run")
    assert done.verdict.word == "leaks"
    stored = next(one for one in done.result.attacks if one.spec.id == "as-stored")
    assert stored.counts
    assert 4 <= stored.lineup.identified <= 18  # about a third of thirty
    assert stored.lineup.adjusted <= 0.01
    assert done.report.read_text().count("<img") >= 30
