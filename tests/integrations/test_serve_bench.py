from __future__ import annotations

import pytest

from exhume.core.contract import ExhumeError, silent

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

from exhume.integrations.serve_bench import Load, measure

served = pytest.importorskip("served")


@pytest.mark.slow
@pytest.mark.serve
@pytest.mark.xdist_group("serve")
def test_ratios_are_those_of_the_medians_and_every_answer_is_right(monkeypatch):
    python = served.server_python()
    if python is None:
        pytest.skip("no interpreter with MLServer: make test sets one up")
    monkeypatch.setenv("EXHUME_SERVE_PYTHON", python)
    monkeypatch.setenv("PYTHONPATH", served.SRC)
    load = Load(bodies=(3, 1), width=4, alone=8, clients=2, each=5, scheme="http")
    one, three = measure(load, silent)
    assert one["ratio_to_one"] == one["ratio_to_sum"] == 1
    assert three["ratio_to_one"] == pytest.approx(three["ours"] / one["ours"])
    assert three["ratio_to_sum"] == pytest.approx(three["ratio_to_one"] / 3)
    assert [entry["wrong_answers"] for entry in (one, three)] == [0, 0]
    assert [entry["requests"] for entry in (one, three)] == [18, 18]
    assert three["p50_seconds"] <= three["p99_seconds"]


def test_a_load_without_a_yardstick():
    with pytest.raises(ExhumeError, match="1 must be among them"):
        Load(bodies=(2, 4))
