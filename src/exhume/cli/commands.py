"""The commands. Heavy imports happen inside them, so that `--help` answers at once."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exhume.cli.frame import (
    FailOver,
    Out,
    Processes,
    Ray,
    Redact,
    Seed,
    app,
    conclude,
    data_app,
    numbers,
    plainly,
    shown,
    spread,
    study_app,
    tell,
)

if TYPE_CHECKING:
    from exhume.auditing import Brief
    from exhume.contract import Progress


@app.command()
@plainly
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
    network: Annotated[
        str | None, typer.Option(help="mlp, cnn for images, or your own: file.py:factory.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="Your own training: file.py:train(model, records, rng).")
    ] = None,
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
    dp_steps: Annotated[
        int | None,
        typer.Option(help="Noisy steps of a train function of your own, to certify it."),
    ] = None,
    dp_sampling: Annotated[
        float | None,
        typer.Option(help="Private training: probability with which a record enters a step."),
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="A file of weights that training starts from.")
    ] = None,
    exact: Annotated[
        int | None,
        typer.Option(help="Targets to attack by differentiating through training as well."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="What all attacks may take, such as 10m; default: no limit.")
    ] = None,
    try_fixes: Annotated[
        bool, typer.Option("--try-fixes", help="Where it leaks, also try what stops it.")
    ] = False,
    seed: Seed = None,
    memory: Annotated[int | None, typer.Option(help="MiB that model training may take.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Processor threads; default: all cores.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu (default) or cuda.")] = None,
    ray: Ray = None,
    processes: Processes = None,
    out: Out = None,
    redact: Redact = False,
    fail_over: FailOver = None,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML, for CI.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json instead of sentences.")
    ] = False,
) -> int:
    """Attack what you release, and say what leaks.

    A CONFIG file says what that is (`exhume init` writes one); without it, weights trained your way.

    Exit code 0: audited. 1: audited, and it leaks more than --fail-over. 2: could not audit.
    """
    from exhume.auditing import Brief
    from exhume.auditing import audit as run

    brief = Brief.from_toml(config) if config else Brief()
    settings = brief.settings.with_values(
        "data", source=data, fixed=fixed, targets=targets, shadows=shadows
    )
    settings = settings.with_values(
        "victim",
        network=network,
        train=train,
        start=start,
        hidden=numbers("--hidden", hidden),
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
        dp_steps=dp_steps,
        dp_sampling=dp_sampling,
    )
    settings = settings.with_values("attack", exact=exact)
    settings = settings.with_values("machine", memory=memory, threads=threads, device=device)
    if seed is not None:
        settings = settings.with_seed(seed)
    brief = brief.with_settings(settings).with_budget(time=budget, fixes=try_fixes or None)
    with shown() as progress, spread(ray, processes):
        done = run(brief, out or _folder_for(brief), progress=progress, redact=redact)
    if junit is not None:
        from exhume.report.junit import write_junit

        write_junit(done.folder, junit, fail_over=fail_over)
    if as_json:
        tell((done.folder / "result.json").read_text(encoding="utf-8").rstrip())
    return conclude(done, fail_over, more="--targets", quiet=as_json)


def _folder_for(brief: Brief) -> Path:
    """A folder named by the settings, so that the same command finds its own earlier work."""
    import hashlib

    name = Path(brief.settings.data.source).stem or "data"
    return Path("runs") / f"{name}-{hashlib.sha256(brief.toml().encode()).hexdigest()[:8]}"


@app.command()
@plainly
def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    redact: Annotated[
        bool, typer.Option("--redact", help="Without any record, to be shared.")
    ] = False,
) -> None:
    """(Re)draw the page of a run."""
    from exhume.report.page import draw

    tell(f"report: {draw(run, redact=redact)}")


@data_app.command("list")
@plainly
def data_list() -> None:
    """The sets known by name."""
    from exhume.data import catalogue

    for named in catalogue():
        shape = "x".join(str(size) for size in named.shape) or named.kind
        size = f"{named.download_mb} MB to download" if named.download_mb else "no download"
        state = "cached" if named.cached else size
        tell(f"{named.name:10} {named.records:>8,} records  {shape:14} {state}")
        tell(f"{'':10} {named.description}; from {named.source}")


@data_app.command("fetch")
@plainly
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name from `exhume data list`.")],
) -> None:
    """Download a set into the cache and check it."""
    from exhume.data import fetch

    with shown() as progress:
        path = fetch(name, progress=progress)
    tell(f"cached: {path}")


class Scale(StrEnum):
    smoke = "smoke"
    cpu = "cpu"
    paper = "paper"


@study_app.command("list")
@plainly
def study_list() -> None:
    """The studies there are."""
    from exhume.studies import STUDIES

    for study in STUDIES.values():
        tell(f"{study.name:24} {study.paper:12} {study.title}")


@study_app.command("run")
@plainly
def study_run(
    name: Annotated[str, typer.Argument(help="A name from `exhume study list`.")],
    scale: Annotated[
        Scale, typer.Option(help="Seconds, minutes, or the paper's sizes.")
    ] = Scale.cpu,
    out: Out = None,
    seed: Seed = None,
    ray: Ray = None,
    processes: Processes = None,
) -> None:
    """Rerun one result of a paper and put our numbers beside its own."""
    from exhume.choices import threads_for
    from exhume.studies import run_study, study_named

    folder = out or Path("runs") / f"{name}-{scale.value}-{seed or 0}"
    if study_named(name).spreads and scale is not Scale.smoke and ray is None:
        processes = processes or threads_for(0)
    with shown() as progress, spread(ray, processes):
        result = run_study(name, scale.value, folder, seed=seed or 0, progress=progress)
    for claim in result["claims"]:
        mark = "holds" if claim["holds"] else "DOES NOT HOLD"
        tell(f"{mark}: {claim['statement']} (measured {claim['measured']})")
    for metric, value in result["metrics"].items():
        tell(f"  {metric} = {value:.6g}")
    tell(f"report: {folder / 'report.html'}")


@app.command()
@plainly
def bench(
    name: Annotated[str | None, typer.Argument(help="Which; all without it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Measure our speed as ratios, everything in one run."""
    from exhume.bench import run_benches

    with shown() as progress:
        results = run_benches(name, progress=progress, more={"serve": _bench_serve})
    if as_json:
        tell(json.dumps(results))
        return
    for result in results:
        tell("  ".join(f"{key} {value}" for key, value in result.items()))


def _bench_serve(progress: Progress) -> list[dict[str, Any]]:
    from exhume.integrations.serve_bench import run

    return run(progress)
