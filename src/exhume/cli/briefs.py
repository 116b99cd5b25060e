"""`exhume init` writes a brief by asking; `exhume compare` puts two runs side by side."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from exhume.cli.frame import LEAKS, app, plainly, tell


class Released(StrEnum):
    """What leaves the house."""

    training = "training"
    checkpoint = "checkpoint"
    updates = "updates"
    features = "features"
    fitted = "fitted"


class Holds(StrEnum):
    """What is in the file."""

    whole = "whole"
    adapter = "adapter"
    delta = "delta"


_ASKED = """What do you release?
  training    weights of a model that you train; exhume trains it your way and attacks it
  checkpoint  a file of weights that you have
  updates     updates of clients in federated learning
  features    what the client of a split network sends to a server
  fitted      a fitted linear model of scikit-learn's"""

_HELD = """What is in the file?
  whole    all weights
  adapter  a LoRA adapter of a base model
  delta    differences to a base model"""
_SENT = """What does a client send?
  whole    gradients or whole weights
  adapter  a LoRA adapter of a base model, after few steps
  delta    differences to a base model, after few steps"""


@app.command()
@plainly
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("audit.toml"),
    release: Annotated[
        Released | None, typer.Option(help="What you release; asked for if not given.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Your records: a named set or a path.")] = None,
    model: Annotated[
        str | None, typer.Option(help="mlp, cnn, or your own: file.py:factory.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="The file of weights.")] = None,
    holds: Annotated[
        Holds | None,
        typer.Option(help="The file: whole weights, a LoRA adapter, or differences to a base."),
    ] = None,
    base: Annotated[str | None, typer.Option(help="Of an adapter or a difference.")] = None,
    budget: Annotated[str | None, typer.Option(help="What an audit may take.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
) -> None:
    """Write a commented audit.toml by asking what is released and to whom."""
    from exhume.auditing.brief_file import brief_file
    from exhume.contract import ExhumeError
    from exhume.store import write_atomically

    if path.exists() and not force:
        raise ExhumeError(f"{path} exists; choose another name, or --force")
    if release is None:
        tell(_ASKED)
        release = Released(_asked("It is", "training", [kind.value for kind in Released]))
    if data is None:
        data = typer.prompt(
            "Your records (a named set, a folder, an .npz file, texts in a .txt file)",
            default="mnist",
        )
    filed = release in (Released.checkpoint, Released.fitted)
    if model is None and not filed:
        known = "file.py:factory" if release is Released.features else "mlp"
        model = typer.prompt("Your model (mlp, cnn, or file.py:factory)", default=known)
    if holds is None and checkpoint is None and release in (Released.checkpoint, Released.updates):
        tell(_HELD if release is Released.checkpoint else _SENT)
        holds = Holds(_asked("It is", "whole", [kind.value for kind in Holds]))
    tuned = holds not in (None, Holds.whole)
    if checkpoint is None and (filed or tuned):
        known = "model.skops" if release is Released.fitted else f"{holds if tuned else 'model'}"
        known = known if known.endswith(".skops") else f"{known}.safetensors"
        checkpoint = typer.prompt("The file", default=known)
    if base is None and tuned:
        base = typer.prompt("The base it is added to", default="base.safetensors")
    if budget is None:
        budget = typer.prompt("How long may an audit take", default="10m")
    text = brief_file(
        release.value,
        data=str(data),
        model=model or "mlp",
        checkpoint=checkpoint or "",
        budget=str(budget),
        holds=(holds or Holds.whole).value,
        base=base or "",
    )
    write_atomically(path, text.encode())
    tell(f"written: {path}; read it, change it, then: exhume audit {path}")


def _asked(what: str, default: str, legal: list[str]) -> str:
    while True:
        answer = str(typer.prompt(f"{what} ({', '.join(legal)})", default=default)).strip()
        if answer in legal:
            return answer
        tell(f"{answer!r} is not one of these.")


@app.command()
@plainly
def compare(
    first: Annotated[Path, typer.Argument(help="A run folder.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    fail_on_worse: Annotated[
        bool, typer.Option("--fail-on-worse", help="Exit 1 if the second leaks more.")
    ] = False,
) -> int:
    """Does the second run leak more than the first, less, or is the difference within noise?"""
    from exhume.report.compare import compare as changes

    found = changes(first, second)
    for change in found:
        tell(change.sentence())
    worse = any(change.word == "worse" for change in found)
    return LEAKS if worse and fail_on_worse else 0
