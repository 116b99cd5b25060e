"""What tests of studies share: a study whose arms are canned, and the numbers that its claims turn on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch

from exhume.core.contract import Key
from exhume.report.folder import RunFolder
from exhume.studies import STUDIES
from exhume.studies.claims import Words, claims_of
from exhume.studies.framework import Run, RunOptions, outcome_of


@dataclass(frozen=True, eq=False)
class Canned(Run):
    """A run that computes nothing: an arm has the metrics that begin with its name."""

    metrics: Mapping[str, object] = field(default_factory=dict)

    def tensors(self, stage, make, jobs, setting=None):
        return {job: self._of(re.split("[ ,]", job)[0] + ".") for job in jobs}

    def _of(self, arm):
        return {
            name.removeprefix(arm): torch.as_tensor(value, dtype=torch.float64)
            for name, value in self.metrics.items()
            if name.startswith(arm)
        }


@pytest.fixture
def canned(tmp_path):
    """A function: a study's name, its metrics and a scale to its outcome, without running an arm."""

    def outcome(name, metrics, scale="smoke"):
        folder = RunFolder.create(tmp_path / name)
        run = Canned(STUDIES[name], scale, RunOptions(), folder, 1, metrics=metrics)
        return outcome_of(run)

    return outcome


def failing(claims):
    return {name for name, (*_, holds) in claims.items() if holds is not True}


@pytest.fixture
def claimed():
    """A function: a study, its numbers and what else it says, and its setting, to its claims."""
    return lambda study, values, setting=None: claims_of(study, Words.of(study, setting, values))


@pytest.fixture
def claims_turn():
    """A function that asserts what claims turn on.

    decide: numbers to claims; right: numbers with which every claim holds, by as little as can be; ends:
    pairs of a claim (or several) and numbers that, put in the place of others, end it and no other claim.
    """

    def check(decide, right, *ends):
        claims = decide(right)
        assert failing(claims) == set()
        ended = [({one} if isinstance(one, str) else set(one), change) for one, change in ends]
        assert set(claims) == set().union(*(names for names, _ in ended))
        for names, change in ended:
            assert change.keys() <= right.keys(), f"{names}: {change} is read by nobody"
            assert failing(decide({**right, **change})) == names, change

    return check


@pytest.fixture
def around():
    """A function: a mean to (60,) values, one a target.

    Targets differ far more than two arms do on one of them: of two means that are 0.001 apart it is certain
    which is larger, of two that are 0.0002 apart it is not; two that are equal have the same values.
    """

    def drawn(key):
        values = torch.randn(60, generator=key.generator()).double()
        return values - values.mean()

    key = Key.from_seed(1)
    common = 0.01 * drawn(key)
    return lambda mean: mean + common + 0.001 * drawn(key.fold(repr(mean)))
