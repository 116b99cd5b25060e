"""The brief of an audit: everything that is released, and how long looking for leaks may take.

One TOML file. `[data]` and `[victim]` say once what the records and the model are; which sections
follow says what leaves the house:

    [victim]        weights, trained this way (also where no other section is given)
    [checkpoint]    a file of weights, attacked as it is; or a LoRA adapter or a difference, and its base
    [update]        what clients send in federated learning: a file, or batches that are made up here; or
                    an adapter or a difference of few steps, and its base
    [split]         features that the client of a split network sends to a server
    [fitted]        a fitted linear model of scikit-learn's, in a .skops file
    [versions]      two versions of a model, before and after a person was erased or added
    [...]           a kind of release that another installed package brings (`core.plugins`)

A section need not repeat the seed, the threads, the records and the model: what it leaves open is the
brief's own when the audit is run (`Brief.resolved`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from exhume.core.errors import ExhumeError
from exhume.core.plugins import kind_plugin
from exhume.settings.releases import (
    CheckpointSettings,
    FittedSettings,
    ReleaseSettings,
    SplitSettings,
    UpdateSettings,
    VersionsSettings,
)
from exhume.settings.schema import filled, in_short, made_of, settings_of, toml_at, toml_of
from exhume.settings.sections import BudgetSettings, DataSettings, Settings

S = TypeVar("S", bound=ReleaseSettings)
RELEASES: dict[str, type[ReleaseSettings]] = {
    "checkpoint": CheckpointSettings,
    "update": UpdateSettings,
    "split": SplitSettings,
    "fitted": FittedSettings,
    "versions": VersionsSettings,
}  # sections of their own; the others are those of `Settings`
_DIGESTS = "digests"  # in a run folder's config.toml, of what the brief names; not a setting
OUR_NAMES = frozenset(
    {*RELEASES, *(f.name for f in fields(Settings)), "weights", "budget", _DIGESTS}
)
"""No kind of another package can be called so: these are kinds or sections of a brief."""


@runtime_checkable
class HasSection(Protocol):
    """A kind of another package, as far as settings go."""

    @property
    def section(self) -> type[ReleaseSettings] | None: ...


def release_section(name: str) -> type[ReleaseSettings] | None:
    """The section of this name, ours or of another package's kind; None: no kind is called so."""
    if name in RELEASES:
        return RELEASES[name]
    plugin = kind_plugin(name)
    if plugin is None:
        return None
    kind = plugin.load()
    section = kind.section if isinstance(kind, HasSection) else None
    if not (isinstance(section, type) and issubclass(section, ReleaseSettings)):
        raise plugin.broken("a Kind is needed whose section is a class of ReleaseSettings")
    return section


