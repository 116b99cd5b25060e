"""`exhume init` writes a brief by asking; `exhume compare` puts two runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from click import Choice

from exhume.cli.frame import LEAKS, app, tell, with_exit_codes
from exhume.cli.known import refuse_unfinished
from exhume.core.errors import ExhumeError
from exhume.settings.brief_file import HOLDS, KINDS, brief_file

T = TypeVar("T")
_OPTIMISERS = {
    "gd": "gradient descent: every step sees all records",
    "sgd": "stochastic gradient descent",
    "adam": "Adam",
}


@app.command()
@with_exit_codes
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("audit.toml"),
    release: Annotated[
        str | None,
        typer.Option(help="What you release; asked for if not given.", click_type=Choice(KINDS)),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Your records: a named set or a path.")] = None,
    model: Annotated[
        str | None, typer.Option(help="mlp, cnn, or your own: file.py:factory.")
    ] = None,
    optimiser: Annotated[
        str | None, typer.Option(help="Optimiser of your training.", click_type=Choice(_OPTIMISERS))
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
    release = release or _chosen("What do you release?", KINDS)
    records = "Your records (a named set, a folder, an .npz file, texts in a .txt file)"
    data = _asked(data, records, "mnist")
    filed = release in ("checkpoint", "fitted")
    if not filed:
        known = "file.py:factory" if release == "features" else "mlp"
        model = _asked(model, "Your model (mlp, cnn, or file.py:factory)", known)
    training = _training(optimiser, momentum, batch) if release == "training" else {}
    if training:
        training["rate"] = _asked(rate, "Its learning rate", 0.1)
        training["steps"] = _asked(steps, "How many steps it takes", 100)
    if holds is None and checkpoint is None and release in ("checkpoint", "updates"):
        holds = _chosen("What is in the file, or does a client send?", HOLDS)
    tuned = holds in ("adapter", "delta")
    if filed or tuned:
        known = f"{holds if tuned else 'model'}.{'skops' if release == 'fitted' else 'safetensors'}"
        checkpoint = _asked(checkpoint, "The file", known)
    if tuned:
        base = _asked(base, "The base it is added to", "base.safetensors")
    text = brief_file(
        release,
        data=data,
        model=model or "mlp",
        checkpoint=checkpoint or "",
        budget=_asked(budget, "How long may an audit take", "10m"),
        holds=holds or "whole",
        base=base or "",
        training=training,
    )
    write_atomically(path, text.encode())
    tell(f"written: {path}; read it, change it, then: exhume audit {path}")


def _training(
    optimiser: str | None, momentum: float | None, batch: int | None
) -> dict[str, str | float]:
    """How the model is trained; a step of gradient descent sees all records, Adam has no momentum."""
    by = optimiser or _chosen("How is it trained?", _OPTIMISERS)
    said: dict[str, str | float] = {"optimiser": by}
    if by != "gd":
        said["batch"] = _asked(batch, "Records that a step sees", 32)
    if by != "adam":
        said["momentum"] = _asked(momentum, "Its momentum", 0.0)
    return said


def _asked(given: T | None, what: str, default: T) -> T:
    """As given, or the answer to a question."""
    answer: T = typer.prompt(what, default=default) if given is None else given
    return answer


def _chosen(question: str, known: Mapping[str, str]) -> str:
    """One of a few, asked for until the answer is one of them."""
    tell("\n".join([question, *(f"  {name:11} {words}" for name, words in known.items())]))
    while True:
        answer: str = typer.prompt(f"It is ({', '.join(known)})", default=next(iter(known))).strip()
        if answer in known:
            return answer
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
    for run in (first, second):
        refuse_unfinished(run)
    from exhume.report.gate import compare as changes

    found = changes(first, second)
    for change in found:
        tell(change.sentence())
    worse = any(change.word == "worse" for change in found)
    return LEAKS if worse and fail_on_worse else 0
