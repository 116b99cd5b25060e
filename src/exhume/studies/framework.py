"""Studies as experiments: what a study is, the run that its function is handed, and how it is run.

    STUDY = Study("gradient-deep", _SCALES, _run)

A study states sizes (a frozen dataclass for each scale) and arms; its title, its claims and how it
deviates from its paper stand in `claims.toml` of its family. All else is done here: the real setting goes
into `config.toml`, threads are pinned and taken up again, records are loaded (or the user's own copy of
them), finished arms are kept under everything they depend on, and arms are mapped over cores or Ray.
"""

from __future__ import annotations

import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar

import torch
from torch import Tensor

from exhume import readers
from exhume.auditing.plan import Stage
from exhume.choices import device_named, threads_for
from exhume.core.contract import ExhumeError, Key, Progress, Records, Shard, silent
from exhume.core.results import Chart, Claim, Findings, StudyResult
from exhume.report.folder import RunFolder, environment
from exhume.report.page import draw
from exhume.settings.schema import toml_at, toml_of
from exhume.store.scale import Cores, Here, run_jobs, where_now
from exhume.store.shards import FolderStore, address, describe
from exhume.store.workers import pinned
from exhume.studies.claims import Claims, Words, charts_of, claims_of, said_of

Scale = Literal["smoke", "cpu", "long", "paper"]
"""Seconds; minutes to an hour on two cores; hours on two cores, where a study has it; the paper's sizes."""

S = TypeVar("S")
J = TypeVar("J")


@dataclass(frozen=True)
class Outcome:
    """What a study found: numbers, what its claims rest on besides, and what the page shows."""

    metrics: dict[str, float]
    attacks: list[Findings] = field(default_factory=list)  # that the page shows
    classes: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    said: Mapping[str, object] = field(
        default_factory=dict
    )  # what `claims.toml` asks for besides metrics
    deviations: list[str] = field(default_factory=list)  # beside those of `claims.toml`
    claims: Claims = field(default_factory=dict)  # put together by `outcome_of`


@dataclass(frozen=True)
class Study(Generic[S]):
    """One figure or table of a paper, rerun."""

    name: str
    scales: Mapping[Scale, S]  # see `Scale`
    run: Callable[[Run[S]], Outcome]
    spreads: bool = False  # falls into long jobs, so that the command uses a process for each core
    on_device: bool = False  # its training follows --device
    threads: Mapping[Scale, int] = field(default_factory=dict)  # where not one for each core
    stages: Callable[[S], Sequence[Stage]] | None = None  # what it takes; None: nobody has counted

    @property
    def title(self) -> str:
        return str(said_of(self.name).get("title", self.name))

    @property
    def paper(self) -> str:
        return str(said_of(self.name).get("paper", "ours"))


@dataclass(frozen=True)
class RunOptions:
    """What the user asks for besides the scale."""

    seed: int = 0
    data: str = ""  # another copy of the set that the study reads; "": the set by its name
    device: str = "cpu"
    resume_anyway: bool = False  # go on with the work of another version


class Working(TypedDict):
    """Arguments that all long work has; see `Run.working`."""

    key: Key
    store: FolderStore
    progress: Progress


