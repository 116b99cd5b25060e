"""A run as JUnit XML, for CI: one test case an attack. It carries numbers and words, no record."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from exhume.results import Result, Section
from exhume.store import write_atomically

__all__ = ["write_junit"]

_ILLEGAL = {code: None for code in range(32) if chr(code) not in "\t\n\r"}


def write_junit(result: Result, path: Path, *, fail_over: float | None = None) -> None:
    """A failure: an attack that leaks more than `fail_over`. Skipped: one that could not be run."""
    suite = ET.Element("testsuite", name="exhume")
    for attack in result.attacks:
        _case(suite, attack, fail_over or 0.0)
    for planned in result.plan:
        if not planned.run:
            _skipped(suite, planned.name, planned.why)
    if result.verdict.word == "not audited":
        case = ET.SubElement(suite, "testcase", classname="exhume", name="verdict")
        ET.SubElement(case, "error", message=_text(result.verdict.sentence))
    for name, tag in (("tests", "testcase"), ("failures", ".//failure"), ("errors", ".//error")):
        suite.set(name, str(len(suite.findall(tag))))
    suite.set("skipped", str(len(suite.findall(".//skipped"))))
    write_atomically(path, ET.tostring(suite, encoding="utf-8", xml_declaration=True))


def _case(suite: ET.Element, attack: Section, allowed: float) -> None:
    if not attack.applies:
        _skipped(suite, attack.spec.name, attack.status.reason)
        return
    case = ET.SubElement(suite, "testcase", classname="exhume", name=_text(attack.spec.name))
    leak = attack.leak
    if attack.verdict == "leaks" and attack.counts and leak is not None and leak.share > allowed:
        words = f"{leak.share:.1%} of the records leak; allowed are {allowed:.1%}"
        ET.SubElement(case, "failure", message=words)


def _skipped(suite: ET.Element, name: str, why: str) -> None:
    case = ET.SubElement(suite, "testcase", classname="exhume", name=_text(name))
    ET.SubElement(case, "skipped", message=_text(why))


def _text(value: str) -> str:
    return value.translate(_ILLEGAL)
