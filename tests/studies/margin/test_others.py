from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.parametrize(
    ("study", "claims", "metric"),
    [
        ("margin-classes", {"per-class", "fixed-total"}, "c5.total10.good"),
        (
            "margin-weight-decay",
            {
                f"c{classes}.{claim}"
                for classes in (2, 3)
                for claim in ("decay-leaks", "above-small", "first-layer-alone", "margin")
            }
            | {"with-errors"},
            "c3.decay0.01.test_error",
        ),
        (
            "margin-large",
            {"n10.small", "n10.small.eq6", "n10.small.eq6x4", "n15.decay"},
            "n10.small.eq6.good",
        ),
        ("margin-thousand", {"n15.decay"}, "n15.decay.good_low"),
    ],
)
@pytest.mark.slow
def test_smoke(study, claims, metric, tmp_path):
    result = run_study(study, "smoke", tmp_path / "run")
    assert {claim.id for claim in result.claims} == claims
    assert metric in result.metrics
    assert all(0 <= v <= 1 for n, v in result.metrics.items() if n.endswith("decoy_rate"))
    again = run_study(study, "smoke", tmp_path / "run")
    assert again.metrics == result.metrics