@dataclass(frozen=True, eq=False)
class Run(Generic[S]):
    """One run of a study: its setting, its randomness, its records, its folder.

    It can be sent to another process; there it loads its records again and is silent.
    """

    study: Study[S]
    scale: Scale
    asked: RunOptions
    folder: RunFolder
    threads: int
    progress: Progress = silent
    loaded: dict[str, Records] = field(default_factory=dict, repr=False)

    @property
    def setting(self) -> S:
        return self.study.scales[self.scale]

    @property
    def seed(self) -> int:
        return self.asked.seed

    @property
    def key(self) -> Key:
        return Key.from_seed(self.seed)

    @property
    def device(self) -> torch.device:
        return device_named(self.asked.device)

    @property
    def store(self) -> FolderStore:
        return self.folder.store()

    def part(self, label: str) -> Run[S]:
        """This run; the stages of its progress are marked with the piece they belong to."""

        def marked(stage: str, done: int, total: int) -> None:
            self.progress(f"{stage} ({label})", done, total)

        return replace(self, progress=marked)

    def working(self, key: Key) -> Working:
        """Arguments of long work: its key, the store that keeps its pieces, where its progress goes."""
        return {"key": key, "store": self.store, "progress": self.progress}

    def source(self, name: str) -> str:
        """What to read for a named set: the user's copy, or the set itself."""
        return self.asked.data or name

    def records(self, name: str, size: int = 0) -> Records:
        """The records of a named set, or of the user's copy of it, which must have its shape.

        size: a user's images are cropped and resized to it instead, whatever their shape; 0: they are not.
        """
        if name not in self.loaded:
            own = size if self.asked.data else 0
            found = readers.load(self.source(name), size=own or None, progress=self.progress)
            shape = {known.name: known.shape for known in readers.catalogue()}.get(
                name, found.shape
            )
            if self.asked.data and not own and found.shape != shape:
                raise ExhumeError(
                    f"--data: {self.asked.data} has records of shape {found.shape}; a copy of {name}, "
                    f"which {self.study.name} reads, has {shape}"
                )
            self.loaded[name] = found
        return self.loaded[name]

    def placed(self, name: str, size: int = 0) -> Records:
        """Records on the device that was asked for: what is trained on them goes there, too."""
        return self.records(name, size).to(device_named(self.asked.device))

    # Arms: pieces of work whose numbers are kept

    def address(self, arm: str, setting: object) -> str:
        """Where an arm is kept: its name, with all that its numbers depend on."""
        chosen = [setting, self.asked.data, self.asked.device]
        return address(f"study {self.study.name}", chosen, (arm,), self.key, 0)

    def arms(
        self, stage: str, make: Callable[[Run[S], J], Mapping[str, float]], jobs: Mapping[str, J]
    ) -> dict[str, dict[str, float]]:
        """The numbers of several arms, by name. make: a function of a module, so that it can be sent."""
        found = self.tensors(stage, make, jobs)
        return {
            name: {number: float(value) for number, value in kept.items()}
            for name, kept in found.items()
        }

    def tensors(
        self,
        stage: str,
        make: Callable[[Run[S], J], Mapping[str, float] | Mapping[str, Tensor]],
        jobs: Mapping[str, J],
        setting: Callable[[J], object] | None = None,
    ) -> dict[str, dict[str, Tensor]]:
        """Arms that are tensors: what the folder lacks is made here, or where jobs run.

        setting: what the numbers of one job depend on, where that is less than the whole setting.
        """
        places = {
            name: self.address(name, setting(job) if setting else self.setting)
            for name, job in jobs.items()
        }
        found = {name: self.store.load(place) for name, place in places.items()}
        lacking = [None if found[name] is not None else job for name, job in jobs.items()]
        self.progress(stage, 0, len(jobs))
        names, made = list(jobs), run_jobs(_make, lacking, shared=(make, self.to_send()))
        for done, (index, values) in enumerate(made, 1):
            if values is not None:
                self.store.save(places[names[index]], values)
                found[names[index]] = Shard(values)
            self.progress(stage, done, len(jobs))
        return {name: kept for name, kept in found.items() if kept is not None}

    def to_send(self) -> Run[S]:
        """This run as other processes get it: silent, its records not yet loaded."""
        here = isinstance(where_now(), Here | Cores)  # of arms nothing is known beforehand
        return self if here else replace(self, progress=silent, loaded={})


def outcome_of(run: Run[S]) -> Outcome:
    """Run a study; its claims and deviations are what `claims.toml` says, with its numbers."""
    study, found = run.study, run.study.run(run)
    words = Words.of(study.name, run.setting, {**found.metrics, **found.said})
    deviations = [words.text(row) for row in said_of(study.name).get("deviations", [])]
    return replace(
        found,
        claims=claims_of(study.name, words),
        deviations=[*deviations, *found.deviations],
        charts=[*charts_of(study.name, words), *found.charts],
    )


def _make(
    shared: tuple[Callable[[Run[S], J], Mapping[str, float] | Mapping[str, Tensor]], Run[S]], job: J
) -> dict[str, Tensor]:
    make, run = shared
    return _as_tensors(make(run, job))


def _as_tensors(values: Mapping[str, float] | Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: (
            value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
        ).cpu()
        for name, value in values.items()
    }


