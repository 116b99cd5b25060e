"""What every command shares: the app, exit codes, plain errors, progress, early refusals.

Heavy imports happen late.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import click
import typer
from typer.core import TyperGroup

from exhume.core.errors import ExhumeError, printable, unfinished, unknown_name
from exhume.core.notation import CEILING, NO_CODE, about, duration_of

if TYPE_CHECKING:
    from rich.console import Console

    from exhume.core.contract import Progress

AUDITED, LEAKS, FAILED, INTERRUPTED = 0, 1, 2, 130
WHERE, OUTPUT, GATES = "Where it runs", "Output", "Gates, for a pipeline"  # parts of the help


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


def _say_version(asked: bool) -> None:
    if asked:
        echo_out(
            f"exhume {version('exhume')} (torch {version('torch')}, Python {platform.python_version()})"
        )
        raise typer.Exit


app = typer.Typer(
    name="exhume",
    cls=_Group,
    help="Find out which training records an attacker can reconstruct from what you release, and what "
    "stops it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


_NO_CODE = "Refuse every brief, model and file that would run code."
NO_CODE_HERE = typer.Option("--no-code", help=_NO_CODE, rich_help_panel=GATES)


@app.callback()
def _any_command(
    ctx: typer.Context,
    show_version: Annotated[  # noqa: ARG001 - its callback says it
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_say_version, is_eager=True
        ),
    ] = False,
    no_code: Annotated[bool, typer.Option("--no-code", help=_NO_CODE)] = False,
    ceiling: Annotated[
        str, typer.Option(help="Refuse records that need more memory, such as 4GB.")
    ] = "",
) -> None:
    ctx.with_resource(code_refused(no_code))
    ctx.with_resource(_told(CEILING, ceiling))


def code_refused(asked: bool) -> AbstractContextManager[None]:
    """Inside, here and in every process that is begun, nothing of the user's own is run, if asked."""
    return _told(NO_CODE, "1" if asked else "")


@contextmanager
def _told(name: str, value: str) -> Iterator[None]:
    """A variable of the environment, so that every process that is begun knows it; empty: as it was."""
    before = os.environ.get(name)
    if value:
        os.environ[name] = value
    try:
        yield
    finally:
        if value and before is None:
            del os.environ[name]
        elif value and before is not None:
            os.environ[name] = before


data_app = typer.Typer(help="Named data sets.", no_args_is_help=True)
study_app = typer.Typer(help="Results of the papers, rerun.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")


P = ParamSpec("P")


def with_exit_codes(command: Callable[P, int | None]) -> Callable[P, None]:
    """Every foreseeable failure is one sentence on stderr and exit code 2; a bug keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except ExhumeError as error:
            echo_err(str(error))
            code = FAILED
        except KeyboardInterrupt:
            echo_err("stopped; finished work is kept, and the same command goes on from there")
            code = INTERRUPTED
        except click.Abort:  # a question was not answered
            echo_err("stopped; nothing was written")
            code = INTERRUPTED
        except Exception:  # noqa: BLE001 - exit code 1 means a leak, so a bug must not end in it
            typer.echo(_lines_of(traceback.format_exc().rstrip()), err=True)
            echo_err("this is a defect of exhume; nothing was audited")
            code = FAILED
        raise typer.Exit(code or 0)

    return wrapped


def echo_err(text: str) -> None:
    """One line to standard error, with our name before it."""
    typer.echo(f"exhume: {printable(text)}", err=True)


def _lines_of(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def echo_out(text: str) -> None:
    """Lines to standard output. The work is done and on disk: whoever closed the pipe does not undo it."""
    try:
        typer.echo(_lines_of(text))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        echo_err(
            f"cannot write to standard output ({error.strerror}); the run folder has everything"
        )
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def echo_loading() -> None:
    """Nobody likes a silent terminal; a log need not know."""
    if sys.stderr.isatty():
        echo_err("loading torch …")


OUT = typer.Option(
    help="Run folder; the same folder resumes a stopped run.", rich_help_panel=OUTPUT
)
Out = Annotated[Path | None, OUT]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]
RAY = typer.Option(
    help="Train on a Ray cluster: auto, or HOST:PORT. The result stays the same.",
    rich_help_panel=WHERE,
)
Ray = Annotated[str | None, RAY]
PROCESSES = typer.Option(
    help="Train in this many processes on this machine; default: as many as threads, where it pays. "
    "The result stays the same.",
    rich_help_panel=WHERE,
)
Processes = Annotated[int | None, PROCESSES]
RESUME_ANYWAY = typer.Option(
    "--resume-anyway",
    help="Continue work that another version of exhume or torch began.",
    rich_help_panel=WHERE,
)
ResumeAnyway = Annotated[bool, RESUME_ANYWAY]


def refuse_two_places(address: str | None, processes: int | None) -> None:
    if address is not None and processes is not None:
        raise ExhumeError("--ray and --processes exclude each other")


@contextmanager
def run_on(address: str | None, processes: int | None) -> Iterator[None]:
    """Choose where independent jobs run; before anything that reads the number of threads."""
    refuse_two_places(address, processes)

    import torch

    from exhume.choices import threads_for
    from exhume.store.scale import Cluster, Cores, Where, spread_over
    from exhume.store.scale import Processes as InProcesses

    where: Where = Cores() if address is None else Cluster(address)
    if processes is not None:
        where = InProcesses(processes)
    with spread_over(where):
        if processes is not None:
            torch.set_num_threads(threads_for(0))
        yield


# How long work shows that it goes on: bars on a terminal, a line every ten seconds elsewhere, on stderr

EVERY = 10.0  # seconds between two lines of the same stage
_PAUSE = 0.5  # seconds without a new piece that end what an earlier run had done
_TAKEN_UP = 3.0  # and after so many it has ended in any case


@contextmanager
def progress_shown() -> Iterator[Progress]:
    """A callback for long work: it draws bars with an ETA, or says lines where there is no terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        yield from _bars(console)
        return
    lines, done = ProgressLines(echo_err), threading.Event()
    ticking = threading.Thread(target=_tick, args=(lines, done), daemon=True)
    ticking.start()
    try:
        yield lines
    finally:
        done.set()


