"""Kept results: decided again from the numbers that were kept, every claim reads as it was kept."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from exhume.core.results import Claim, read_result
from exhume.core.typed_json import to_json
from exhume.score.intervals import Correlation
from exhume.score.measures import STATISTICS
from exhume.studies import STUDIES
from exhume.studies.claims import claims_of
from exhume.studies.informed import gallery, glm
from exhume.studies.margin import classes, large, ordinary, weight_decay
from exhume.studies.split import repairs
from exhume.studies.verdict import trust

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def kept(study):
    return read_result(RESULTS / f"{study}.json")


def of_gallery(setting, m):
    def correlation(name):
        return Correlation(*(m[f"{name}.rho{end}"] for end in ("", "_low", "_high")))

    names = {name: name.replace(" ", "_") for name in STATISTICS}
    links = {n: (correlation(k), correlation(f"{k}.relative")) for n, k in names.items()}
    return gallery._claims(links, m)


def of_repairs(setting, m):
    words = {(1, 0): "leaks", (0, 1): "at risk", (0, 0): "nothing found"}
    said = {n: words[m[f"{n}.leaks"], m[f"{n}.at_risk"]] for n in setting.repairs}
    return repairs._claims(setting, m, said)


DECIDED = {  # (setting, metrics) to those claims that follow from metrics alone
    "gradient-noise": partial(claims_of, "gradient-noise"),
    "gradient-start": partial(claims_of, "gradient-start"),
    "informed-gallery": of_gallery,
    "informed-glm": lambda _, m: glm._claims(m),
    "margin-classes": classes._claims,
    "margin-large": lambda s, m: {n: large._claim(n, v.bar, m) for n, v in s.victims.items()},
    "margin-ordinary": ordinary._claims,
    "margin-weight-decay": weight_decay._with_errors,
    "split-repairs": of_repairs,
    "update-networks": partial(claims_of, "update-networks"),
    "verdict": lambda _, m: trust._claims(m),
}
ELSEWHERE = {  # claims of these studies that compare target by target: their targets are not kept
    "gradient-noise": 1,
    "margin-large": 2,
    "margin-weight-decay": 8,
}


@pytest.mark.parametrize("study", DECIDED)
def test_claims_are_decided_as_they_were(study):
    result, setting = kept(study), STUDIES[study].scales["cpu"]
    decided = [Claim(name, *said) for name, said in DECIDED[study](setting, result.metrics).items()]
    assert set(decided) <= set(result.claims)
    assert len(decided) == len(result.claims) - ELSEWHERE.get(study, 0)


@pytest.mark.parametrize("study", ["gradient-deep", "gradient-query"])
def test_metrics_claims_and_charts_follow_from_the_arms(study, canned):
    result = kept(study)
    again = canned(study, result.metrics, result.scale)
    assert again.metrics == result.metrics
    assert {Claim(name, *said) for name, said in again.claims.items()} == set(result.claims)
    assert to_json(again.charts) == to_json(result.charts)
    assert tuple(again.deviations) == result.deviations
