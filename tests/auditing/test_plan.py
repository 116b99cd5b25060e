from __future__ import annotations

import pytest

from exhume.auditing.plan import Offer, choose, duration_of, seconds_in
from exhume.contract import ExhumeError


def offer(name: str, seconds: float, **more) -> Offer:
    return Offer(name, name, "sees all", float(seconds), more.pop("run", lambda *_: []), **more)


def test_without_a_budget_all_that_was_asked_for_is_taken():
    plan = choose([offer("a", 1e9), offer("extra", 1, asked=False)], None)
    assert [planned.taken for planned in plan] == [True, False]
    assert plan[1].why == "only with --budget; it would take about 1 s"


def test_a_budget_takes_what_fits_in_order_and_says_what_was_left():
    offers = [offer("a", 60), offer("b", 500), offer("c", 30, asked=False), offer("d", 20)]
    plan = choose(offers, 100.0)
    assert [planned.taken for planned in plan] == [True, False, True, False]
    assert plan[1].why == "it would take about 8 min, 40 s of the budget were left"
    assert plan[3].why == "it would take about 20 s, 10 s of the budget were left"


def test_what_does_not_apply_is_left_with_its_reason_whatever_the_budget():
    plan = choose([offer("a", 1, run=None, why_not="it has a convolution")], None)
    assert not plan[0].taken
    assert plan[0].told()["why"] == "does not apply: it has a convolution"


def test_what_goes_on_from_another_is_left_with_it():
    plan = choose([offer("a", 500), offer("b", 1, needs="a")], 100.0)
    assert [planned.taken for planned in plan] == [False, False]
    assert plan[1].why == "it goes on from a, which was left out"


@pytest.mark.parametrize(
    ("text", "seconds"), [("", None), ("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400)]
)
def test_times(text, seconds):
    assert seconds_in(text) == seconds


@pytest.mark.parametrize("text", ["10 minutes", "-3m", "0s", "m", "1e3"])
def test_what_is_no_time(text):
    with pytest.raises(ExhumeError, match="is not a time such as 90s, 10m or 1.5h"):
        seconds_in(text)


def test_durations_are_short():
    assert [duration_of(s) for s in (12.0, 600.0, 9000.0)] == ["12 s", "10 min", "2.5 h"]
