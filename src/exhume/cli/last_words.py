"""What an audit says around its work: verdict, how far the attacks reach, what it took, what to do next."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from exhume.cli.frame import AUDITED, FAILED, LEAKS, say, tell
from exhume.core.notation import duration_of

if TYPE_CHECKING:
    from exhume.auditing import Audit
    from exhume.core.results import Result

__all__ = ["next_step", "processor_seconds", "report_verdict", "say_cost", "say_loading"]

_FILES = ("checkpoint", "fitted")  # releases that are attacked as they are: there is nothing to try


def report_verdict(done: Audit, fail_over: float | None, *, more: str, quiet: bool = False) -> int:
    """Say the verdict, what to do next and where the report is; return the exit code.

    more: the option that makes a finer gate possible. quiet: say nothing on standard output.
    """
    if not quiet:
        _tell_all(done)
    if done.verdict.word == "not audited":
        return FAILED
    if fail_over is None:
        return AUDITED
    if done.alarm:
        say(
            "an attack did better than the stated privacy allows: no share of leaks can be promised"
        )
        return LEAKS
    leak = done.leak
    if leak is not None and fail_over < leak.detectable:
        say(
            f"with these targets a leak below {leak.detectable:.1%} may go unnoticed, "
            f"so --fail-over {fail_over:.1%} cannot be promised; more {more} help"
        )
    if done.verdict.word == "leaks" and leak is not None and leak.share > fail_over:
        say(f"{leak.share:.1%} of the records leak, more than --fail-over {fail_over:.1%}")
        return LEAKS
    return AUDITED


def _tell_all(done: Audit) -> None:
    said = f"{done.verdict.sentence} {done.verdict.detail}"
    tell(done.verdict.sentence)
    tell(done.verdict.detail)
    for reach in done.result.reach:
        if reach.sentence and reach.sentence.rstrip(".") not in said:
            tell(f"reach: {reach.sentence.rstrip('.')}.")
    for line in done.beside:
        tell(f"Beside the verdict: {line}")
    for line in done.advice:
        tell(f"  {line}")
    tell(f"next: {next_step(done.result)}")
    if done.redacted:
        tell(f"redacted report: {done.redacted}")
    tell(f"report: {done.report}")


def next_step(result: Result) -> str:
    """What a person does after this verdict."""
    if result.verdict.word == "leaks":
        return _stop_it(result)
    return {
        "at risk": "keep secret what the stronger adversary knows, or protect against it",
        "no leak found": "keep this folder; after a change, audit again and run exhume compare OLD NEW",
    }.get(
        result.verdict.word, "nothing is known yet: the report says for each attack what it lacked"
    )


def _stop_it(result: Result) -> str:
    tried = [row for row in result.fixes if row.tried]
    if any(row.verdict == "no leak found" for row in tried):
        return "apply a fix that stops it (above, best first), then audit again"
    if tried:
        return "none of the fixes above stops it: release less, or to fewer people"
    leaking = [row.kind for row in result.releases if row.word == "leaks"]
    if leaking and all(kind in _FILES for kind in leaking):
        return (
            "do not release this file; describe its training in [victim] of an audit.toml, and "
            "--try-fixes shows which training would not leak"
        )
    return "the same command with --try-fixes shows what stops it"


def say_cost(wall: float, processor: float) -> None:
    say(f"took {duration_of(wall)}, {processor:,.0f} CPU seconds")


def processor_seconds() -> float:
    """Of this process and of those it started and saw end; other machines are not counted."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def say_loading() -> None:
    """Nobody likes a silent terminal; a log need not know."""
    if sys.stderr.isatty():
        say("loading torch …")
