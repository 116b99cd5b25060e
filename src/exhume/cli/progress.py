"""How long work shows that it goes on: bars on a terminal, a line every ten seconds elsewhere. On stderr."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from exhume.cli.frame import echo_err
from exhume.core.errors import printable
from exhume.core.notation import about, duration_of

if TYPE_CHECKING:
    from rich.console import Console

    from exhume.core.contract import Progress


EVERY = 10.0  # seconds between two lines of the same stage
_PAUSE = 0.5  # seconds without a new piece that end what an earlier run had done
_TAKEN_UP = 3.0  # and after so many it has ended in any case


@contextmanager
def progress_shown() -> Iterator[Progress]:
    """A callback for long work: it draws bars with an ETA, or says lines where there is no terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        yield from _bars(console)
        return
    lines, done = ProgressLines(echo_err), threading.Event()
    ticking = threading.Thread(target=_tick, args=(lines, done), daemon=True)
    ticking.start()
    try:
        yield lines
    finally:
        done.set()


def _tick(lines: ProgressLines, done: threading.Event) -> None:
    """Work that says nothing for long is still at work: the last line is said again with the time."""
    while not done.wait(EVERY / 4):
        lines.tick()


@dataclass
class _Stage:
    name: str
    began: float
    first: int  # pieces that were there already: an earlier run's come all at once
    since: float  # when the pieces behind them began
    done: int
    total: int
    said: float  # when its last line was
    moved: float  # when the last piece was done

    @staticmethod
    def begun(name: str, done: int, total: int, now: float) -> _Stage:
        return _Stage(name, now, done, now, done, total, now, now)

    def move(self, done: int, total: int, now: float) -> None:
        """Count finished pieces; those that come at once in the beginning say nothing about the pace."""
        all_there = self.first == self.done
        if all_there and now - self.moved < _PAUSE and now - self.began < _TAKEN_UP:
            self.first, self.since = done, now
        if done > self.done:
            self.moved = now
        self.done, self.total = done, total


@dataclass
class ProgressLines:
    """A line when a stage begins, one every ten seconds while it lasts, one when it ends.

    A stage of a single piece begins silently, and is spoken of only if it takes its time.
    """

    echo: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _stage: _Stage | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, stage: str, done: int, total: int) -> None:
        with self._lock:
            now, known = self.clock(), self._stage
            if known is None or known.name != stage:
                known = self._stage = _Stage.begun(stage, done, total, now)
                if total > 1 and done < total:
                    self.echo(f"{stage}: {done:,} of {total:,}")
                return
            known.move(done, total, now)
            if done >= total:
                self._ended(known, now)
            elif now - known.said >= EVERY:
                self._going(known, now)

    def tick(self) -> None:
        """Say where the stage is, if it has been silent for long."""
        with self._lock:
            now, known = self.clock(), self._stage
            if known is not None and known.done < known.total and now - known.said >= EVERY:
                self._going(known, now)

    def _ended(self, stage: _Stage, now: float) -> None:
        self._stage = None
        if stage.total > 1 or now - stage.began >= EVERY:
            self.echo(
                f"{stage.name}: {stage.done:,} of {stage.total:,} in {_took(now - stage.began)}"
            )

    def _going(self, stage: _Stage, now: float) -> None:
        stage.said = now
        made, took = stage.done - stage.first, now - stage.began
        left = f"{about(_left(stage, now))} left" if made else "at work"
        self.echo(f"{stage.name}: {stage.done:,} of {stage.total:,} after {_took(took)}, {left}")


def _left(stage: _Stage, now: float) -> float:
    """By the pace up to the last finished piece: waiting for the next one does not make it longer."""
    each = (stage.moved - stage.since) / (stage.done - stage.first)
    rest = (stage.total - stage.done) * each
    return max(rest - (now - stage.moved), rest / 10)


def _took(seconds: float) -> str:
    return duration_of(seconds) if seconds >= 1 else "under 1 s"


def _bars(console: Console) -> Iterator[Progress]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:32}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, tuple[TaskID, _Stage]] = {}
    with Progress(*columns, console=console) as bars:

        def show(stage: str, done: int, total: int) -> None:
            now = time.monotonic()
            if stage not in tasks:
                task = bars.add_task(printable(stage), total=total)
                tasks[stage] = task, _Stage.begun(stage, done, total, now)
            task, known = tasks[stage]
            known.move(done, total, now)
            if known.first == done < total:  # the bar's own clock begins behind what was there
                bars.reset(task, completed=done, total=total)
            bars.update(task, completed=done, total=total)

        yield show
