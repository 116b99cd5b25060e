from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exhume.contract import ExhumeError
from exhume.score.membership import auc, gap_over_spread, mean_auc

scores = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(scores, scores)
def test_auc_is_the_share_of_pairs_in_the_right_order(members, others):
    naive = sum((m > o) + 0.5 * (m == o) for m in members for o in others)
    found = auc(torch.tensor(members).double(), torch.tensor(others).double())
    assert float(found) == pytest.approx(naive / len(members) / len(others))


def test_targets_are_separated_one_by_one():
    """Pooled, the easy target's others would beat the hard target's members."""
    members = torch.tensor([[0.9, 0.2], [0.8, 0.3]])
    others = torch.tensor([[0.7, 0.1], [0.6, 0.0], [0.5, 0.0]])
    assert auc(members, others).tolist() == [1.0, 1.0]
    assert mean_auc(members, others) == 1.0
    assert mean_auc(others, members) == 0.0
    assert float(auc(members.flatten(), others.flatten())) < 1


def test_gap_over_spread():
    members, others = torch.tensor([[3.0], [5.0]]), torch.tensor([[0.0], [2.0]])
    assert float(gap_over_spread(members, others)) == pytest.approx(3 / 2**0.5)
    still = torch.ones(3, 1)
    assert float(gap_over_spread(still, still)) == 0
    assert float(gap_over_spread(still + 1, still)) == float("inf")


def test_what_cannot_be_scored_is_refused():
    one = torch.ones(1, 2)
    with pytest.raises(ExhumeError, match="0 models with and 1 without"):
        auc(one[:0], one)
    with pytest.raises(ExhumeError, match="at least 2 of each needed"):
        gap_over_spread(one, one)
    with pytest.raises(ExhumeError, match="not of the same targets"):
        auc(one, torch.ones(1, 3))
    with pytest.raises(ExhumeError, match="not a number"):
        auc(one * float("nan"), one)