def run_study(
    study: Study[S],
    scale: Scale,
    out: Path,
    asked: RunOptions,
    *,
    progress: Progress = silent,
    keep: Path | None = None,
) -> StudyResult:
    """Run a study, write its result and report, return the result. keep: a second place for the result."""
    _check(study, scale, asked)
    started, setting = time.perf_counter(), plain(study.scales[scale])
    with RunFolder.claimed(out, resume_anyway=asked.resume_anyway, progress=progress) as folder:
        said = {name: getattr(asked, name) for name in ("seed", "data", "device")}
        asking = {"study": study.name, "scale": scale, **said, "setting": setting}
        threads = taken_up(folder, asking, threads_for(study.threads.get(scale, 0)))
        with pinned(threads):
            outcome = outcome_of(Run(study, scale, asked, folder, threads, progress))
            found_on = environment() | commit()
        result = StudyResult(
            study=study.name,
            scale=scale,
            seed=asked.seed,
            title=study.title,
            claims=tuple(Claim(name, *stated) for name, stated in outcome.claims.items()),
            metrics=outcome.metrics,
            charts=tuple(outcome.charts),
            attacks=tuple(folder.keep(one).section for one in outcome.attacks),
            classes=tuple(outcome.classes),
            deviations=tuple(outcome.deviations),
            resumed_from=folder.resumed_from,
            wall_seconds=time.perf_counter() - started,
            environment=found_on,
            setting=setting,
        )
        folder.write_json("environment.json", found_on)
        folder.write_json("result.json", result.to_json())
        draw(folder.path)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        RunFolder(keep).write_json(f"{study.name}.json", result.to_json())
    return result


def commit() -> dict[str, str]:
    """The commit of the checkout that this code runs from, and "-dirty" if files differ; {}: of none."""
    root, git = Path(__file__).parents[3], shutil.which("git")
    if git is None or not (root / ".git").exists():
        return {}
    asking = [git, "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    asked = subprocess.run(asking, capture_output=True, text=True, check=False)  # noqa: S603
    return {"commit": asked.stdout.strip()} if asked.returncode == 0 else {}


def _check(study: Study[S], scale: Scale, asked: RunOptions) -> None:
    """Refuse what this study cannot honour before anything is written."""
    if scale not in study.scales:
        raise ExhumeError(f"--scale: {study.name} has {', '.join(study.scales)}, {scale!r} given")
    if device_named(asked.device).type != "cpu" and not study.on_device:
        raise ExhumeError(f"--device: {study.name} runs on the cpu only, {asked.device!r} given")
    if not asked.data:
        return
    read = list(dict.fromkeys(sources_in(study.scales[scale])))
    if not read:
        raise ExhumeError(
            f"--data: {study.name} makes its own records at scale {scale}; no copy of a set can serve"
        )
    if len(read) > 1:
        raise ExhumeError(
            f"--data: {study.name} reads {', '.join(read)} at scale {scale}; one copy cannot serve for all"
        )


def sources_in(setting: object) -> Iterator[str]:
    """Named sets that a setting asks for: every text called `source` in it."""
    if is_dataclass(setting) and not isinstance(setting, type):
        for each in fields(setting):
            value = getattr(setting, each.name)
            if each.name == "source" and isinstance(value, str):
                yield from [value] if value else []
            else:
                yield from sources_in(value)
    elif isinstance(setting, Mapping):
        for value in setting.values():
            yield from sources_in(value)
    elif isinstance(setting, tuple | list):
        for value in setting:
            yield from sources_in(value)


# A study's `config.toml`: what was asked for and the real setting; another run than this one is refused.


def taken_up(folder: RunFolder, asking: Mapping[str, Any], threads: int) -> int:
    """Write the setting down; return the threads: those of the same run in this folder, or as given.

    Threads decide the bits, so a resumed study keeps them whatever machine it goes on with.
    """
    text = to_toml({**asking, "machine": {"threads": threads}})
    if folder.config.exists():
        wanted, earlier = tomllib.loads(text), toml_at(folder.config)
        machine = earlier.get("machine", {})
        if {**wanted, "machine": machine} == earlier:
            return int(machine["threads"])
        if folder.has_work():
            raise ExhumeError(
                f"{folder.path} holds a run with other settings (see its config.toml): "
                "choose another --out, or delete it"
            )
    folder.write_config(text)
    return threads


def plain(setting: object) -> Any:
    """A setting as plain data. An attack or a network says what it is; a group of sizes need not."""
    return _unnamed(describe(setting))


def _unnamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_unnamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    name = str(value.get("type", ""))
    group = name.startswith("_") or name.endswith(("Setting", "Settings", "Sizes"))
    return {n: _unnamed(v) for n, v in value.items() if not (group and n == "type")}


def to_toml(content: Mapping[str, Any]) -> str:
    """Values of any depth as TOML. None is written "none"."""
    return toml_of(_told(content))


def _told(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _told(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    return "none" if value is None else value
