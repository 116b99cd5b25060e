"""`exhume audit-split`: what the features of your split network give away, and what a defence costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    plainly,
    shown,
    spread,
)


@app.command("audit-split")
@plainly
def audit_split(
    model: Annotated[
        str, typer.Argument(help="package.module:factory or file.py:factory, your nn.Module.")
    ],
    data: Annotated[str, typer.Option(help="A named set or path: records like your clients'.")],
    weights: Annotated[
        Path | None, typer.Option(help="Its state dict or .safetensors; nothing in it is run.")
    ] = None,
    first: Annotated[
        str | None,
        typer.Option(
            help="Last layer that the client keeps; others to compare after a comma: conv1,block1."
        ),
    ] = None,
    second: Annotated[
        str | None, typer.Option(help="Last layer on the server; default: the last that can be.")
    ] = None,
    defend: Annotated[
        str | None,
        typer.Option(
            help="Train this defence, and attack again: ensembler, single, shredder, dropout, "
            "dropout-ensemble, random-head."
        ),
    ] = None,
    bodies: Annotated[int | None, typer.Option(help="N of an ensemble.")] = None,
    selected: Annotated[int | None, typer.Option(help="P of the Ensembler.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Of the noise on the features.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Of training the defence.")] = None,
    rate: Annotated[float | None, typer.Option(help="Its learning rate.")] = None,
    batch: Annotated[int | None, typer.Option(help="Its batch, and the attackers'.")] = None,
    augment: Annotated[
        bool, typer.Option(help="Move and mirror its training images; wrong for digits.")
    ] = False,
    attack_epochs: Annotated[int | None, typer.Option(help="Of shadow and decoder.")] = None,
    channels: Annotated[int | None, typer.Option(help="Of shadow and decoder.")] = None,
    targets: Annotated[int | None, typer.Option(help="Inputs to attack.")] = None,
    held: Annotated[int | None, typer.Option(help="Records that the attacker holds.")] = None,
    seen: Annotated[int | None, typer.Option(help="Inputs sent before.")] = None,
    train: Annotated[int | None, typer.Option(help="Records to train a defence on.")] = None,
    lpips: Annotated[bool, typer.Option(help="Measure it too, on images in colour.")] = True,
    seed: Seed = None,
    threads: Annotated[int | None, typer.Option(help="Processor threads.")] = None,
    ray: Ray = None,
    processes: Processes = None,
    out: Out = None,
    redact: Redact = False,
    fail_over: FailOver = None,
) -> int:
    """Cut your network at several depths, attack what the client would send, and say which depth is enough.

    Exit code 0: audited. 1: audited, and it leaks more than --fail-over. 2: could not audit.
    """
    from exhume.auditing.split.attack import audit_split as run
    from exhume.auditing.split.settings import SplitSettings, folder_for

    given: dict[str, Any] = {
        "weights": None if weights is None else str(weights),
        "first": None if first is None else tuple(filter(None, first.split(","))),
        "second": second,
        "defend": defend,
        "bodies": bodies,
        "selected": selected,
        "sigma": sigma,
        "epochs": epochs,
        "rate": rate,
        "batch": batch,
        "augment": augment,
        "attack_epochs": attack_epochs,
        "channels": channels,
        "targets": targets,
        "held": held,
        "seen": seen,
        "train": train,
        "lpips": lpips,
        "seed": seed,
        "threads": threads,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = SplitSettings(model, data, **chosen)
    with shown() as progress, spread(ray, processes):
        done = run(settings, out or folder_for(settings), progress=progress, redact=redact)
    return conclude(done, fail_over, more="--targets")
