"""What a gate reads: a run as JUnit XML, without any record, and two runs side by side."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exhume.core.contract import ExhumeError
from exhume.core.results import Rate, Result, Section, lacking_power, read_result, refused
from exhume.store.shards import write_atomically

_ILLEGAL = {code: None for code in range(32) if chr(code) not in "\t\n\r"}


def write_junit(
    result: Result,
    path: Path,
    *,
    fail_over: float | None = None,
    fail_on: str | None = None,
    power: float | None = None,
) -> None:
    """Write one test case an attack. A failure: it leaks more than `fail_over`. Skipped: it could not be run.

    fail_on: a verdict that is a failure, too (`refused`). power: an error if a leak of that share could go
    unnoticed.
    """
    suite = ET.Element("testsuite", name="exhume")
    for attack in result.attacks:
        _case(suite, attack.spec.name, *_outcome(attack, fail_over or 0.0))
    for planned in result.plan:
        if not planned.run:
            _case(suite, planned.name, "skipped", planned.why)
    if result.verdict.word == "not audited":
        _case(suite, "verdict", "error", result.verdict.sentence)
    failed = any(case.find("failure") is not None for case in suite)
    if refused(result, fail_on) and not failed:
        _case(suite, "verdict", "failure", result.verdict.sentence)
    if why := lacking_power(result, power):
        _case(suite, "power", "error", why)
    suite.set("tests", str(len(suite)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f".//{tag}"))))
    write_atomically(path, ET.tostring(suite, encoding="utf-8", xml_declaration=True))


def _outcome(attack: Section, allowed: float) -> tuple[str, str]:
    """The element that says how it ended, and its message; nothing where it passed."""
    if not attack.applies:
        return "skipped", attack.status.reason
    leak = attack.leak
    if attack.verdict == "leaks" and attack.counts and leak is not None and leak.share > allowed:
        return "failure", f"{leak.share:.1%} of the records leak; allowed are {allowed:.1%}"
    return "", ""


def _case(suite: ET.Element, name: str, outcome: str, message: str) -> None:
    case = ET.SubElement(suite, "testcase", classname="exhume", name=_text(name))
    if outcome:
        ET.SubElement(case, outcome, message=_text(message))


def _text(value: str) -> str:
    return value.translate(_ILLEGAL)


Word = Literal["better", "worse", "within noise"]


@dataclass(frozen=True)
class Change:
    """One attack's success in both runs. Better: less leaks."""

    name: str
    word: Word
    first: float
    second: float
    low: float  # of the difference second - first, 95%
    high: float

    def sentence(self) -> str:
        gap = f"{self.low:+.1%} to {self.high:+.1%}"
        return f"{self.word}: {self.name}: {self.first:.1%} -> {self.second:.1%} ({gap})"


def compare(first: Path, second: Path) -> list[Change]:
    """Attacks that both runs have and that were scored; raises `ExhumeError` where there is none."""
    one, other = (_rates(run) for run in (first, second))
    both = [attack for attack in one if attack in other]
    if not both:
        raise ExhumeError(
            f"{first} and {second}: no attack was run and scored in both, so there is nothing to compare"
        )
    return [_change(attack[1], one[attack], other[attack]) for attack in both]


def _rates(run: Path) -> dict[tuple[str, str], Rate]:
    """How much every attack brought back, by release and name."""
    result = read_result(run / "result.json")
    if not isinstance(result, Result):
        raise ExhumeError(f"{run}: the run of a study; audits are compared")
    return {
        (attack.release, attack.spec.name): attack.leak
        for attack in result.attacks
        if attack.leak is not None and attack.leak.trials
    }


def _change(name: str, one: Rate, other: Rate) -> Change:
    low, high = difference(one, other)
    word: Word = "better" if high < 0 else "worse" if low > 0 else "within noise"
    return Change(name, word, one.share, other.share, low, high)


def difference(one: Rate, other: Rate) -> tuple[float, float]:
    """95% interval of the second share less the first: Newcombe's, from the exact limits of each."""
    gap = other.share - one.share
    return (
        gap - math.hypot(other.share - other.low, one.high - one.share),
        gap + math.hypot(other.high - other.share, one.share - one.low),
    )
