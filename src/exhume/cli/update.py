"""`exhume audit-update`: what a client's update gives away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exhume.cli.frame import (
    Adapter,
    Base,
    Delta,
    Out,
    Scaling,
    Seed,
    app,
    conclude,
    numbers,
    plainly,
    shown,
)


@app.command("audit-update")
@plainly
def audit_update(
    update: Annotated[
        Path | None,
        typer.Argument(
            help="A gradient (safetensors or state dict), or a folder of recorded ones."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="package.module:factory or file.py:factory, your nn.Module.")
    ] = "",
    before: Annotated[Path | None, typer.Option(help="The state the client was sent.")] = None,
    after: Annotated[Path | None, typer.Option(help="The state the client returned.")] = None,
    base: Base = "",
    adapter: Adapter = "",
    delta: Delta = "",
    scaling: Scaling = 0.0,
    made: Annotated[
        int, typer.Option(help="Instead of files: updates to make here, of --data.")
    ] = 0,
    rate: Annotated[float, typer.Option(help="Learning rate of the client's SGD.")] = 0.0,
    steps: Annotated[int, typer.Option(help="Its local steps.")] = 1,
    loss: Annotated[str, typer.Option(help="cross-entropy (one output: logistic).")] = (
        "cross-entropy"
    ),
    reduction: Annotated[str, typer.Option(help="Of the loss over the batch: mean or sum.")] = (
        "mean"
    ),
    batch_norm: Annotated[str, typer.Option(help="Mode of batch norm: train or eval.")] = "train",
    batch_size: Annotated[
        int, typer.Option(help="Records behind the update; 0: to be found out.")
    ] = 0,
    shape: Annotated[str | None, typer.Option(help="Of one record: 1,28,28.")] = None,
    data: Annotated[
        str, typer.Option(help="The set with the private records, to score with.")
    ] = "",
    records: Annotated[
        str, typer.Option(help="Which of them: 3,17,40-43, or a file of indices.")
    ] = "",
    vocabulary: Annotated[
        str, typer.Option(help="Of texts: a file of words, by their token numbers.")
    ] = "",
    length: Annotated[int, typer.Option(help="Of texts: tokens of a record; 0: the longest.")] = 0,
    padding: Annotated[
        int,
        typer.Option(help="Of texts: the number that fills up; -1: as vocabulary or model say."),
    ] = -1,
    restarts: Annotated[int, typer.Option(help="Of gradient matching.")] = 4,
    search_steps: Annotated[
        int, typer.Option(help="Of gradient matching; 0: what --budget allows.")
    ] = 0,
    budget: Annotated[float, typer.Option(help="Seconds for gradient matching.")] = 120.0,
    seed: Seed = None,
    threads: Annotated[int, typer.Option(help="Processor threads; default: all cores.")] = 0,
    out: Out = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Also write a report without any record.")
    ] = False,
    fail_over: Annotated[
        float | None,
        typer.Option(help="Exit 1 if a larger share of the records leaks.", min=0, max=1),
    ] = None,
) -> int:
    """Attack a client's update of your model, and say which records it gives away.

    Exit code 0: audited. 1: audited, and it leaks more than --fail-over. 2: could not audit.
    """
    from exhume.auditing.updates.attack import audit_update as run
    from exhume.auditing.updates.settings import UpdateSettings, folder_for

    settings = UpdateSettings(
        model=model,
        update=str(update or ""),
        before=str(before or ""),
        after=str(after or ""),
        base=base,
        adapter=adapter,
        delta=delta,
        scaling=scaling,
        made=made,
        rate=rate,
        steps=steps,
        loss=loss,
        reduction=reduction,
        batch_norm=batch_norm,
        batch_size=batch_size,
        shape=numbers("--shape", shape) or (),
        data=data,
        records=records,
        vocabulary=vocabulary,
        length=length,
        padding=padding,
        restarts=restarts,
        search_steps=search_steps,
        budget=budget,
        seed=seed or 0,
        threads=threads,
    )
    with shown() as progress:
        done = run(settings, out or folder_for(settings), progress=progress, redact=redact)
    return conclude(done, fail_over, more="records")
