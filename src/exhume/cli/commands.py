"""The other commands. Heavy imports happen inside them, so that `--help` answers at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from click import Choice

from exhume.cli.frame import (
    LEAKS,
    Out,
    Processes,
    Ray,
    ResumeAnyway,
    Seed,
    app,
    data_app,
    echo_err,
    echo_loading,
    echo_out,
    progress_shown,
    refuse_two_places,
    refuse_unfinished,
    refuse_unknown_study,
    run_on,
    study_app,
    with_exit_codes,
)
from exhume.core.errors import ExhumeError, unknown_name
from exhume.settings.reference import HOLDS, KINDS, brief_file, kinds_to_release
from exhume.settings.sources import IMAGE_SETS, PAIR_SETS, check_source, unknown_source

T = TypeVar("T")
_OPTIMISERS = {
    "gd": "gradient descent: every step sees all records",
    "sgd": "stochastic gradient descent",
    "adam": "Adam; its weight decay is added to the gradient",
    "adamw": "AdamW: the decay is decoupled",
}
_OWN = {"own": "your own function: file.py:train(model, records, rng)"}


# A brief, and two runs side by side


@app.command()
@with_exit_codes
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("audit.toml"),
    release: Annotated[
        str | None,
        typer.Option(
            help="What you release, or a kind that an installed package brings; asked for if not given.",
            metavar=f"[{'|'.join(KINDS)}|…]",
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Your records: a named set or a path.")] = None,
    model: Annotated[
        str | None, typer.Option(help="mlp, cnn, or your own: file.py:factory.")
    ] = None,
    optimiser: Annotated[
        str | None,
        typer.Option(
            "--optimiser",
            "--optimizer",
            help="Optimiser of your training.",
            click_type=Choice(_OPTIMISERS),
        ),
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="Your own training instead: file.py:train.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of your training.")] = None,
    batch: Annotated[int | None, typer.Option(help="Records that a step sees.")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate of your training.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of your training.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="The file of weights.")] = None,
    holds: Annotated[
        str | None, typer.Option(help="What is in the file.", click_type=Choice(HOLDS))
    ] = None,
    base: Annotated[str | None, typer.Option(help="Base of an adapter or a difference.")] = None,
    budget: Annotated[str | None, typer.Option(help="How long an audit may take.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
) -> None:
    """Write a commented audit.toml by asking what is released and to whom."""
    from exhume.store.shards import write_atomically

    if path.exists() and not force:
        raise ExhumeError(f"{path} exists; choose another name, or --force")
    kinds = kinds_to_release()
    release = release or _ask_choice("What do you release?", kinds)
    if release not in kinds:
        raise unknown_name("release", release, kinds)
    records = "Your records (a named set, a folder, a .csv or .npz file, texts in a .txt file)"
    data = _ask(data, records, "mnist")
    filed = release in ("checkpoint", "fitted")
    if not filed and release in KINDS:
        known = "file.py:factory" if release == "features" else "mlp"
        model = _ask(model, "Your model (mlp, cnn, or file.py:factory)", known)
    if train is not None and optimiser is not None:
        raise ExhumeError(
            "--train, --optimiser: your function decides how it trains; give one of the two"
        )
    training = {}
    if release == "training":
        training = _ask_training(train, optimiser, momentum, batch)
    if training and "train" not in training:
        usual = 0.001 if training["optimiser"] in ("adam", "adamw") else 0.1
        training["rate"] = _ask(rate, "Its learning rate", usual)
        training["steps"] = _ask(steps, "How many steps it takes", 100)
    if holds is None and checkpoint is None and release in ("checkpoint", "updates"):
        holds = _ask_choice("What is in the file, or does a client send?", HOLDS)
    tuned = holds in ("adapter", "delta")
    if filed or tuned:
        known = f"{holds if tuned else 'model'}.{'skops' if release == 'fitted' else 'safetensors'}"
        checkpoint = _ask(checkpoint, "The file", known)
    if tuned:
        base = _ask(base, "The base it is added to", "base.safetensors")
    text = brief_file(
        release,
        data=data,
        model=model or "mlp",
        checkpoint=checkpoint or "",
        budget=_ask(budget, "How long may an audit take", "10m"),
        holds=holds or "whole",
        base=base or "",
        training=training,
    )
    write_atomically(path, text.encode())
    echo_out(f"written: {path}; read it, change it, then: exhume audit {path}")


def _ask_training(
    train: str | None, optimiser: str | None, momentum: float | None, batch: int | None
) -> dict[str, str | float]:
    """How the model is trained; a step of gradient descent sees all records, Adam has no momentum."""
    by = train or optimiser or _ask_choice("How is it trained?", _OPTIMISERS | _OWN)
    if train or by in _OWN:
        return {"train": _ask(train, "Your function", "train.py:train")}
    said: dict[str, str | float] = {"optimiser": by}
    if by != "gd":
        said["batch"] = _ask(batch, "Records that a step sees", 32)
    if by not in ("adam", "adamw"):
        said["momentum"] = _ask(momentum, "Its momentum", 0.0)
    return said


def _ask(given: T | None, what: str, default: T) -> T:
    """As given, or the answer to a question."""
    answer: T = typer.prompt(what, default=default) if given is None else given
    return answer


def _ask_choice(question: str, known: Mapping[str, str]) -> str:
    """One of a few, asked for until the answer is one of them."""
    echo_out("\n".join([question, *(f"  {name:11} {words}" for name, words in known.items())]))
    while True:
        answer: str = typer.prompt(f"It is ({', '.join(known)})", default=next(iter(known))).strip()
        if answer in known:
            return answer
        echo_out(f"{answer!r} is not one of these.")


@app.command()
@with_exit_codes
def compare(
    first: Annotated[Path, typer.Argument(help="A run folder.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    fail_on_worse: Annotated[
        bool, typer.Option("--fail-on-worse", help="Exit 1 if the second leaks more.")
    ] = False,
) -> int:
    """Does the second run leak more than the first, less, or is the difference within noise?"""
    for run in (first, second):
        refuse_unfinished(run)
    from exhume.report.gate import compare as changes

    differences = changes(first, second)
    for change in differences:
        echo_out(change.sentence())
    worse = any(change.word == "worse" for change in differences)
    return LEAKS if worse and fail_on_worse else 0


@app.command()
@with_exit_codes
def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    redact: Annotated[
        bool,
        typer.Option("--redact", help="Leave every record out, so that the page can be shared."),
    ] = False,
    assessment: Annotated[
        bool,
        typer.Option(
            "--assessment",
            help="Write two pages for an impact assessment (HTML, Markdown) and a fragment of a model card.",
        ),
    ] = False,
) -> None:
    """Draw the page of a run again."""
    refuse_unfinished(run)
    if assessment:
        from exhume.report.assessment import write_assessment

        for path in write_assessment(run):
            echo_out(f"wrote: {path}")
        return
    from exhume.report.page import draw

    echo_out(f"report: {draw(run, redact=redact)}")


# Data


@data_app.command("list")
@with_exit_codes
def data_list() -> None:
    """The sets known by name."""
    from exhume.readers import catalogue

    for named in catalogue():
        shape = "x".join(str(size) for size in named.shape) or named.kind
        size = f"{named.download_mb} MB to download" if named.download_mb else "no download"
        state = "cached" if named.cached else size
        echo_out(f"{named.name:10} {named.records:>8,} records  {shape:14} {state}")
        echo_out(f"{'':10} {named.description}; from {named.source}")


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
    echo_out(f"cached: {path}")


# Studies


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
        echo_out(f"{study.name:24} {study.paper:12} {study.title}")


@study_app.command("run")
@with_exit_codes
def study_run(
    name: Annotated[
        str,
        typer.Argument(help="A name from `exhume study list`; all: what docs/papers.toml needs."),
    ],
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
    """Rerun one result of a paper, or all that "Papers and us" needs, and put our numbers beside its own."""
    if name != "all":
        refuse_unknown_study(name)
    refuse_two_places(ray, processes)
    if data:
        check_source(data)
    echo_loading()
    from exhume.choices import threads_for
    from exhume.core.contract import ExhumeError, NotApplicable
    from exhume.studies import run_study, study_named

    cores = threads_for(0)
    names = _studies_due(scale, dry_run=dry_run) if name == "all" else [name]
    if dry_run:
        from exhume.studies.plan import plan_lines

        if name != "all":
            for told in plan_lines(study_named(name), scale.value, workers or cores, cores):
                echo_out(told)
        return
    failed = []
    for one in names:
        chosen = scale if scale.value in study_named(one).scales else Scale.cpu
        folder = out or Path("runs") / f"{name}-{scale.value}-{seed or 0}"
        folder = folder / one if name == "all" else folder
        spreads = study_named(one).spreads and scale is not Scale.smoke and ray is None
        try:
            with (
                progress_shown() as progress,
                run_on(ray, processes or cores if spreads else processes),
            ):
                result = run_study(
                    one,
                    chosen.value,
                    folder,
                    seed=seed or 0,
                    data=data,
                    device=device,
                    resume_anyway=resume_anyway,
                    progress=progress,
                    keep=Path("docs/results") if keep else None,
                )
        except (ExhumeError, NotApplicable) as why:
            if name != "all":
                raise
            failed.append(one)
            echo_err(f"{one}: {why}")
            continue
        for claim in result.claims:
            mark = claim.word.upper() if claim.holds is False else claim.word
            echo_out(f"{mark}: {claim.statement} (measured {claim.measured})")
        for metric, value in result.metrics.items():
            echo_out(f"  {metric} = {value:.6g}")
        echo_out(f"report: {folder / 'report.html'}")
    if failed:
        raise ExhumeError(f"not run: {', '.join(failed)}; the same command tries them again")


def _studies_due(scale: Scale, *, dry_run: bool) -> list[str]:
    """The studies that a row of docs/papers.toml needs, the cheapest first; says what each will take.

    That is what the study counts, or else what its kept result took, at the same scale.
    """
    from exhume.choices import threads_for
    from exhume.core.notation import duration_of
    from exhume.studies import study_named
    from exhume.studies.papers import due, read_papers
    from exhume.studies.plan import planned_seconds

    papers, cores = read_papers(Path("docs")), threads_for(0)
    kept, known = due(papers), dict[str, float]()
    for name, seconds in kept.items():
        study = study_named(name)
        chosen = scale if scale.value in study.scales else Scale.cpu
        counted = planned_seconds(study, chosen.value, cores, cores)
        if counted is not None:
            known[name] = counted
        elif seconds is not None and papers.results[name].scale == chosen.value:
            known[name] = seconds
    names = sorted(kept, key=lambda name: known.get(name, float("inf")))
    if dry_run:
        for name in names:
            about = f"some {duration_of(known[name])}" if name in known else "nobody has counted"
            echo_out(f"{name:26} {about}")
        some = f"some {duration_of(sum(known.values()))} for {len(known)} of them"
        echo_out(f"plan: {len(names)} studies at scale {scale.value}, {some}")
    return names


@study_app.command("keep")
@with_exit_codes
def study_keep(
    runs: Annotated[list[Path], typer.Argument(help="Folders of studies that ran at some commit.")],
) -> None:
    """Keep results of earlier commits: where the study's smoke metrics there and here agree."""
    echo_loading()
    from exhume.studies.keep import keep_result

    for run in runs:
        refuse_unfinished(run)
        result = keep_result(run, Path("docs/results"))
        echo_out(f"kept: {result.study} at scale {result.scale}, {result.environment['commit']}")


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
        echo_out(f"wrote: {path}")


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
        echo_out(f"wrote: {path}")