@dataclass(frozen=True)
class Brief:
    settings: Settings = field(default_factory=Settings)
    weights: bool = True  # weights trained as `settings.victim` says are released
    checkpoint: CheckpointSettings | None = None
    update: UpdateSettings | None = None
    split: SplitSettings | None = None
    fitted: FittedSettings | None = None
    versions: VersionsSettings | None = None
    budget: BudgetSettings = BudgetSettings()
    others: Mapping[str, ReleaseSettings] = field(default_factory=dict)  # of other packages' kinds

    @staticmethod
    def from_toml(path: Path) -> Brief:
        return Brief.from_mapping(toml_at(path), where=str(path))

    @staticmethod
    def from_mapping(content: Mapping[str, Any], *, where: str = "settings") -> Brief:
        """Sections as above. What is said in [data] and [victim] need not be said again."""
        rest = {name: value for name, value in content.items() if name != _DIGESTS}
        budget, known = rest.pop("budget", {}), {f.name for f in fields(Settings)}
        others = [name for name in sorted(rest, key=_place) if name not in known]
        kinds = {n: kind for n in others if (kind := release_section(n)) is not None}
        given = {name: rest.pop(name) for name in kinds}
        if isinstance(budget, str):
            budget = {"time": budget}
        for name, section in {"budget": budget, **given}.items():
            if not isinstance(section, Mapping):
                raise ExhumeError(
                    f"{where}: {name}: a section is needed here, got {in_short(section)}"
                )
        settings = Settings.from_mapping(rest, where=where)
        sections = {}
        for name, said in given.items():
            section = _with_file(said) if name == "checkpoint" else said
            usual: dict[str, Any] = {}
            if name == "checkpoint":
                usual = {} if "data" in rest else {"trained_on": ""}
            elif name == "update" and not _FILES & set(section):
                usual = {"made": 4, "batch_size": 8}  # without files, updates are made here
            sections[name] = made_of(kinds[name], section, f"{where}: {name}", **usual)
        brief = Brief(
            settings,
            weights=("victim" in rest or not given) and settings.victim.released,
            budget=filled(BudgetSettings(), budget, f"{where}: budget"),
        )
        return brief.with_releases(sections)

    @staticmethod
    def of(release: ReleaseSettings, settings: Settings | None = None) -> Brief:
        """The brief of one release; without settings it has no records but those it names itself."""
        name = next(n for n, kind in RELEASES.items() if isinstance(release, kind))
        sections: dict[str, Any] = {name: release}
        return Brief(settings or Settings(data=DataSettings("")), weights=False, **sections)

    def releases(self) -> dict[str, ReleaseSettings]:
        """The sections that say what is released, besides trained weights."""
        ours = {name: getattr(self, name) for name in RELEASES}
        return {n: section for n, section in ours.items() if section is not None} | {**self.others}

    def section(self, kind: type[S]) -> S | None:
        """The section of this class, of a kind that another package brings."""
        return next((one for one in self.others.values() if isinstance(one, kind)), None)

    def with_releases(self, sections: Mapping[str, Any]) -> Brief:
        """A copy with these sections by name in the place of its own."""
        ours = {name: section for name, section in sections.items() if name in RELEASES}
        others = {name: section for name, section in sections.items() if name not in RELEASES}
        return replace(self, others={**self.others, **others}, **ours)

    def with_settings(self, settings: Settings) -> Brief:
        return replace(self, settings=settings)

    def with_budget(self, **values: Any) -> Brief:
        """A copy with those of the budget's values replaced that are not None."""
        given = {name: value for name, value in values.items() if value is not None}
        return replace(self, budget=replace(self.budget, **given))

    def with_options(
        self, *, seed: int | None = None, threads: int | None = None, data: str | None = None
    ) -> Brief:
        """A copy in which the values that are not None hold for every release, whatever it says itself."""
        said = {"seed": seed, "threads": threads, "data": data}
        said = {name: value for name, value in said.items() if value is not None}
        settings = self.settings.with_values("data", source=data)
        settings = settings.with_values("machine", threads=threads)
        if seed is not None:
            settings = settings.with_seed(seed)
        sections = {
            name: _with_shared(section, said, also=True)
            for name, section in self.releases().items()
        }
        return replace(self, settings=settings).with_releases(sections)

    def resolved(self) -> Brief:
        """The brief in which every section says its seed, threads, records and model itself."""
        settings = self.settings
        network = settings.victim.network
        shared = {
            "seed": settings.seed,
            "threads": settings.machine.threads,
            "data": settings.data.source,
            "model": network if ":" in network else "",
            "device": settings.machine.device,
        }
        device = settings.machine.device
        others = [f"[{name}]" for name in self.releases() if name != "split"]
        if others and device != "cpu":
            raise ExhumeError(
                f"device: {device!r} is for [victim] and [split] alone so far, not for {', '.join(others)}"
            )
        if self.split is not None and self.split.model is None and not shared["model"]:
            raise ExhumeError('split: no network is named; write model = "net.py:make" in [split]')
        return self.with_releases(
            {name: _with_shared(section, shared) for name, section in self.releases().items()}
        )

    def toml(self, digests: Mapping[str, str] | None = None) -> str:
        """As a file that says the same. digests: of what it names, for a run folder."""
        content = asdict(self.settings)
        content["victim"]["released"] = self.weights
        content |= {name: asdict(section) for name, section in self.releases().items()}
        if self.budget != BudgetSettings():
            content["budget"] = asdict(self.budget)
        if digests:
            content[_DIGESTS] = dict(digests)
        return toml_of(content)

    def folder(self) -> Path:
        """A folder named by the brief, so that the same command finds its own earlier work."""
        alone = [section.label or name for name, section in self.releases().items()]
        named = len(alone) == 1 and not self.weights
        name = alone[0] if named else Path(self.settings.data.source).stem or "data"
        digest = hashlib.sha256(self.toml().encode()).hexdigest()[:8]
        return Path("runs") / f"{name}-{digest}"


def _place(name: str) -> tuple[int, str]:
    """Sections in the order of `RELEASES`, then those of other packages by name."""
    return (list(RELEASES).index(name) if name in RELEASES else len(RELEASES), name)


_FILES = {"update", "before", "after", "adapter", "delta"}


def _with_shared(section: Any, shared: Mapping[str, Any], *, also: bool = False) -> Any:
    """A section with the shared values that it leaves open. also: those that it does not leave open."""
    values = {
        name: shared[known.shared]
        for name, (_, known) in settings_of(section).items()
        if known.shared in shared and (also or getattr(section, name) is None)
    }
    return replace(section, **values) if values else section


def _with_file(section: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's file may be called just that."""
    said = dict(section)
    if "file" in said:
        said["checkpoint"] = said.pop("file")
    if not (said.get("checkpoint") or said.get("adapter") or said.get("delta")):
        raise ExhumeError('checkpoint: no file is named; write file = "model.safetensors"')
    return said
