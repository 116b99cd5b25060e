"""The audit commands: each makes a brief, and all of them take the same road.

`exhume audit` reads a file or takes weights that are trained your way; the others say one release each.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from exhume.cli.frame import (
    AUDITED,
    FAILED,
    LEAKS,
    app,
    refuse_two_places,
    run_on,
    say,
    tell,
    with_exit_codes,
)
from exhume.cli.last_words import processor_seconds, report_verdict, say_cost, say_loading
from exhume.cli.options import options_of, run_options, values_of
from exhume.cli.progress import progress_shown
from exhume.settings import (
    AttackSettings,
    Brief,
    BudgetSettings,
    CheckpointSettings,
    DataSettings,
    MachineSettings,
    ReleaseSettings,
    Settings,
    SplitSettings,
    UpdateSettings,
    VictimSettings,
)
from exhume.settings.sources import check_files

_CODES = """

Exit code 0: audited. 1: audited, and it leaks more than --fail-over, or --fail-on names its verdict. 2: could
not audit."""
_SECTIONS = {
    "data": DataSettings,
    "victim": VictimSettings,
    "attack": AttackSettings,
    "machine": MachineSettings,
}


@dataclass(frozen=True)
class _Door:
    """A command: its own parameters, how they become a brief, and what makes a finer gate possible."""

    name: str
    says: str
    parameters: list[Parameter]
    brief: Callable[[dict[str, Any]], Brief]
    more: str


def _brief_of_all(given: dict[str, Any]) -> Brief:
    brief = Brief.from_toml(given["config"]) if given["config"] else Brief()
    settings = brief.settings
    for name, kind in _SECTIONS.items():
        settings = settings.with_values(name, **values_of(kind, given))
    return brief.with_settings(settings).with_options(
        seed=given["seed"], threads=given["threads"], data=given["data"]
    )


def _brief_of(kind: type[ReleaseSettings]) -> Callable[[dict[str, Any]], Brief]:
    """Of one release; its records, if it is given any, are the brief's."""

    def brief(given: dict[str, Any]) -> Brief:
        own = values_of(kind, given)
        source = own.pop("data", None) or own.pop("trained_on", None) or ""
        if kind is not CheckpointSettings:
            own.setdefault("model", "")  # no other section could say it
        machine = MachineSettings(**values_of(MachineSettings, given))
        settings = Settings(given["seed"] or 0, DataSettings(source), machine=machine)
        return Brief.of(kind(**own), settings)

    return brief


_CONFIG = Parameter(
    "config",
    Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None, typer.Argument(help="A TOML file of settings; options win over it.")
    ],
)
_DOORS = (
    _Door(
        "audit",
        """Attack what you release, and say what leaks.

A CONFIG file says what that is (`exhume init` writes one); without it, weights trained your way.""",
        [
            _CONFIG,
            *options_of(DataSettings),
            *options_of(VictimSettings),
            *options_of(AttackSettings),
            *options_of(MachineSettings, only=["memory"]),
        ],
        _brief_of_all,
        "--targets",
    ),
    _Door(
        "audit-update",
        "Attack a client's update of your model, and say which records it gives away.",
        options_of(UpdateSettings),
        _brief_of(UpdateSettings),
        "records",
    ),
    _Door(
        "audit-weights",
        "Reconstruct training records from a checkpoint of yours, and say how many are real.",
        options_of(CheckpointSettings),
        _brief_of(CheckpointSettings),
        "records in --trained-on and --decoys",
    ),
    _Door(
        "audit-split",
        """Cut your network at several depths, attack what the client would send, and say which depth is \
enough.""",
        options_of(SplitSettings),
        _brief_of(SplitSettings),
        "--targets",
    ),
)


def _open(door: _Door) -> None:
    parameters = [
        *door.parameters,
        *options_of(Settings),
        *options_of(MachineSettings, only=["threads", "device"]),
        *options_of(BudgetSettings),
        *run_options(),
    ]

    def command(**given: Any) -> int:
        budget = values_of(BudgetSettings, given)
        return _run(door.brief(given).with_budget(**budget), given, door.more)

    command.__doc__ = door.says + _CODES
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    app.command(door.name)(with_exit_codes(command))


def _run(brief: Brief, given: dict[str, Any], more: str) -> int:
    refuse_two_places(given["ray"], given["processes"])
    check_files(brief.resolved())  # before torch is imported, which takes seconds
    began, used = time.perf_counter(), processor_seconds()
    say_loading()

    from exhume import auditing
    from exhume.core.results import lacking_power

    with progress_shown() as progress, run_on(given["ray"], given["processes"]):
        if given["dry_run"]:
            plan = auditing.plan(brief, progress=progress)
            shown = [json.dumps(plan.to_json())] if given["as_json"] else plan.lines()
            for line in shown:
                tell(line)
            return 0
        done = auditing.audit(
            brief,
            given["out"] or brief.folder(),
            progress=progress,
            redact=given["redact"],
            on_plan=_say_plan,
            resume_anyway=given["resume_anyway"],
        )
    if given["junit"] is not None:
        from exhume.report.gate import write_junit

        write_junit(
            done.result,
            given["junit"],
            fail_over=given["fail_over"],
            at_risk=given["fail_on"] == "at-risk",
            power=given["require_power"],
        )
    say_cost(time.perf_counter() - began, processor_seconds() - used)
    if given["as_json"]:
        tell((done.folder / "result.json").read_text(encoding="utf-8").rstrip())
    code = report_verdict(done, given["fail_over"], more=more, quiet=given["as_json"])
    if given["fail_on"] == "at-risk" and done.verdict.word in ("leaks", "at risk"):
        say(f"--fail-on at-risk: the verdict is {done.verdict.word!r}")
        return LEAKS
    if code == AUDITED and (why := lacking_power(done.result, given["require_power"])):
        say(f"--require-power: {why}")
        return FAILED
    return code


def _say_plan(plan: Any) -> None:
    for line in plan.lines():
        say(line)


for _door in _DOORS:
    _open(_door)
