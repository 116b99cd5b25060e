from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exhume.core.contract import ExhumeError
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
    assert mean_auc(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])) == 0.5


def test_gap_over_spread():
    members, others = torch.tensor([[3.0], [5.0]]), torch.tensor([[0.0], [2.0]])
    assert float(gap_over_spread(members, others)) == pytest.approx(3 / 2**0.5)
    members, others = torch.arange(10.0).reshape(5, 2).double() ** 2, torch.eye(2).double()
    columns = zip(members.T, others.T, strict=True)
    naive = [(a.mean() - b.mean()) / ((a.var() + b.var()) / 2) ** 0.5 for a, b in columns]
    torch.testing.assert_close(gap_over_spread(members, others), torch.stack(naive))
    still = torch.ones(3, 1)
    assert float(gap_over_spread(still, still)) == 0
    assert float(gap_over_spread(still + 1, still)) == float("inf")


def test_what_cannot_be_scored_is_refused():
    one = torch.ones(1, 2)
    with pytest.raises(ExhumeError, match="0 models with and 1 without"):
        auc(one[:0], one)
    with pytest.raises(ExhumeError, match="1 models with and 0 without"):
        auc(one, one[:0])
    for members, others in ((1, 2), (2, 1)):
        with pytest.raises(ExhumeError, match="at least 2 of each needed"):
            gap_over_spread(one.expand(members, 2), one.expand(others, 2))
    with pytest.raises(ExhumeError, match="not of the same targets"):
        auc(one, torch.ones(1, 3))
    broken = torch.tensor([[1.0, float("nan")]])
    for members, others in ((broken, one), (one, broken)):
        with pytest.raises(ExhumeError, match="not a number"):
            auc(members, others)
