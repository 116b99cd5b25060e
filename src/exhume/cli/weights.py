"""`exhume audit-weights`: which training images can be read out of your own checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exhume.cli.frame import (
    Adapter,
    Base,
    Delta,
    FailOver,
    Out,
    Redact,
    Scaling,
    Seed,
    app,
    conclude,
    numbers,
    plainly,
    shown,
)

if TYPE_CHECKING:
    from exhume.auditing import WeightsSettings


@app.command("audit-weights")
@plainly
def audit_weights(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(help="A .safetensors file or a saved state dict; nothing in it is run."),
    ] = None,
    base: Base = "",
    adapter: Adapter = "",
    delta: Delta = "",
    scaling: Scaling = 0.0,
    trained_on: Annotated[
        str | None,
        typer.Option(help="A named set or path: what it was trained on, used to score only."),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            help="Which rows of it: 0:100,205 or an .npy file; the others serve as decoys."
        ),
    ] = None,
    decoys: Annotated[
        str | None, typer.Option(help="Records of the same kind that were not trained on.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Of one record, such as 3,32,32; known with --trained-on.")
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            help="What your preprocessing subtracts from [0, 1] pixels: an .npz file, 0.5, or a number "
            "a channel; 0 for nothing."
        ),
    ] = None,
    activation: Annotated[str, typer.Option(help="Between the layers.")] = "relu",
    head: Annotated[
        str | None, typer.Option(help="multiclass, binary or regression; default: by the outputs.")
    ] = None,
    restarts: Annotated[
        int | None, typer.Option(help="Of the attack; more find more, in proportional time.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Of each restart.")] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Read a pickle or torch.export file; that runs code in it."),
    ] = False,
    seed: Seed = None,
    out: Out = None,
    redact: Redact = False,
    fail_over: FailOver = None,
) -> int:
    """Reconstruct training images from a checkpoint of yours, and say how many are real.

    Exit code 0: audited. 1: audited, and it leaks more than --fail-over. 2: could not audit.
    """
    from exhume.auditing import WeightsSettings
    from exhume.auditing import audit_weights as run

    given: dict[str, Any] = {
        "base": base,
        "adapter": adapter,
        "delta": delta,
        "scaling": scaling,
        "trained_on": trained_on,
        "rows": rows,
        "decoys": decoys,
        "shape": numbers("--shape", shape),
        "mean": mean,
        "activation": activation,
        "head": head,
        "restarts": restarts,
        "steps": steps,
        "trust": trust or None,
        "seed": seed,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = WeightsSettings(str(checkpoint or ""), **chosen)
    with shown() as progress:
        done = run(settings, out or _folder_for(settings), progress=progress, redact=redact)
    return conclude(done, fail_over, more="records in --trained-on and --decoys")


def _folder_for(settings: WeightsSettings) -> Path:
    """A folder named by the settings, so that the same command finds its own earlier work."""
    import hashlib

    name = settings.file.stem or "weights"
    return Path("runs") / f"{name}-{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"
