"""The commands. Heavy imports happen inside them, so that `--help` answers at once."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exhume.cli.frame import (
    Out,
    Processes,
    Ray,
    ResumeAnyway,
    Seed,
    app,
    data_app,
    refuse_two_places,
    run_on,
    study_app,
    tell,
    with_exit_codes,
)
from exhume.cli.known import refuse_unfinished, refuse_unknown_study
from exhume.cli.last_words import say_loading
from exhume.cli.progress import progress_shown
from exhume.settings.sources import IMAGE_SETS, PAIR_SETS, check_source, unknown_source

if TYPE_CHECKING:
    from exhume.core.contract import Progress


@app.command()
@with_exit_codes
def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    redact: Annotated[
        bool,
        typer.Option("--redact", help="Leave every record out, so that the page can be shared."),
    ] = False,
) -> None:
    """Draw the page of a run again."""
    refuse_unfinished(run)
    from exhume.report.page import draw

    tell(f"report: {draw(run, redact=redact)}")


@data_app.command("list")
@with_exit_codes
def data_list() -> None:
    """The sets known by name."""
    from exhume.readers import catalogue

    for named in catalogue():
        shape = "x".join(str(size) for size in named.shape) or named.kind
        size = f"{named.download_mb} MB to download" if named.download_mb else "no download"
        state = "cached" if named.cached else size
        tell(f"{named.name:10} {named.records:>8,} records  {shape:14} {state}")
        tell(f"{'':10} {named.description}; from {named.source}")


@data_app.command("fetch")
@with_exit_codes
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name from `exhume data list`.")],
) -> None:
    """Download a set into the cache and check it."""
    if name not in (*IMAGE_SETS, *PAIR_SETS):
        raise unknown_source(name, (*IMAGE_SETS, *PAIR_SETS), "no other name")
    from exhume.readers import fetch

    with progress_shown() as progress:
        path = fetch(name, progress=progress)
    tell(f"cached: {path}")


class Scale(StrEnum):
    smoke = "smoke"
    cpu = "cpu"
    long = "long"
    paper = "paper"


@study_app.command("list")
@with_exit_codes
def study_list() -> None:
    """The studies there are."""
    from exhume.studies import STUDIES

    for study in STUDIES.values():
        tell(f"{study.name:24} {study.paper:12} {study.title}")


@study_app.command("run")
@with_exit_codes
def study_run(
    name: Annotated[str, typer.Argument(help="A name from `exhume study list`.")],
    scale: Annotated[
        Scale,
        typer.Option(
            help="smoke: seconds; cpu: minutes to an hour; long: hours; paper: its sizes."
        ),
    ] = Scale.cpu,
    out: Out = None,
    seed: Seed = None,
    ray: Ray = None,
    processes: Processes = None,
    data: Annotated[
        str, typer.Option(help="The path of your own copy of the set that the study reads.")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, or cuda where the study can use it.")] = "cpu",
    resume_anyway: ResumeAnyway = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Also store the result as docs/results/NAME.json.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it takes, and run nothing.")
    ] = False,
    workers: Annotated[
        int, typer.Option(help="With --dry-run: workers of one thread; default: the cores here.")
    ] = 0,
) -> None:
    """Rerun one result of a paper and put our numbers beside its own."""
    refuse_unknown_study(name)
    refuse_two_places(ray, processes)
    if data:
        check_source(data)
    say_loading()
    from exhume.choices import threads_for
    from exhume.studies import run_study, study_named

    if dry_run:
        from exhume.studies.plan import plan_lines

        cores = threads_for(0)
        for told in plan_lines(study_named(name), scale.value, workers or cores, cores):
            tell(told)
        return
    folder = out or Path("runs") / f"{name}-{scale.value}-{seed or 0}"
    if study_named(name).spreads and scale is not Scale.smoke and ray is None:
        processes = processes or threads_for(0)
    with progress_shown() as progress, run_on(ray, processes):
        result = run_study(
            name,
            scale.value,
            folder,
            seed=seed or 0,
            data=data,
            device=device,
            resume_anyway=resume_anyway,
            progress=progress,
            keep=Path("docs/results") if keep else None,
        )
    for claim in result.claims:
        mark = "holds" if claim.holds else "DOES NOT HOLD"
        tell(f"{mark}: {claim.statement} (measured {claim.measured})")
    for metric, value in result.metrics.items():
        tell(f"  {metric} = {value:.6g}")
    tell(f"report: {folder / 'report.html'}")


@study_app.command("figures")
@with_exit_codes
def study_figures(
    run: Annotated[
        Path,
        typer.Argument(help="The folder of a finished study or audit, or docs/results/NAME.json."),
    ],
    out: Annotated[Path, typer.Option(help="Where to write them.")] = Path("docs/figures"),
    attack: Annotated[
        str, typer.Option(help="Draw this attack alone, by its id in result.json; default: all.")
    ] = "",
    most: Annotated[
        int, typer.Option(min=1, help="Records of an attack; of more, evenly from best to worst.")
    ] = 64,
    public: Annotated[
        bool,
        typer.Option("--public", help="The records of this audit are public: draw them."),
    ] = False,
) -> None:
    """Write charts (SVG) and what came back, pictures (PNG) or words (SVG), below the private records."""
    if run.suffix != ".json" or not run.exists():
        refuse_unfinished(run)
    from exhume.report.sheet import write_sheets

    for path in write_sheets(run, out, public=public, attack=attack, most=most):
        tell(f"wrote: {path}")


@study_app.command("papers")
@with_exit_codes
def study_papers(
    docs: Annotated[Path, typer.Option(help="The folder with papers.toml and results/.")] = Path(
        "docs"
    ),
) -> None:
    """Write the page that has the papers' claims beside ours, from the results that are kept."""
    from exhume.studies.papers import write_papers

    for path in write_papers(docs):
        tell(f"wrote: {path}")


@study_app.command("tables")
@with_exit_codes
def study_tables(
    docs: Annotated[Path, typer.Option(help="The folder with pages and results/.")] = Path("docs"),
) -> None:
    """Fill the pages' tables from the results that are kept."""
    from exhume.studies.tables import write_tables

    for path in write_tables(docs):
        tell(f"wrote: {path}")


@app.command()
@with_exit_codes
def bench(
    name: Annotated[str | None, typer.Argument(help="Which one; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Measure speed, as ratios within one run."""
    from exhume.bench import run_benches

    with progress_shown() as progress:
        results = run_benches(name, progress=progress, more={"serve": _bench_serve})
    if as_json:
        tell(json.dumps(results))
        return
    for result in results:
        tell("  ".join(f"{key} {value}" for key, value in result.items()))


def _bench_serve(progress: Progress) -> list[dict[str, Any]]:
    from exhume.integrations.serve_bench import run

    return run(progress)
