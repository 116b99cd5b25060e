"""`exhume init` writes a brief by asking; `exhume compare` puts two runs side by side."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from exhume.cli.frame import LEAKS, app, tell, with_exit_codes


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


class Optimiser(StrEnum):
    gd = "gd"
    sgd = "sgd"
    adam = "adam"


T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

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
_OPTIMISED = """How is it trained?
  gd    by gradient descent: every step sees all records
  sgd   by stochastic gradient descent
  adam  by Adam"""
_SENT = """What does a client send?
  whole    gradients or whole weights
  adapter  a LoRA adapter of a base model, after few steps
  delta    differences to a base model, after few steps"""


@app.command()
@with_exit_codes
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("audit.toml"),
    release: Annotated[
        Released | None, typer.Option(help="What you release; asked for if not given.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Your records: a named set or a path.")] = None,
    model: Annotated[
        str | None, typer.Option(help="mlp, cnn, or your own: file.py:factory.")
    ] = None,
    optimiser: Annotated[Optimiser | None, typer.Option(help="Of your training.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of your training.")] = None,
    batch: Annotated[int | None, typer.Option(help="Records that a step sees.")] = None,
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
    release = release or _chosen(Released, _ASKED)
    data = _asked(
        data, "Your records (a named set, a folder, an .npz file, texts in a .txt file)", "mnist"
    )
    filed = release in (Released.checkpoint, Released.fitted)
    if not filed:
        known = "file.py:factory" if release is Released.features else "mlp"
        model = _asked(model, "Your model (mlp, cnn, or file.py:factory)", known)
    training = _training(optimiser, momentum, batch) if release is Released.training else {}
    if holds is None and checkpoint is None and release in (Released.checkpoint, Released.updates):
        holds = _chosen(Holds, _HELD if release is Released.checkpoint else _SENT)
    tuned = holds not in (None, Holds.whole)
    if filed or tuned:
        known = (
            "model.skops"
            if release is Released.fitted
            else f"{holds if tuned else 'model'}.safetensors"
        )
        checkpoint = _asked(checkpoint, "The file", known)
    if tuned:
        base = _asked(base, "The base it is added to", "base.safetensors")
    text = brief_file(
        release.value,
        data=data,
        model=model or "mlp",
        checkpoint=checkpoint or "",
        budget=_asked(budget, "How long may an audit take", "10m"),
        holds=(holds or Holds.whole).value,
        base=base or "",
        training=training,
    )
    write_atomically(path, text.encode())
    tell(f"written: {path}; read it, change it, then: exhume audit {path}")


def _training(
    optimiser: Optimiser | None, momentum: float | None, batch: int | None
) -> dict[str, str | float]:
    """How the model is trained; a step of gradient descent sees all records, Adam has no momentum."""
    said: dict[str, str | float] = {"optimiser": optimiser or _chosen(Optimiser, _OPTIMISED)}
    if said["optimiser"] != Optimiser.gd:
        said["batch"] = _asked(batch, "Records that a step sees", 32)
    if said["optimiser"] != Optimiser.adam:
        said["momentum"] = _asked(momentum, "Its momentum", 0.0)
    return {name: getattr(value, "value", value) for name, value in said.items()}


def _asked(given: T | None, what: str, default: T) -> T:
    """As given, or the answer to a question."""
    answer: T = typer.prompt(what, default=default) if given is None else given
    return answer


def _chosen(kind: type[E], lines: str) -> E:
    """One of a few, asked for until the answer is one of them."""
    tell(lines)
    legal = [one.value for one in kind]
    while True:
        answer = str(typer.prompt(f"It is ({', '.join(legal)})", default=legal[0])).strip()
        if answer in legal:
            return kind(answer)
        tell(f"{answer!r} is not one of these.")


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
    from exhume.report.compare import compare as changes

    found = changes(first, second)
    for change in found:
        tell(change.sentence())
    worse = any(change.word == "worse" for change in found)
    return LEAKS if worse and fail_on_worse else 0
