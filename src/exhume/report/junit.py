"""A run as JUnit XML, for CI: one test case an attack. It carries numbers and words, no record."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from exhume.core.results import Result, Section, lacking_power
from exhume.store.shards import write_atomically

__all__ = ["write_junit"]

_ILLEGAL = {code: None for code in range(32) if chr(code) not in "\t\n\r"}


def write_junit(
    result: Result,
    path: Path,
    *,
    fail_over: float | None = None,
    at_risk: bool = False,
    power: float | None = None,
) -> None:
    """A failure: an attack that leaks more than `fail_over`. Skipped: one that could not be run.

    at_risk: this verdict is a failure, too. power: an error if a leak of that share could go unnoticed.
    """
    suite = ET.Element("testsuite", name="exhume")
    for attack in result.attacks:
        _case(suite, attack.spec.name, *_outcome(attack, fail_over or 0.0))
    for planned in result.plan:
        if not planned.run:
            _case(suite, planned.name, "skipped", planned.why)
    if result.verdict.word == "not audited":
        _case(suite, "verdict", "error", result.verdict.sentence)
    if at_risk and result.verdict.word == "at risk":
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
