"""The brief of an audit: everything that is released, and how long looking for leaks may take.

One TOML file. `[data]` and `[victim]` say once what the records and the model are; which sections
follow says what leaves the house:

    [victim]        weights, trained this way (also where no other section is given)
    [checkpoint]    a file of weights, attacked as it is; or a LoRA adapter or a difference, and its base
    [update]        what clients send in federated learning: a file, or batches that are made up here; or
                    an adapter or a difference of few steps, and its base
    [split]         features that the client of a split network sends to a server
    [fitted]        a fitted linear model of scikit-learn's, in a .skops file
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from exhume.auditing.checkpoint.settings import WeightsSettings
from exhume.auditing.linear.release import FittedSettings
from exhume.auditing.plan import seconds_in
from exhume.auditing.resume import refuse_other
from exhume.auditing.split.settings import SplitSettings
from exhume.auditing.updates.settings import UpdateSettings
from exhume.contract import ExhumeError
from exhume.report.folder import RunFolder
from exhume.report.result import read_toml
from exhume.settings import Settings, filled, made_of, toml_at, toml_of

__all__ = ["Brief", "BudgetSettings"]


@dataclass(frozen=True)
class BudgetSettings:
    time: str = ""  # such as 10m: what all attacks together may take; nothing: no limit
    fixes: bool = False  # try what stops a leak, too

    def __post_init__(self) -> None:
        seconds_in(self.time)

    @property
    def seconds(self) -> float | None:
        return seconds_in(self.time)


_OWN = (
    "checkpoint",
    "update",
    "split",
    "fitted",
)  # sections of their own; the others are those of `Settings`


@dataclass(frozen=True)
class Brief:
    settings: Settings = field(default_factory=Settings)
    weights: bool = True  # weights trained as `settings.victim` says are released
    checkpoint: WeightsSettings | None = None
    update: UpdateSettings | None = None
    split: SplitSettings | None = None
    fitted: FittedSettings | None = None
    budget: BudgetSettings = BudgetSettings()

    @staticmethod
    def from_toml(path: Path) -> Brief:
        return Brief.from_mapping(toml_at(path), where=str(path))

    @staticmethod
    def from_mapping(content: Mapping[str, Any], *, where: str = "settings") -> Brief:
        """Sections as above. What is said in [data] and [victim] need not be said again."""
        rest = dict(content)
        budget, given = rest.pop("budget", {}), {n: rest.pop(n) for n in _OWN if n in rest}
        if isinstance(budget, str):
            budget = {"time": budget}
        for name, section in {"budget": budget, **given}.items():
            if not isinstance(section, Mapping):
                raise ExhumeError(f"{where}: {name}: a section is needed here, got {section!r}")
        settings = Settings.from_mapping(rest, where=where)
        checkpoint = update = None
        common: dict[str, Any] = {}
        if "checkpoint" in given:
            if "data" in rest:
                common["trained_on"] = settings.data.source
            said = _with_file(given["checkpoint"], "checkpoint")
            common["seed"] = settings.seed
            checkpoint = made_of(WeightsSettings, said, f"{where}: checkpoint", **common)
        if "update" in given:
            update = made_of(
                UpdateSettings,
                given["update"],
                f"{where}: update",
                **_common(given["update"], settings),
            )
        split = None
        if "split" in given:
            model = settings.victim.network if ":" in settings.victim.network else ""
            if not given["split"].get("model", model):
                raise ExhumeError(
                    f'{where}: split: no network is named; write model = "net.py:make" in [split]'
                )
            common = {"seed": settings.seed, "data": settings.data.source, "model": model}
            split = made_of(SplitSettings, given["split"], f"{where}: split", **common)
        fitted = None
        if "fitted" in given:
            fitted = made_of(FittedSettings, given["fitted"], f"{where}: fitted")
        return Brief(
            settings,
            weights=("victim" in rest or not given) and settings.victim.released,
            checkpoint=checkpoint,
            update=update,
            split=split,
            fitted=fitted,
            budget=filled(BudgetSettings(), budget, f"{where}: budget"),
        )

    def with_settings(self, settings: Settings) -> Brief:
        return replace(self, settings=settings)

    def with_budget(self, **values: Any) -> Brief:
        """A copy with those of the budget's values replaced that are not None."""
        given = {name: value for name, value in values.items() if value is not None}
        return replace(self, budget=replace(self.budget, **given))

    def toml(self) -> str:
        """As a file that says the same."""
        content = asdict(self.settings)
        content["victim"]["released"] = self.weights
        for name in _OWN:
            section = getattr(self, name)
            if section is not None:
                content[name] = asdict(section)
        if self.budget != BudgetSettings():
            content["budget"] = asdict(self.budget)
        return toml_of(content)

    def taken_up(self, folder: RunFolder) -> Brief:
        """The brief of the run already in this folder, if it is the same; else this one, written down."""
        if folder.config.exists():
            earlier = Brief.from_mapping(read_toml(folder.config), where=str(folder.config))
            mine = self.with_settings(
                replace(self.settings, machine=earlier.settings.machine)
            )  # the earlier chunk and threads decide the bits
            if mine.toml() == earlier.toml():
                return earlier
            refuse_other(folder)
        folder.write_config(self.toml())
        return self


def _common(section: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """What an [update] leaves to the other sections. Without files, updates are made here."""
    said: dict[str, Any] = {"seed": settings.seed, "data": settings.data.source}
    if ":" in settings.victim.network:
        said["model"] = settings.victim.network
    if not {"update", "before", "after", "adapter", "delta"} & set(section):
        said |= {"made": 4, "batch_size": 8}
    return said


def _with_file(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The file's name may be called just that."""
    said = dict(section)
    if "file" in said:
        said[name] = said.pop("file")
    if not (said.get(name) or said.get("adapter") or said.get("delta")):
        raise ExhumeError(f'{name}: no file is named; write file = "model.safetensors"')
    return said
