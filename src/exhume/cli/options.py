"""Options of commands, made from the settings' fields: names, types and help are those of the schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from click import Choice

from exhume.cli.frame import Out, Processes, Ray, ResumeAnyway
from exhume.core.notation import numbers_in
from exhume.settings import Setting, settings_of, types_of

__all__ = ["options_of", "run_options", "values_of"]

_HERE = ("seed", "threads", "device")  # of a section; a command has them once, for all releases


def options_of(kind: type[Any], only: Iterable[str] = ()) -> list[Parameter]:
    """One parameter for each setting of a section, in its order; None means: not given.

    only: names of settings; without any, all that have an option.
    """
    hints = types_of(kind)
    chosen = set(only)
    made = []
    for name, (field, known) in _offered(kind).items():
        if chosen and name not in chosen:
            continue
        takes = Path if known.file else str if _listed(hints[name]) else hints[name]
        if known.argument:
            how: Any = typer.Argument(help=known.help)
        else:
            shown = "" if field.default in (None, "", 0, ()) else _written(field.default)
            decls = [known.flag] if known.flag else []
            how = typer.Option(*decls, help=known.help, show_default=shown or False)
        made.append(_parameter(_named(name, known), takes | None, how))
    return sorted(made, key=lambda p: not isinstance(_how(p), typer.models.ArgumentInfo))


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
    gate = typer.Option(help="Exit with 1 if a larger share of the records leaks.", min=0, max=1)
    also = typer.Option(
        help="Exit with 1 also if the verdict is at risk.", click_type=Choice(["at-risk"])
    )
    power = typer.Option(
        help="Exit with 2 if nothing is found but a leak of this share could go unnoticed.",
        min=0,
        max=1,
    )
    switches = {
        "redact": typer.Option("--redact", help="Also write a report without any record."),
        "as_json": typer.Option("--json", help="Print result.json (or the plan) instead of words."),
        "dry_run": typer.Option("--dry-run", help="Print the plan, and attack nothing."),
    }
    return [
        *(
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=how)
            for name, how in {"ray": Ray, "processes": Processes, "out": Out}.items()
        ),
        _parameter("junit", Path | None, typer.Option(help="Also write JUnit XML, for CI.")),
        _parameter("fail_over", float | None, gate),
        _parameter("fail_on", str | None, also),
        _parameter("require_power", float | None, power),
        *(_parameter(name, bool, how, False) for name, how in switches.items()),
        Parameter("resume_anyway", Parameter.KEYWORD_ONLY, default=False, annotation=ResumeAnyway),
    ]


def _offered(kind: type[Any]) -> dict[str, Any]:
    """Settings with an option, by name."""
    shared = {name for name, (_, known) in settings_of(kind).items() if known.shared in _HERE}
    return {n: s for n, s in settings_of(kind).items() if n not in shared and s[1].flag != ""}


def _named(name: str, known: Setting) -> str:
    """As the command calls it."""
    return known.flag.lstrip("-").replace("-", "_") if known.flag else name


def _listed(kind: Any) -> bool:
    return kind in (tuple[int, ...], tuple[str, ...])


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


def _parameter(name: str, kind: Any, how: Any, default: Any = None) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, how])


def _how(parameter: Parameter) -> Any:
    return parameter.annotation.__metadata__[0]
