"""Naming: snapped to the list, equal records as one, and what is refused."""

from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.naming import named_rightly, nearest_is_right

CLASSES = ("a", "b")


def records(rows: list[list[float]]) -> Records:
    return Records(torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64), CLASSES)


def answers(rows: list[list[float]]) -> Reconstruction:
    given = torch.tensor(rows)[:, None]
    return Reconstruction(given, torch.zeros(len(rows), 1), Status(Outcome.CONVERGED))


LISTED = records([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])


def test_the_nearest_candidate_counts():
    secret = Secret(records([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    found = named_rightly(secret, answers([[0.2, 0.3], [0.9, 0.1], [0.8, -3.0]]), LISTED)
    assert found.tolist() == [True, False, True]


def test_equal_candidates_are_one():
    secret = Secret(LISTED[3:])
    assert named_rightly(secret, answers([[1.0, 0.0]]), LISTED).tolist() == [True]


def test_many_candidates_of_any_shape(key):
    listed = torch.rand(40, 2, 3, generator=key.generator())
    which = torch.randint(40, (25,), generator=key.generator())
    answers = listed[which] + 0.3 * torch.randn(25, 2, 3, generator=key.generator())
    naive = [
        min(range(40), key=lambda i: float((answer - listed[i]).square().sum())) == own
        for answer, own in zip(answers, which.tolist(), strict=True)
    ]
    found = nearest_is_right(answers, listed[which], listed)
    assert found.tolist() == naive
    assert 5 < sum(naive) < 25


def test_refusals():
    with pytest.raises(ExhumeError, match="candidates: a record behind a release is not on the"):
        named_rightly(Secret(records([[0.5, 0.5]])), answers([[0.5, 0.5]]), LISTED)
    with pytest.raises(
        ExhumeError, match="1 candidates for each of 2 releases do not answer 1 rec"
    ):
        named_rightly(Secret(LISTED[:1]), answers([[0.5, 0.5], [0.0, 0.0]]), LISTED)
    nothing = Reconstruction(torch.zeros(1, 0, 2), torch.zeros(1, 0), Status(Outcome.CONVERGED))
    with pytest.raises(ExhumeError, match="0 candidates for each of 1 releases"):
        named_rightly(Secret(LISTED[:1]), nothing, LISTED)
