"""The command line. Heavy imports happen inside the commands, so that `--help` answers at once."""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

if TYPE_CHECKING:
    from exhume.contract import Progress
    from exhume.settings import Settings

__all__ = ["main"]

AUDITED, LEAKS, FAILED, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="exhume",
    help="Which private records can be dug back out of what you release, how well, and what stops it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Named data sets.", no_args_is_help=True)
study_app = typer.Typer(help="Results of the papers, rerun.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")


def main() -> None:
    app()


P = ParamSpec("P")


def _plainly(command: Callable[P, int | None]) -> Callable[P, None]:
    """Every foreseeable failure is one sentence on stderr and exit code 2; a bug keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        from exhume.contract import ExhumeError

        try:
            code = command(*args, **kwargs)
        except ExhumeError as error:
            _say(str(error))
            code = FAILED
        except KeyboardInterrupt:
            _say("stopped; finished work is kept, and the same command goes on from there")
            code = INTERRUPTED
        except Exception:  # noqa: BLE001 - exit code 1 means a leak, so a bug must not end in it
            traceback.print_exc()
            _say("this is a defect of exhume; nothing was audited")
            code = FAILED
        raise typer.Exit(code or 0)

    return wrapped


def _say(text: str) -> None:
    typer.echo(f"exhume: {text}", err=True)


def _print(text: str) -> None:
    """To standard output. The work is done and on disk: whoever closed the pipe does not undo it."""
    try:
        typer.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        _say(f"cannot write to standard output ({error.strerror}); the run folder has everything")
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


@app.command()
@_plainly
def audit(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file of settings; options win over it.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A named set, or the path of your own.")] = None,
    fixed: Annotated[int | None, typer.Option(help="Training records the adversary knows.")] = None,
    targets: Annotated[
        int | None, typer.Option(help="Private records to attack, one model each.")
    ] = None,
    shadows: Annotated[int | None, typer.Option(help="Shadow models the adversary trains.")] = None,
    network: Annotated[str | None, typer.Option(help="mlp, or cnn for images.")] = None,
    hidden: Annotated[
        str | None, typer.Option(help="Widths of the hidden layers: 10 or 64,32.")
    ] = None,
    activation: Annotated[str | None, typer.Option(help="elu, relu, tanh, gelu, …")] = None,
    optimiser: Annotated[
        str | None, typer.Option(help="gd (full-batch), sgd or adam (with --batch).")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Records a step sees; 0: all of them.")] = None,
    batch_order: Annotated[
        str | None, typer.Option(help="known (to the adversary) or unknown.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Gradient steps of the victim's training.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Its learning rate.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Its momentum.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Its weight decay.")] = None,
    dp_clip: Annotated[
        float | None, typer.Option(help="Private training: norm of a record's gradient; 0: none.")
    ] = None,
    dp_noise: Annotated[
        float | None, typer.Option(help="Private training: noise, as a multiple of the clip.")
    ] = None,
    exact: Annotated[
        int | None,
        typer.Option(help="Targets to attack by differentiating through training as well."),
    ] = None,
    seed: Seed = None,
    memory: Annotated[int | None, typer.Option(help="MiB that model training may take.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Processor threads; default: all cores.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu (default) or cuda.")] = None,
    ray: Ray = None,
    out: Out = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Also write a report without any record.")
    ] = False,
    fail_over: Annotated[
        float | None,
        typer.Option(help="Exit 1 if a larger share of the records leaks.", min=0, max=1),
    ] = None,
) -> int:
    """Attack models trained your way on your data, and say what leaks.

    Exit code 0: audited. 1: audited, and it leaks more than --fail-over. 2: could not audit.
    """
    from exhume.auditing import audit as run
    from exhume.settings import Settings

    settings = Settings.from_toml(config) if config else Settings()
    settings = settings.with_values(
        "data", source=data, fixed=fixed, targets=targets, shadows=shadows
    )
    settings = settings.with_values(
        "victim",
        network=network,
        hidden=_widths(hidden),
        activation=activation,
        optimiser=optimiser,
        batch=batch,
        batch_order=batch_order,
        steps=steps,
        rate=rate,
        momentum=momentum,
        weight_decay=weight_decay,
        dp_clip=dp_clip,
        dp_noise=dp_noise,
    )
    settings = settings.with_values("attack", exact=exact)
    settings = settings.with_values("machine", memory=memory, threads=threads, device=device)
    if seed is not None:
        settings = settings.with_seed(seed)
    with _progress() as progress, _spread(ray):
        done = run(settings, out or _folder_for(settings), progress=progress, redact=redact)
    _print(done.verdict.sentence)
    _print(done.verdict.detail)
    if done.redacted:
        _print(f"redacted report: {done.redacted}")
    _print(f"report: {done.report}")
    if done.verdict.word == "not audited":
        return FAILED
    if fail_over is not None and fail_over < done.metrics["detectable_rate"]:
        _say(
            f"with these targets a leak below {done.metrics['detectable_rate']:.1%} may go unnoticed, "
            f"so --fail-over {fail_over:.1%} cannot be promised; more --targets help"
        )
    if (
        fail_over is not None
        and done.verdict.word == "leaks"
        and done.metrics["success"] > fail_over
    ):
        _say(
            f"{done.metrics['success']:.1%} of the records leak, more than --fail-over {fail_over:.1%}"
        )
        return LEAKS
    return AUDITED


def _spread(address: str | None) -> AbstractContextManager[None]:
    from exhume.scale import HERE, Cluster, spread_over

    return spread_over(HERE if address is None else Cluster(address))


def _widths(text: str | None) -> tuple[int, ...] | None:
    from exhume.contract import ExhumeError

    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ExhumeError(
            f"--hidden: {text!r} is not a list of whole numbers such as 64,32"
        ) from None


def _folder_for(settings: Settings) -> Path:
    """A folder named by the settings, so that the same command finds its own earlier work."""
    import hashlib

    from exhume.settings import to_toml

    name = Path(settings.data.source).stem or "data"
    return Path("runs") / f"{name}-{hashlib.sha256(to_toml(settings).encode()).hexdigest()[:8]}"


@app.command()
@_plainly
def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    redact: Annotated[
        bool, typer.Option("--redact", help="Without any record, to be shared.")
    ] = False,
) -> None:
    """(Re)draw the page of a run."""
    from exhume.report.page import draw

    _print(f"report: {draw(run, redact=redact)}")


@data_app.command("list")
@_plainly
def data_list() -> None:
    """The sets known by name."""
    from exhume.data import catalogue

    for named in catalogue():
        shape = "x".join(str(size) for size in named.shape) or named.kind
        size = f"{named.download_mb} MB to download" if named.download_mb else "no download"
        state = "cached" if named.cached else size
        _print(f"{named.name:10} {named.records:>8,} records  {shape:14} {state}")
        _print(f"{'':10} {named.description}; from {named.source}")


@data_app.command("fetch")
@_plainly
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name from `exhume data list`.")],
) -> None:
    """Download a set into the cache and check it."""
    from exhume.data import fetch

    with _progress() as progress:
        path = fetch(name, progress=progress)
    _print(f"cached: {path}")


class Scale(StrEnum):
    smoke = "smoke"
    cpu = "cpu"
    paper = "paper"


@study_app.command("list")
@_plainly
def study_list() -> None:
    """The studies there are."""
    from exhume.studies import STUDIES

    for study in STUDIES.values():
        _print(f"{study.name:24} {study.paper:12} {study.title}")


@study_app.command("run")
@_plainly
def study_run(
    name: Annotated[str, typer.Argument(help="A name from `exhume study list`.")],
    scale: Annotated[
        Scale, typer.Option(help="Seconds, minutes, or the paper's sizes.")
    ] = Scale.cpu,
    out: Out = None,
    seed: Seed = None,
    ray: Ray = None,
) -> None:
    """Rerun one result of a paper and put our numbers beside its own."""
    from exhume.studies import run_study

    folder = out or Path("runs") / f"{name}-{scale.value}-{seed or 0}"
    with _progress() as progress, _spread(ray):
        result = run_study(name, scale.value, folder, seed=seed or 0, progress=progress)
    for claim in result["claims"]:
        mark = "holds" if claim["holds"] else "DOES NOT HOLD"
        _print(f"{mark}: {claim['statement']} (measured {claim['measured']})")
    for metric, value in result["metrics"].items():
        _print(f"  {metric} = {value:.6g}")
    _print(f"report: {folder / 'report.html'}")


@app.command()
@_plainly
def bench(
    name: Annotated[str | None, typer.Argument(help="Which; all without it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Measure our speed as ratios, everything in one run."""
    from exhume.bench import run_benches

    with _progress() as progress:
        results = run_benches(name, progress=progress)
    if as_json:
        _print(json.dumps(results))
        return
    for result in results:
        _print("  ".join(f"{key} {value}" for key, value in result.items()))


@contextmanager
def _progress() -> Iterator[Progress]:
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
        TextColumn("{task.description:32}"),
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
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


def _lines(stage: str, done: int, total: int) -> None:
    if done in (0, total):
        _say(f"{stage}: {done} of {total}")
