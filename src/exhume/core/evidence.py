"""What a verdict rests on: what an attack needs, its line-up, controls that show it works, their reach."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal


@dataclass(frozen=True)
class Condition:
    """Something that an attack needs in order to work on a release, and whether it is so."""

    needs: str  # a sentence that should be true
    found: str  # what was measured, and what is asked for
    holds: bool
    why: str = ""  # completes "not audited: …" where it does not hold
    release: str = ""


@dataclass(frozen=True)
class LineupRow:
    """How often an attack's answers point at the private record among strangers of its class."""

    identified: int
    targets: int
    strangers: int  # of every target, at least
    chance: float  # share identified by chance, on average
    p: float
    needed: int  # identified targets that are enough, for all tests of the audit; more than targets: none is
    detectable: float  # share of targets; a smaller one may go unnoticed
    left_out: int = 0  # targets with too few strangers, or with copies
    among: str = "strangers of the same class"
    adjusted: float = 1.0  # p, for all tests of the audit
    tail: tuple[float, ...] = ()  # p of 0, 1, 2, … identified, up to the smallest that there is
    second: float | None = None  # p of a second draw of strangers; None: the first shows nothing
    surest: Literal["", "releases", "answers"] = ""  # only the tenth that the attacker is surest of
    copies: int = 0  # of those left out: near-duplicates of other records
    held: int = 0  # of those left out: what the adversary practically holds

    @property
    def share(self) -> float:
        return self.identified / self.targets if self.targets else 0.0


@dataclass(frozen=True)
class Premise:
    """Whether the release follows from the true records by the training that is assumed."""

    statistic: str  # what is compared, in words; one for each kind of release
    value: float  # with the true records
    limit: float  # up to here it holds
    holds: bool
    stranger: float | None = (
        None  # with a record replaced by a stranger; up to the limit: uninformative
    )
    sentence: str = ""
    why: str = ""  # completes "not audited: …" where it does not hold

    @property
    def said(self) -> str:
        """With what it is worth."""
        if not self.holds or self.stranger is None or self.stranger > self.limit:
            return self.sentence
        return f"{self.sentence} It passes with a stranger in a record's place, too, so that it says little."


@dataclass(frozen=True)
class Epsilon:
    """The least privacy parameter that the line-up leaves possible, and the most it could have shown."""

    at_least: float  # one-sided 95% lower limit
    most: float  # this line-up cannot show more
    delta: float = 0.0
    mu: float | None = None  # at least, for Gaussian privacy
    mu_most: float | None = None
    estimate: bool = False  # targets share strangers or randomness of training: no limit
    sentence: str = ""


@dataclass(frozen=True)
class GroupRow:
    """A group of targets, described: its interval is Bonferroni's over all groups."""

    name: str
    identified: int
    targets: int
    low: float
    high: float
    stands_out: bool = False  # its lower limit exceeds the share of all


@dataclass(frozen=True)
class Extent:
    """How far a verdict goes, in numbers. None where it does not apply or was not looked at."""

    strength: Literal["reconstructed", "recognised"] | None = None
    expected_by_chance: float | None = None  # records that would be identified
    distance: int | None = None  # times that a record would have to count before the attack sees it
    epsilon: Epsilon | None = None
    groups: tuple[GroupRow, ...] | None = None
    premise: Premise | None = None

    def with_missing(self, other: Extent) -> Extent:
        """Fields that are None here as they are in the other."""
        missing = {
            f.name: getattr(other, f.name) for f in fields(self) if getattr(self, f.name) is None
        }
        return replace(self, **missing)


@dataclass(frozen=True)
class ControlRow:
    """One attack on an easier version of the system: a rung."""

    release: str
    attack: str  # its id
    respect: str  # in which the version differs
    value: str
    words: str
    identified: int = 0
    targets: int = 0
    p: float = 1.0
    works: bool = False
    note: str = ""  # why it could not be run


@dataclass(frozen=True)
class Reach:
    """How far from an easy version towards the user's system an attack works."""

    release: str
    attack: str
    respect: str
    nearest: str  # working rung that earns the word, in words; empty: there is none
    low: float  # 97.5% lower limit of its success where it works best
    sentence: str
    best: str = ""  # where that is, in words
    distance: int | None = None  # the fewest times that a record must count for the attack to work
