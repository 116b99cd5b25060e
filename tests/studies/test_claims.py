from __future__ import annotations

import pytest
import torch

from exhume.studies import STUDIES
from exhume.studies.claims import Range, Words, line, said_of, spread


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


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("{share} > 0.5", True),
        ("[share] > 0.5", None),  # the interval contains both sides
        ("[share] > 0.8", False),
        ("[share] > 0.3", True),
        ("[share] > 0.3 and {share} < 0.5", False),
        ("[share] > 0.5 and {share} < 0.5", False),
        ("[share] > 0.3 and [share] > 0.5", None),
        ("abs([gain]) < 0.1", None),
        ("[gain] + 0.06 > 0", True),
        ("2 * [gain] < 0.5", True),
        ("[several] > 0", False),
        ("[some] > 0", None),
        ("[arm.x] > 0", True),
    ],
)
def test_a_condition_is_decided_by_intervals(condition, holds):
    numbers = {"share": 0.6, "share_low": 0.4, "share_high": 0.7, "name": "x", "arm.x.low": 1}
    said = {"gain": Range(-0.05, 0.2), "several": [(0.1, 0.2), (-2.0, -1.0)]}
    said |= {"some": [(0.1, 0.2), Range(-1.0, 1.0)], "arm.x.high": 2}
    words = Words(None, numbers | said)
    assert words.holds(condition) is holds
    assert words.holds(condition.replace("arm.x", "arm.<name>")) is holds


def test_a_number_without_an_interval_is_not_taken_for_one():
    with pytest.raises(ValueError, match="share is a number without an interval"):
        Words(None, {"share": 0.5}).holds("[share] > 0")
    with pytest.raises(ValueError, match="no comparison of numbers"):
        Words(None, {"share": 0.5}).holds("{share}")


def test_angle_brackets_mean_a_part_of_a_name_in_braces_only():
    words = Words(None, {"name": "x", "arm.x": 0.25})
    assert words.text("`<row>.each`: {arm.<name>:.2f}") == "`<row>.each`: 0.25"


def test_every_study_has_its_words_and_every_claim_what_decides_it():
    for study in STUDIES:
        said = said_of(study)
        assert {"title", "paper"} <= set(said), study
        for name, row in said["claims"].items():
            assert {"claim", "measured", "holds"} <= set(row), (study, name)
