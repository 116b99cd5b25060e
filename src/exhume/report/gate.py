"""What a gate reads: a run as JUnit XML and SARIF, without any record, and two runs side by side."""

from __future__ import annotations

import hashlib
import json
import math
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from exhume.core.contract import ExhumeError
from exhume.core.results import (
    Rate,
    ReleaseRow,
    Result,
    Section,
    lacking_power,
    read_result,
    refused,
)
from exhume.store.shards import write_atomically

_ILLEGAL = {code: None for code in range(32) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True)
class Gate:
    """What a pipeline does not let pass."""

    fail_over: float | None = None  # a larger share of the records
    fail_on: str | None = None  # a verdict (`refused`)
    power: float | None = None  # a leak of that share could go unnoticed


def write_junit(result: Result, path: Path, gate: Gate) -> None:
    """Write one test case an attack. A failure: it leaks more than allowed. Skipped: it could not be run."""
    suite = ET.Element("testsuite", name="exhume")
    for attack in result.attacks:
        _case(suite, attack.spec.name, *_outcome(attack, gate.fail_over or 0.0))
    for planned in result.plan:
        if not planned.run:
            _case(suite, planned.name, "skipped", planned.why)
    if result.verdict.word == "not audited":
        _case(suite, "verdict", "error", result.verdict.sentence)
    failed = any(case.find("failure") is not None for case in suite)
    if refused(result, gate.fail_on) and not failed:
        _case(suite, "verdict", "failure", result.verdict.sentence)
    if why := lacking_power(result, gate.power):
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


# SARIF 2.1.0, for code scanning

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_RULES = {  # by verdict: what it is called, says and advises, and how severe; no rule: it is no alert
    "leaks": (
        "PrivateRecordsLeak",
        "Private records come back from a release.",
        "Do not release it as it is; exhume audit --try-fixes shows what stops the leak.",
        "8.0",
    ),
    "at risk": (
        "OnlyASecretProtects",
        "Only a secret protects the private records.",
        "Keep secret what the stronger adversary knows, or protect against that adversary.",
        "5.0",
    ),
    "not audited": (
        "NotAudited",
        "Nothing is known about a release.",
        "The report says for each attack what it lacked; give that, and audit again.",
        "3.0",
    ),
}


def write_sarif(result: Result, path: Path, gate: Gate, *, about: str) -> None:
    """Write a result for every release that leaks, is at risk or was not audited.

    An error: the gate does not let it pass. about: the file to show it at, as the user named it.
    """
    words = list(_RULES)
    rules = [
        {
            "id": name,
            "name": name,
            "shortDescription": {"text": text},
            "help": {"text": advice},
            "properties": {"tags": ["privacy", "security"], "security-severity": severity},
        }
        for name, text, advice, severity in _RULES.values()
    ]
    results = [
        _alert(row, words.index(row.word), _level(result, row, gate), _relative(about))
        for row in result.releases
        if row.word in _RULES
    ]
    driver = {"name": "exhume", "version": version("exhume"), "rules": rules}
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": "exhume/"},
        "invocations": [{"executionSuccessful": True}],
        "results": results,
    }
    text = json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)
    write_atomically(path, f"{text}\n".encode())


def _alert(row: ReleaseRow, rule: int, level: str, file: str) -> dict[str, Any]:
    name = _RULES[row.word][0]
    same = hashlib.sha256(f"{name} {row.kind} {row.name}".encode()).hexdigest()
    known = {"kind": "open", "level": "none"} if row.word == "not audited" else {"level": level}
    return {
        "ruleId": name,
        "ruleIndex": rule,
        **known,
        "message": {"text": f"{row.name}: {row.sentence}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": file},
                    "region": {"startLine": 1},
                },
                "logicalLocations": [{"name": row.name, "kind": row.kind}],
            }
        ],
        "partialFingerprints": {"exhume/v1": same},
    }


def _level(result: Result, row: ReleaseRow, gate: Gate) -> str:
    over = row.leak is not None and row.leak.share > (gate.fail_over or 0.0)
    failed = row.word == "leaks" and over and (gate.fail_over is not None or gate.fail_on is None)
    return "error" if failed or refused(result, gate.fail_on) else "warning"


def _relative(name: str) -> str:
    """Where a file lies below this folder, for a link; of another place its name alone."""
    path = Path(name).resolve()
    inside = path.is_relative_to(Path.cwd())
    return quote((path.relative_to(Path.cwd()) if inside else Path(path.name)).as_posix())


# Two runs side by side

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