def _tick(lines: ProgressLines, done: threading.Event) -> None:
    """Work that says nothing for long is still at work: the last line is said again with the time."""
    while not done.wait(EVERY / 4):
        lines.tick()


@dataclass
class _Stage:
    name: str
    began: float
    first: int  # pieces that were there already: an earlier run's come all at once
    since: float  # when the pieces behind them began
    done: int
    total: int
    said: float  # when its last line was
    moved: float  # when the last piece was done

    @staticmethod
    def begun(name: str, done: int, total: int, now: float) -> _Stage:
        return _Stage(name, now, done, now, done, total, now, now)

    def move(self, done: int, total: int, now: float) -> None:
        """Count finished pieces; those that come at once in the beginning say nothing about the pace."""
        all_there = self.first == self.done
        if all_there and now - self.moved < _PAUSE and now - self.began < _TAKEN_UP:
            self.first, self.since = done, now
        if done > self.done:
            self.moved = now
        self.done, self.total = done, total


@dataclass
class ProgressLines:
    """A line when a stage begins, one every ten seconds while it lasts, one when it ends.

    A stage of a single piece begins silently, and is spoken of only if it takes its time.
    """

    echo: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _stage: _Stage | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, stage: str, done: int, total: int) -> None:
        with self._lock:
            now, known = self.clock(), self._stage
            if known is None or known.name != stage:
                known = self._stage = _Stage.begun(stage, done, total, now)
                if total > 1 and done < total:
                    self.echo(f"{stage}: {done:,} of {total:,}")
                return
            known.move(done, total, now)
            if done >= total:
                self._ended(known, now)
            elif now - known.said >= EVERY:
                self._going(known, now)

    def tick(self) -> None:
        """Say where the stage is, if it has been silent for long."""
        with self._lock:
            now, known = self.clock(), self._stage
            if known is not None and known.done < known.total and now - known.said >= EVERY:
                self._going(known, now)

    def _ended(self, stage: _Stage, now: float) -> None:
        self._stage = None
        if stage.total > 1 or now - stage.began >= EVERY:
            self.echo(
                f"{stage.name}: {stage.done:,} of {stage.total:,} in {duration_of(now - stage.began)}"
            )

    def _going(self, stage: _Stage, now: float) -> None:
        stage.said = now
        made, took = stage.done - stage.first, now - stage.began
        left = f"{about(_left(stage, now))} left" if made else "at work"
        self.echo(
            f"{stage.name}: {stage.done:,} of {stage.total:,} after {duration_of(took)}, {left}"
        )


def _left(stage: _Stage, now: float) -> float:
    """By the pace up to the last finished piece: waiting for the next one does not make it longer."""
    each = (stage.moved - stage.since) / (stage.done - stage.first)
    rest = (stage.total - stage.done) * each
    return max(rest - (now - stage.moved), rest / 10)


def _bars(console: Console) -> Iterator[Progress]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:32}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, tuple[TaskID, _Stage]] = {}
    with Progress(*columns, console=console) as bars:

        def show(stage: str, done: int, total: int) -> None:
            now = time.monotonic()
            if stage not in tasks:
                task = bars.add_task(printable(stage), total=total)
                tasks[stage] = task, _Stage.begun(stage, done, total, now)
            task, known = tasks[stage]
            known.move(done, total, now)
            if known.first == done < total:  # the bar's own clock begins behind what was there
                bars.reset(task, completed=done, total=total)
            bars.update(task, completed=done, total=total)

        yield show


# What can be refused before torch is imported: runs that are not finished, studies that do not exist

_NAMED = re.compile(r"^[A-Z][A-Z0-9_]* = \w+\(\s*\"([a-z0-9-]+)\"", re.MULTILINE)


def refuse_unfinished(run: Path) -> None:
    """Refuse a folder that holds no result."""
    result = run / "result.json"
    if not result.exists():
        raise unfinished(result)


def refuse_unknown_study(name: str) -> None:
    if name not in (known := study_names()):
        raise unknown_name("study", name, known)


def study_names() -> list[str]:
    """Names in the files of the studies, since importing one imports torch; one too many does no harm."""
    folder = Path(__file__).parents[1] / "studies"
    files = sorted(folder.glob("*/*.py"))
    return [name for file in files for name in _NAMED.findall(file.read_text(encoding="utf-8"))]
