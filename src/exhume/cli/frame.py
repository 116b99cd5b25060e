"""What every command shares: the app, exit codes, plain errors, progress. Heavy imports happen late."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import click
import typer
from typer.core import TyperGroup

from exhume.errors import printable

if TYPE_CHECKING:
    from exhume.auditing import Audit
    from exhume.contract import Progress

__all__ = [
    "Out",
    "Processes",
    "Ray",
    "ResumeAnyway",
    "Seed",
    "app",
    "data_app",
    "progress_bars",
    "report_verdict",
    "run_on",
    "say",
    "study_app",
    "tell",
    "with_exit_codes",
]

AUDITED, LEAKS, FAILED, INTERRUPTED = 0, 1, 2, 130


class _Group(TyperGroup):
    """Typer's own complaints quote the arguments; those too are made printable."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **more: Any,
    ) -> click.Context:
        with _printable_complaints():
            return super().make_context(info_name, args, parent, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _printable_complaints():
            return super().invoke(ctx)


@contextmanager
def _printable_complaints() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        said = error.format_message()
        if _lines_of(said) == said:
            raise
        raise click.UsageError(_lines_of(said), error.ctx) from error


app = typer.Typer(
    name="exhume",
    cls=_Group,
    help="Which private records can be dug back out of what you release, how well, and what stops it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Named data sets.", no_args_is_help=True)
study_app = typer.Typer(help="Results of the papers, rerun.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")


P = ParamSpec("P")


def with_exit_codes(command: Callable[P, int | None]) -> Callable[P, None]:
    """Every foreseeable failure is one sentence on stderr and exit code 2; a bug keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        from exhume.contract import ExhumeError

        try:
            code = command(*args, **kwargs)
        except ExhumeError as error:
            say(str(error))
            code = FAILED
        except KeyboardInterrupt:
            say("stopped; finished work is kept, and the same command goes on from there")
            code = INTERRUPTED
        except Exception:  # noqa: BLE001 - exit code 1 means a leak, so a bug must not end in it
            typer.echo(_lines_of(traceback.format_exc().rstrip()), err=True)
            say("this is a defect of exhume; nothing was audited")
            code = FAILED
        raise typer.Exit(code or 0)

    return wrapped


def say(text: str) -> None:
    typer.echo(f"exhume: {printable(text)}", err=True)


def _lines_of(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def tell(text: str) -> None:
    """To standard output. The work is done and on disk: whoever closed the pipe does not undo it."""
    try:
        typer.echo(_lines_of(text))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        say(f"cannot write to standard output ({error.strerror}); the run folder has everything")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


Out = Annotated[
    Path | None, typer.Option(help="Run folder; the same folder resumes a stopped run.")
]
Seed = Annotated[int | None, typer.Option(help="Everything random derives from it.")]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Train on a Ray cluster: auto, or HOST:PORT. Changes the time, not the result."
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        help="Train in so many processes of this machine, which share its cores. Changes the time only."
    ),
]

ResumeAnyway = Annotated[
    bool,
    typer.Option("--resume-anyway", help="Go on with work of another version of exhume or torch."),
]


def report_verdict(done: Audit, fail_over: float | None, *, more: str, quiet: bool = False) -> int:
    """Say the verdict and where the report is; return the exit code.

    more: the option that makes a finer gate possible. quiet: say nothing on standard output.
    """
    if not quiet:
        tell(done.verdict.sentence)
        tell(done.verdict.detail)
        for line in done.beside:
            tell(f"Beside the verdict: {line}")
        for line in done.advice:
            tell(f"  {line}")
        if done.redacted:
            tell(f"redacted report: {done.redacted}")
        tell(f"report: {done.report}")
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


@contextmanager
def run_on(address: str | None, processes: int | None) -> Iterator[None]:
    """Where independent jobs run; before anything that reads the number of threads."""
    import torch

    from exhume.choices import threads_for
    from exhume.contract import ExhumeError
    from exhume.scale import HERE, Cluster, Where, spread_over
    from exhume.scale import Processes as InProcesses

    if address is not None and processes is not None:
        raise ExhumeError("--ray and --processes exclude each other")
    where: Where = HERE if address is None else Cluster(address)
    if processes is not None:
        where = InProcesses(processes)
    with spread_over(where):
        if processes is not None:
            torch.set_num_threads(threads_for(0))
        yield


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Bars with an ETA on a terminal; a line per stage elsewhere. All on stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        yield from _bars(console)
    else:
        yield _lines


def _bars(console: object) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    assert isinstance(console, Console)
    columns = (
        TextColumn("{task.description:32}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(printable(stage), total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


def _lines(stage: str, done: int, total: int) -> None:
    if done in (0, total):
        say(f"{stage}: {done} of {total}")
