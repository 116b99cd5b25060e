"""What other packages add: kinds of release and rows of attacks, by entry points.

    [project.entry-points."exhume.kinds"]       embeddings = "their_package:EMBEDDINGS"
    [project.entry-points."exhume.attacks"]     update = "their_package:rows_on_updates"

The name of an entry point is the kind of release that it is about, so that nothing of a package is imported
before something of that kind is audited.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from exhume.core.errors import ExhumeError

KINDS = "exhume.kinds"
ATTACKS = "exhume.attacks"


@dataclass(frozen=True)
class Plugin:
    """One entry point of a package."""

    point: EntryPoint

    @property
    def name(self) -> str:
        return self.point.name

    @property
    def package(self) -> str:
        """Name and version."""
        home = self.point.dist
        return f"{home.name} {home.version}" if home is not None else self.point.module

    def load(self) -> object:
        """What the entry point stands for; whatever the package raises becomes a sentence."""
        try:
            return self.point.load()
        except (Exception, SystemExit) as error:
            reason = (str(error).splitlines() or ["no reason given"])[0][:200]
            raise self.broken(f"{type(error).__name__}: {reason}") from error

    def broken(self, why: str) -> ExhumeError:
        """The error for a package that does not keep to the rules."""
        return ExhumeError(
            f"package {self.package}: {self.point.group}: {self.name} = {self.point.value}: {why}"
        )


def plugins(group: str, name: str | None = None) -> list[Plugin]:
    """The entry points of a group, or those of one name, in the order of their packages."""
    every = entry_points(group=group) if name is None else entry_points(group=group, name=name)
    return sorted((Plugin(point) for point in every), key=lambda one: (one.package, one.name))


def kind_plugin(name: str) -> Plugin | None:
    """The one package that brings this kind of release; None: there is none."""
    several = plugins(KINDS, name)
    if len(several) > 1:
        packages = " and ".join(one.package for one in several)
        raise ExhumeError(f"{name}: {packages} both bring this kind of release; remove one of them")
    return several[0] if several else None


def refuse_kinds_called(taken: Collection[str]) -> None:
    """Refuse a package whose kind has one of these names, which are ours: nothing would ask it."""
    for plugin in plugins(KINDS):
        if plugin.name in taken:
            raise plugin.broken(
                f"{plugin.name!r} is a name of exhume's own; its kind needs another one"
            )


def refuse_attacks_on_misspelt(kinds: Collection[str]) -> None:
    """Refuse rows for a kind whose name is nearly one of `kinds`, or of another package's.

    Rows for a kind that is nothing like these wait for the package that brings it.
    """
    known = sorted({*kinds, *(plugin.name for plugin in plugins(KINDS))})
    for plugin in plugins(ATTACKS):
        close = difflib.get_close_matches(plugin.name, known, 1)
        if plugin.name not in known and close:
            raise plugin.broken(f"no kind is called {plugin.name!r}; did you mean {close[0]!r}?")
