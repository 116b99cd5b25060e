"""The audit commands: each makes a brief, and all of them take the same road.

`exhume audit` reads a file or takes weights that are trained your way; the others take one release each.
Their options are made from the settings' fields: names, types and help are those of the schema.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click import Choice

from exhume.cli.frame import (
    AUDITED,
    FAILED,
    GATES,
    LEAKS,
    NO_CODE_HERE,
    OUT,
    OUTPUT,
    PROCESSES,
    RAY,
    RESUME_ANYWAY,
    WHERE,
    app,
    code_refused,
    echo_err,
    echo_loading,
    echo_out,
    progress_shown,
    refuse_two_places,
    run_on,
    with_exit_codes,
)
from exhume.core.notation import about, duration_of, numbers_in
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
from exhume.settings.schema import Setting, settings_of, types_of
from exhume.settings.sources import check_files

if TYPE_CHECKING:
    from exhume.auditing import Audit
    from exhume.core.results import Result

_HERE = ("seed", "threads", "device")  # of a section; a command has them once, for all releases
_CODES = """

Exit code 0: audited. 1: audited, and it leaks more than --fail-over, or --fail-on names its verdict. 2: could
not audit."""
_SECTIONS = {
    "data": DataSettings,
    "victim": VictimSettings,
    "attack": AttackSettings,
    "machine": MachineSettings,
}

_PANELS: dict[type[Any], dict[str, str]] = {  # of the help, by the first setting on each
    DataSettings: {"source": "Your records"},
    VictimSettings: {"network": "The model", "optimiser": "Its training"},
    AttackSettings: {"exact": "The attacks"},
    MachineSettings: {"memory": WHERE},
    BudgetSettings: {"time": "Budget and fixes"},
    UpdateSettings: {
        "update": "What the client sends",
        "rate": "How the client trains",
        "batch_size": "Your records",
        "restarts": "The attacks",
    },
    CheckpointSettings: {
        "checkpoint": "The file and its network",
        "trained_on": "Your records",
        "restarts": "The attacks",
    },
    SplitSettings: {
        "model": "The network and its cut",
        "defend": "A defence",
        "attack_epochs": "The attacks",
        "vocabulary": "Texts",
    },
}
_SPELT = {"optimiser": "--optimizer"}  # also so

# Options of commands


def options_of(kind: type[Any], only: Iterable[str] = ()) -> list[Parameter]:
    """One parameter for each setting of a section, in its order; None means: not given.

    only: names of settings; without any, all that have an option.
    """
    hints = types_of(kind)
    chosen = set(only)
    made: list[Parameter] = []
    panels, panel = _PANELS.get(kind, {}), next(iter(_PANELS.get(kind, {}).values()), None)
    for name, (field, known) in _offered(kind).items():
        panel = panels.get(name, panel)
        if chosen and name not in chosen:
            continue
        listed = hints[name] in (tuple[int, ...], tuple[str, ...])
        takes = Path if known.file else str if listed else hints[name]
        if known.argument:
            made.insert(
                0, _parameter(_named(name, known), takes | None, typer.Argument(help=known.help))
            )
        else:
            shown = "" if field.default in (None, "", 0, ()) else _written(field.default)
            own = known.flag or f"--{name.replace('_', '-')}"
            decls = [own, _SPELT[name]] if name in _SPELT else [own] if known.flag else []
            how = typer.Option(
                *decls, help=known.help, show_default=shown or False, rich_help_panel=panel
            )
            made.append(_parameter(_named(name, known), takes | None, how))
    return made


def values_of(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a command was given of a section's settings, as its fields take them."""
    hints = types_of(kind)
    values: dict[str, Any] = {}
    for name, (_, known) in _offered(kind).items():
        value = given.get(_named(name, known))
        if value is None:
            continue
        if hints[name] == tuple[int, ...]:
            value = numbers_in(value, f"--{name.replace('_', '-')}")
        elif hints[name] == tuple[str, ...]:
            value = tuple(filter(None, value.split(",")))
        values[name] = str(value) if isinstance(value, Path) else value
    return values


