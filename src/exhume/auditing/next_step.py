"""What to run where nothing is known yet: options, minutes, and the leak that would be noticed.

Where an attack lacked time, the same sizes in more of it; where it was not shown to work, more of what it
lives on. Prices come from the planner: the rows of the same case with more effort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.stats import binom

from exhume.auditing.case import Case, rows_of
from exhume.auditing.judge import Judged
from exhume.auditing.plan import BY_HAND, KEPT_BACK, TOO_LATE
from exhume.core.notation import duration_of
from exhume.core.results import Section
from exhume.score.intervals import rate_reaching
from exhume.score.lineup import LEVEL
from exhume.score.verdict import unsettled

_MORE = 4  # times as much as was tried
_SPARE = 1.1  # of an estimate


def next_step(case: Case, judged: Judged, *, budget: float | None, tests: int) -> str:
    """The options that the same command needs, what they take, and what they would show; empty: none helps.

    case: one whose verdict is "not audited"; tests: of the audit.
    """
    own = [one.section for one in judged.found if one.section.release == case.title]
    reasons = [f"{section.status.reason} {section.doubt}" for section in own]
    controls = [row for row in judged.controls if row.release == case.title]
    if any(BY_HAND in reason for reason in reasons):
        return "the same command goes on from where it was stopped"
    late = any(TOO_LATE in text for text in (*reasons, *(row.note for row in controls)))
    if not late and any(unsettled(section) for section in own if section.counts):
        return ""
    climbed = any(not row.note for row in controls)
    more = case.with_more(_MORE if climbed else 1)
    if not late and more is None and (climbed or not any(one.seconds for one in case.ladders())):
        return ""
    if climbed and not late and more is not None and not more[1]:
        return "give more records of the same kind: these leave no room for more effort"
    longer, options = (case, {}) if more is None else more
    named = " ".join(f"--{name} {count}" for name, count in options.items())
    seconds = _seconds(longer)
    if budget is not None:
        seconds = max(seconds, 2 * budget if late else 0.0)
        minutes = math.ceil(_SPARE * seconds / 60)
        named += f" --budget {minutes}m"
    if not named:
        return ""
    takes = f"about {duration_of(_SPARE * seconds)}"
    shown = _noticed(own, options.get("targets"), tests)
    return f"the same command with {named.strip()} and another --out: {takes}{shown}"


def _seconds(case: Case) -> float:
    """Seconds of its attacks and of the control that they may need, which gets at most half of a budget."""
    rows = [row for row in rows_of(case) if row.when != "extra" and not row.why_not]
    attacks = sum(row.seconds for row in rows)
    control = next((ladder.seconds for ladder in case.ladders() if ladder.seconds), 0.0)
    return max(attacks / (1 - KEPT_BACK), attacks + control, 2 * control)


def _noticed(own: Sequence[Section], targets: int | None, tests: int) -> str:
    """The leak that so many targets would show, by chance and level of the line-up that there was."""
    lineup = next((s.lineup for s in own if s.counts and s.lineup and s.lineup.targets), None)
    if lineup is None:
        return ""
    count, level = targets or lineup.targets, LEVEL / max(1, tests)
    needed = next(k for k in range(count + 2) if binom.sf(k - 1, count, lineup.chance) <= level)
    share = rate_reaching(needed, count)
    return f"; {count} targets would show a leak of {share:.0%} or more"