@study_app.command("tables")
@with_exit_codes
def study_tables(
    docs: Annotated[Path, typer.Option(help="The folder with pages and results/.")] = Path("docs"),
) -> None:
    """Fill the pages' tables from the results that are kept."""
    from exhume.studies.tables import write_tables

    for path in write_tables(docs):
        echo_out(f"wrote: {path}")


@app.command()
@with_exit_codes
def bench(
    name: Annotated[str | None, typer.Argument(help="Which one; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Measure speed, as ratios within one run."""
    from exhume.bench import run_benches

    with progress_shown() as progress:
        results = run_benches(name, progress=progress)
    if as_json:
        echo_out(json.dumps(results))
        return
    for result in results:
        echo_out("  ".join(f"{key} {value}" for key, value in result.items()))


# A trained split defence as it is deployed


@app.command()
@with_exit_codes
def export(
    run: Annotated[Path, typer.Argument(help="A run of exhume audit-split with --defend.")],
    client: Annotated[Path, typer.Option(help="New folder: head, noise, selector and tail.")],
    server: Annotated[
        Path | None, typer.Option(help="New folder: bodies, for MLServer. Not needed again later.")
    ] = None,
    onnx: Annotated[
        Path | None, typer.Option(help="New folder: the bodies as ONNX, for Triton.")
    ] = None,
) -> None:
    """Write a trained defence as a client's folder and a server's. Only the client's has the selector."""
    from exhume.core.contract import ExhumeError
    from exhume.integrations.exporting import export_onnx, export_run

    if onnx is not None and server is None:
        raise ExhumeError("--onnx: give --server too; the bodies are taken from there")
    factory = export_run(run, client, server)
    echo_out(f"client: {client} (keep it to yourself)")
    if server is not None:
        echo_out(f"server: {server}")
    if onnx is not None and server is not None:
        export_onnx(server, onnx, factory=factory)
        echo_out(f"onnx: {onnx}")


@app.command()
@with_exit_codes
def serve(
    server: Annotated[Path, typer.Argument(help="A server's folder written by exhume export.")],
    only: Annotated[str | None, typer.Option(help="Which bodies: 0-4 or 0,2,5.")] = None,
    port: Annotated[
        int, typer.Option(help="Port of REST; gRPC takes the next one, metrics the one after.")
    ] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    threads: Annotated[int, typer.Option(help="Processor threads for each request.")] = 1,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without nginx in front.")
    ] = False,
) -> None:
    """Serve bodies with MLServer until stopped, behind nginx (docs/serve.md). Needs the extra `serve`."""
    from exhume.core.notation import rows_in
    from exhume.integrations.mlserver_body import Hosting
    from exhume.integrations.mlserver_body import host as run

    bodies = None if only is None else tuple(rows_in(only, "--only", what="bodies"))
    run(server, Hosting(port, host, threads, insecure), only=bodies)
