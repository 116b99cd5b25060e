"""A run as JUnit XML, for CI: one test case an attack. It carries numbers and words, no record."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from exhume.report.result import checked, read_json
from exhume.store import write_atomically

__all__ = ["write_junit"]

_ILLEGAL = {code: None for code in range(32) if chr(code) not in "\t\n\r"}


def write_junit(run: Path, path: Path, *, fail_over: float | None = None) -> None:
    """A failure: an attack that leaks more than `fail_over`. Skipped: one that could not be run."""
    result = checked(read_json(run / "result.json"), run / "result.json")
    suite = ET.Element("testsuite", name="exhume")
    word = str(result["verdict"].get("word", ""))
    for attack in result["attacks"]:
        _case(suite, attack, str(attack.get("verdict", word)), fail_over or 0.0)
    for planned in result["plan"]:
        if not planned["run"]:
            case = ET.SubElement(suite, "testcase", classname="exhume", name=_text(planned["name"]))
            ET.SubElement(case, "skipped", message=_text(planned.get("why", "")))
    if word == "not audited":
        case = ET.SubElement(suite, "testcase", classname="exhume", name="verdict")
        ET.SubElement(case, "error", message=_text(result["verdict"].get("sentence", "")))
    for name, tag in (("tests", "testcase"), ("failures", ".//failure"), ("errors", ".//error")):
        suite.set(name, str(len(suite.findall(tag))))
    suite.set("skipped", str(len(suite.findall(".//skipped"))))
    write_atomically(path, ET.tostring(suite, encoding="utf-8", xml_declaration=True))


def _case(suite: ET.Element, attack: dict[str, Any], word: str, allowed: float) -> None:
    case = ET.SubElement(suite, "testcase", classname="exhume", name=_text(attack["name"]))
    metrics = attack["metrics"]
    rate = metrics.get("success", metrics.get("above_bar_share"))
    if attack["status"].get("outcome") == "not applicable":
        ET.SubElement(case, "skipped", message=_text(attack["status"].get("reason", "")))
    elif word == "leaks" and isinstance(rate, int | float) and rate > allowed:
        words = f"{rate:.1%} of the records leak; allowed are {allowed:.1%}"
        ET.SubElement(case, "failure", message=words)


def _text(value: object) -> str:
    return str(value).translate(_ILLEGAL)
