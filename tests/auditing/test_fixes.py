"""Fixes on made-up cases: what is said of one, and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from exhume.auditing import fixes
from exhume.auditing.case import Case, Fix, Ladder, Row, Rung, Safer
from exhume.auditing.fixes import p_of_drop, try_fixes
from exhume.core.contract import Outcome, Status, silent
from exhume.core.evidence import LineupRow
from exhume.core.results import AttackSpec, Findings, Section
from exhume.report.folder import RunFolder
from exhume.score.verdict import leak_of

TARGETS = 40
SPEC = AttackSpec("a", "Attack A")


def findings(first: int, *, detectable: float = 0.1, doubt: str = "") -> Findings:
    """So many of the targets are identified, the first ones."""
    p = 1e-4 if first >= 5 else 0.5
    row = LineupRow(first, TARGETS, 99, 0.01, p, 5, detectable)
    ranks = torch.tensor([1] * first + [7] * (TARGETS - first))
    section = Section(SPEC, Status(Outcome.CONVERGED), leak=leak_of(row), lineup=row, doubt=doubt)
    return Findings(section, evidence={"rank": ranks})


@dataclass(frozen=True, eq=False)
class MadeUp(Case):
    """Its attack identifies so many; works on a rung or not."""

    identified: int
    offered: tuple[Fix, ...] = ()
    rung_works: bool = True
    doubt_of_it: str = ""
    detectable: float = 0.1
    deals: list[int] = field(default_factory=list)

    title = "the made-up release"

    def rows(self):
        return [Row(SPEC, None, "", seconds=10.0)]

    def redealt(self):
        self.deals.append(1)
        return self

    def fixes(self):
        return self.offered

    def find(self, attacks):
        first = 16 if self.rung_works else 0
        return {a: LineupRow(first, 16, 99, 0.01, 1e-4 if first else 1.0, 3, 0.2) for a in attacks}

    def ladders(self):
        rung = Rung("1", "at batch 1", 1.0, lambda *_: self)
        return [Ladder("batch", "32", "at your 32", (rung,))]


@pytest.fixture
def word(tmp_path, canned, monkeypatch):
    """Of a fix that turns one case into another."""
    monkeypatch.setattr(
        fixes,
        "attack_case",
        lambda case, rows, *_, **__: [
            findings(case.identified, detectable=case.detectable, doubt=case.doubt_of_it)
        ],
    )
    folder = RunFolder.create(tmp_path / "run")

    def judged(before: int, after: MadeUp, *, secret=False, left=None):
        fix = Fix(
            "f", "a fix", "none", "accuracy", 5.0, lambda *_: Safer(after, 0.8, 0.9), secret=secret
        )
        case = MadeUp(before, (fix,))
        (row,) = try_fixes({"the made-up release": case}, left, folder, silent, tests=1)
        assert len(case.deals) == 1
        return row

    return judged


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (40, MadeUp(0), "no leak found"),
        (40, MadeUp(20), "leaks"),
        (40, MadeUp(0, rung_works=False), "not audited"),  # nothing shows that it would be seen
        (40, MadeUp(0, doubt_of_it="it did not converge"), "not audited"),
        (6, MadeUp(2), "not audited"),  # no drop beyond chance
        (12, MadeUp(0, detectable=0.3), "not audited"),  # half of what leaked would go unnoticed
        (2, MadeUp(2), "not audited"),  # nothing leaked without it either
    ],
)
def test_the_word_of_a_fix(word, before, after, expected):
    row = word(before, after)
    assert row.verdict == expected
    assert row.without.successes == before
    assert row.leak.successes == after.identified
    assert f"without it {before} of {TARGETS}" in row.outcome


def test_what_only_keeps_a_secret_is_at_risk_at_best(word):
    assert word(40, MadeUp(0, rung_works=False), secret=True).verdict == "at risk"
    assert word(40, MadeUp(20), secret=True).verdict == "leaks"
    assert word(6, MadeUp(2), secret=True).verdict == "not audited"


def test_the_system_without_the_fix_is_attacked_again_and_priced(word):
    row = word(40, MadeUp(0), left=14.0)  # ten for the system, five for the fix
    assert not row.tried
    assert row.outcome == "not tried: about 15 s, 14 s left"
    assert word(40, MadeUp(0), left=16.0).tried


def test_a_drop_is_counted_on_the_targets_that_differ():
    ranks = torch.tensor([1] * 10 + [3] * 10)
    none = torch.full((20,), 5)
    assert p_of_drop(ranks, none) == pytest.approx(0.5**10)
    assert p_of_drop(ranks, ranks) == 1.0
    left_out = torch.cat([torch.zeros(10, dtype=torch.long), ranks[10:]])
    assert p_of_drop(left_out, none) == 1.0  # nobody was there twice
    assert p_of_drop(none, ranks) == 1.0  # more is no drop
