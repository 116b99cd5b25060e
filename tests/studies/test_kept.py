"""Kept results: decided again from the numbers that were kept, every claim reads as it was kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from exhume.core.results import Claim, read_result
from exhume.core.typed_json import to_json
from exhume.studies import STUDIES
from exhume.studies.claims import share_range
from exhume.studies.margin import figures, ordinary

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def kept(study):
    return read_result(RESULTS / f"{study}.json")


DECIDED = {  # (setting, metrics) to what else those claims ask for that follow from metrics alone
    "gradient-noise": lambda s, m: {"joint": (0, 0)},
    "gradient-start": lambda s, m: {},
    "informed-gallery": lambda s, m: {},
    "informed-glm": lambda s, m: {
        **{"asked": 1e-12, "sklearn": share_range(m["sklearn_success"], s.sklearn)},
    },
    "margin-classes": lambda s, m: {"compared": figures.compared_classes(s, m)},
    "margin-large": lambda s, m: {
        "victims": [{"name": name, "bar": victim.bar} for name, victim in s.victims.items()],
        "longer": [],
    },
    "margin-ordinary": ordinary.decoys,
    "margin-weight-decay": lambda s, m: {"by_classes": [], **figures.with_errors(s, m)},
    "update-networks": lambda s, m: {},
    "verdict": lambda s, m: {},
}
ELSEWHERE = {  # claims of these studies that compare target by target: their targets are not kept
    "gradient-noise": {"joint"},
    "margin-large": {"n500.small.eq6", "n500.small.eq6x4"},
    "margin-weight-decay": {
        f"c{c}.{name}"
        for c in (2, 10)
        for name in ("decay-leaks", "above-small", "first-layer-alone", "margin")
    },
}


@pytest.mark.parametrize("study", DECIDED)
def test_claims_are_decided_as_they_were(study, claimed):
    result, setting = kept(study), STUDIES[study].scales["cpu"]
    values = result.metrics | DECIDED[study](setting, result.metrics)
    decided = {Claim(name, *said) for name, said in claimed(study, values, setting).items()}
    elsewhere = ELSEWHERE.get(study, set())
    assert {claim.id for claim in result.claims} >= elsewhere
    assert {one for one in decided if one.id not in elsewhere} == {
        one for one in result.claims if one.id not in elsewhere
    }


@pytest.mark.parametrize("study", ["gradient-deep", "gradient-query"])
def test_metrics_claims_and_charts_follow_from_the_arms(study, canned):
    result = kept(study)
    again = canned(study, result.metrics, result.scale)
    assert again.metrics == result.metrics
    assert {Claim(name, *said) for name, said in again.claims.items()} == set(result.claims)
    assert to_json(again.charts) == to_json(result.charts)
    assert tuple(again.deviations) == result.deviations