def run_options() -> list[Parameter]:
    """What every audit command takes, whatever is released."""
    gate = typer.Option(
        help="Exit with 1 if a larger share of the records leaks.",
        min=0,
        max=1,
        rich_help_panel=GATES,
    )
    also = typer.Option(
        help="Exit with 1 if the verdict is this or worse: at-risk, recognised (any leak), reconstructed.",
        click_type=Choice(["at-risk", "recognised", "reconstructed"]),
        rich_help_panel=GATES,
    )
    power = typer.Option(
        help="Exit with 2 if nothing is found but a leak of this share could go unnoticed.",
        min=0,
        max=1,
        rich_help_panel=GATES,
    )
    sarif = typer.Option(help="Also write SARIF 2.1.0, for code scanning.", rich_help_panel=OUTPUT)
    redact = typer.Option(
        "--redact", help="Also write a report without any record.", rich_help_panel=OUTPUT
    )
    as_json = typer.Option(
        "--json", help="Print result.json (or the plan) instead of words.", rich_help_panel=OUTPUT
    )
    dry_run = typer.Option(
        "--dry-run", help="Print the plan, and attack nothing.", rich_help_panel=OUTPUT
    )
    return [
        _parameter("ray", str | None, RAY),
        _parameter("processes", int | None, PROCESSES),
        _parameter("out", Path | None, OUT),
        _parameter(
            "junit", Path | None, typer.Option(help="Also write JUnit XML.", rich_help_panel=OUTPUT)
        ),
        _parameter("sarif", Path | None, sarif),
        _parameter("fail_over", float | None, gate),
        _parameter("fail_on", str | None, also),
        _parameter("require_power", float | None, power),
        _parameter("redact", bool, redact, False),
        _parameter("as_json", bool, as_json, False),
        _parameter("dry_run", bool, dry_run, False),
        _parameter("resume_anyway", bool, RESUME_ANYWAY, False),
        _parameter("no_code", bool, NO_CODE_HERE, False),
    ]


def _offered(kind: type[Any]) -> dict[str, Any]:
    """Settings with an option, by name."""
    shared = {name for name, (_, known) in settings_of(kind).items() if known.shared in _HERE}
    return {n: s for n, s in settings_of(kind).items() if n not in shared and s[1].flag != ""}


def _named(name: str, known: Setting) -> str:
    """The setting's name in the command."""
    return known.flag.lstrip("-").replace("-", "_") if known.flag else name


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


def _parameter(name: str, kind: Any, how: Any, default: Any = None) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, how])


# The commands


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
    """A brief of one release; its records, if it is given any, are the brief's."""

    def brief(given: dict[str, Any]) -> Brief:
        values = values_of(kind, given)
        source = values.pop("data", None) or values.pop("trained_on", None) or ""
        if kind is not CheckpointSettings:
            values.setdefault("model", "")  # no other section could say it
        machine = MachineSettings(**values_of(MachineSettings, given))
        data = DataSettings(source, missing=given["missing"] or "", group=given["group"] or "")
        settings = Settings(given["seed"] or 0, data, machine=machine)
        return Brief.of(kind(**values), settings)

    return brief


_CONFIG = Parameter(
    "config",
    Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None, typer.Argument(help="A TOML file of settings; options win over it.")
    ],
)
_TABLES = options_of(DataSettings, only=["missing", "group"])
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
        [*options_of(UpdateSettings), *_TABLES],
        _brief_of(UpdateSettings),
        "records",
    ),
    _Door(
        "audit-weights",
        "Reconstruct training records from a checkpoint of yours, and say how many are real.",
        [*options_of(CheckpointSettings), *_TABLES],
        _brief_of(CheckpointSettings),
        "records in --trained-on and --decoys",
    ),
    _Door(
        "audit-split",
        """Cut your network at several depths, attack what the client would send, and say which depth is \
enough.""",
        [*options_of(SplitSettings), *_TABLES],
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
        with code_refused(given["no_code"]):
            return _run(door.brief(given).with_budget(**budget), given, door.more)

    command.__doc__ = door.says + _CODES
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    app.command(door.name)(with_exit_codes(command))


def _run(brief: Brief, given: dict[str, Any], more: str) -> int:
    refuse_two_places(given["ray"], given["processes"])
    check_files(brief.resolved())  # before torch is imported, which takes seconds
    began = time.perf_counter()
    echo_loading()

    from exhume import auditing
    from exhume.core.results import lacking_power, refused
    from exhume.store.workers import processor_seconds

    used = processor_seconds()

    with progress_shown() as progress, run_on(given["ray"], given["processes"]):
        if given["dry_run"]:
            plan = auditing.plan(brief, progress=progress)
            shown = [json.dumps(plan.to_json())] if given["as_json"] else plan.lines()
            for line in shown:
                echo_out(line)
            return 0
        done = auditing.audit(
            brief,
            given["out"] or brief.folder(),
            progress=progress,
            redact=given["redact"],
            on_plan=_echo_plan,
            resume_anyway=given["resume_anyway"],
        )
    _write_for_pipelines(done.result, given)
    for line in _plan_and_actual(done.result):
        echo_err(line)
    took = duration_of(time.perf_counter() - began)
    echo_err(f"took {took}, {processor_seconds() - used:,.0f} CPU seconds")
    if given["as_json"]:
        echo_out((done.folder / "result.json").read_text(encoding="utf-8").rstrip())
    code = report_verdict(done, given["fail_over"], more=more, quiet=given["as_json"])
    if why := refused(done.result, given["fail_on"]):
        echo_err(f"--fail-on {given['fail_on']}: {why}")
        return LEAKS
    if code == AUDITED and (why := lacking_power(done.result, given["require_power"])):
        echo_err(f"--require-power: {why}")
        return FAILED
    return code


def _plan_and_actual(result: Result) -> list[str]:
    """How long each attack was meant to take, and how long it took."""
    return [
        f"{row.name}: planned {about(row.estimated_seconds)}, took {duration_of(row.seconds)} "
        f"({row.cpu_seconds or 0.0:,.0f} CPU seconds)"
        for row in result.plan
        if row.run and row.seconds is not None
    ]


def _write_for_pipelines(result: Result, given: dict[str, Any]) -> None:
    from exhume.report.gate import Gate, write_junit, write_sarif

    gate = Gate(given["fail_over"], given["fail_on"], given["require_power"])
    if given["junit"] is not None:
        write_junit(result, given["junit"], gate)
    if given["sarif"] is not None:
        about = given.get("config") or given.get("checkpoint") or given.get("update")
        write_sarif(result, given["sarif"], gate, about=str(about or "audit.toml"))


def _echo_plan(plan: Any) -> None:
    for line in plan.lines():
        echo_err(line)


# What an audit says at its end: verdict, how far the attacks reach, what to do next


def report_verdict(done: Audit, fail_over: float | None, *, more: str, quiet: bool = False) -> int:
    """Say the verdict, what to do next and where the report is; return the exit code.

    more: the option that makes a finer gate possible. quiet: say nothing on standard output.
    """
    if not quiet:
        _echo_verdict(done)
    if done.verdict.word == "not audited":
        return FAILED
    if fail_over is None:
        return AUDITED
    if done.alarm:
        echo_err(
            "an attack did better than the stated privacy allows: no share of leaks can be promised"
        )
        return LEAKS
    leak = done.leak
    if leak is not None and fail_over < leak.detectable:
        echo_err(
            f"with these targets a leak below {leak.detectable:.1%} may go unnoticed, "
            f"so --fail-over {fail_over:.1%} cannot be promised; more {more} help"
        )
    if done.verdict.word == "leaks" and leak is not None and leak.share > fail_over:
        echo_err(f"{leak.share:.1%} of the records leak, more than --fail-over {fail_over:.1%}")
        return LEAKS
    return AUDITED


def _echo_verdict(done: Audit) -> None:
    from exhume.report.meaning import next_steps

    said = f"{done.verdict.sentence} {done.verdict.detail}"
    echo_out(done.verdict.sentence)
    echo_out(done.verdict.detail)
    for reach in done.result.reach:
        if reach.sentence and reach.sentence.rstrip(".") not in said:
            echo_out(f"reach: {reach.sentence.rstrip('.')}.")
    for line in done.beside:
        echo_out(f"Beside the verdict: {line}")
    for line in done.advice:
        echo_out(f"  {line}")
    echo_out(f"next: {next_steps(done.result)[0]}")
    if done.redacted:
        echo_out(f"redacted report: {done.redacted}")
    echo_out(f"report: {done.report}")


for _door in _DOORS:
    _open(_door)
