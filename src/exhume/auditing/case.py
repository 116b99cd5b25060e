"""What the engine attacks, as values: a case, the rows of attacks on it, and the kind of release that it is.

    Kind      one kind of release: its section in the brief, and how that is read
    Case      what is attacked, resolved once and frozen; a rung and a fix make another case of it
    Row       one attack in an audit: what it is, what it costs, what its success means
    Question  one release and what its adversary knows
    Answer    what a row's attack brought back for a question, and what the release itself proves of it

A case says what there is. The engine (`auditing.run`) plans, attacks, lines up, doubts, controls and judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import getattr_static
from types import FunctionType
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from torch import Tensor

from exhume.choices import threads_for
from exhume.core.contract import (
    Attack,
    Key,
    Knowledge,
    Outcome,
    Progress,
    Reconstruction,
    Records,
    Release,
    Store,
)
from exhume.core.errors import ExhumeError, nearest
from exhume.core.evidence import Condition, Premise
from exhume.core.plugins import ATTACKS, kind_plugin, plugins
from exhume.core.records import Column
from exhume.core.results import NOT_JUDGED, AttackSpec, Chart, Facts, Findings, Rate, Verdict
from exhume.readers import TextReading
from exhume.report.folder import RunFolder
from exhume.score.lineup import Alike, Redealt
from exhume.score.places import Places
from exhume.settings import Brief, ReleaseSettings

Load = Callable[[str, TextReading], Records]
"""(source, how to read it) to records; each set is read once, whoever asks for it."""

RUNG_TARGETS = 16  # records that a control is tried on, at most
MOST_COUNTED, LEAST_SHARE = 16, 10  # see `relevant`
Role = Literal["decides", "knows more", "beside"]


@dataclass(frozen=True)
class Inputs:
    """Where a release comes from, with every choice made."""

    data: str
    seed: int
    threads: int
    classes: tuple[str, ...] = ()
    uses: tuple[tuple[int, str], ...] = ()  # how many records, and what for
    columns: tuple[Column, ...] = ()  # of a table
    place: str = ""  # where its models are trained
    size: str = ""  # of the sets that they are trained on, and why
    takes: str = ""  # operations, memory and disk
    doubts: tuple[str, ...] = ()  # what speaks against what is said about it


@dataclass(frozen=True, eq=False)
class Row:
    """One attack in an audit, or one certificate beside those that ran."""

    spec: AttackSpec
    attack: Attack | None  # None: it is no attack on the case's questions (see `look`, `certify`)
    threat: str  # what the adversary sees and knows, in words
    seconds: float = 0.0  # estimated
    records: int = 0  # that it is tried on
    models: int = 0  # that are trained for it
    steps: int = 0  # of its search
    role: Role = "decides"
    knows: str = ""  # of a role that knows more: what, in words
    when: Literal["always", "if needed", "extra"] = "always"
    why_not: str = ""  # why it cannot be mounted
    exact: bool = False  # cheap and exact, so that it runs whatever the budget
    needs: str = ""  # the row whose work it goes on from
    stream: str = ""  # of its random numbers; empty: its id
    whole: bool = True  # records come back, and not parts of them
    certain: bool = True  # of parts: they need no further proof
    fewer: Callable[[float], Row | None] | None = None  # on fewer records, in so many seconds
    view: Callable[[Any, Store, Progress], Any] | None = None  # of the case, what it attacks
    look: Callable[[Any, Progress], list[Answer]] | None = None  # answers without an attack
    certify: Callable[[Any, Sequence[Findings], Store, Progress], Findings] | None = None

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def tested(self) -> bool:
        """Its line-up decides something: the verdict itself, or that a secret alone protects."""
        return self.role != "beside" and self.certify is None

    @property
    def tests(self) -> int:
        """One of all records; of a row that decides one more, of those that the attacker is surest of."""
        return self.tested + (self.tested and self.role == "decides")


@dataclass(frozen=True, eq=False)
class Question:
    """One release and what its adversary knows; what comes back are candidates for some of the records."""

    release: Release
    knowledge: Knowledge
    key: Key
    name: str = ""  # whose it is, where there are several
    source: Any = None  # what the kind knows about it
    address: str | None = None  # of its answer, where that is kept


@dataclass(frozen=True, eq=False)
class Proof:
    records: int  # reconstructions that are proved
    sentence: str = ""
    residual: float | None = None  # of the recomputed release, where it could be recomputed
    chosen: Tensor | None = None  # (k,) bool: those that explain the whole release; no other counts
    labels: Tensor | None = None  # (c,) of the chosen


@dataclass(frozen=True, eq=False)
class Answer:
    question: Question
    found: Reconstruction
    proof: Proof = Proof(0)

    @property
    def applies(self) -> bool:
        return self.found.status.outcome is not Outcome.NOT_APPLICABLE


@dataclass(frozen=True, eq=False)
class Seats:
    """A line-up: who stands in it, and what answers each release."""

    places: Places
    candidates: Sequence[Tensor]  # (k, *shape) for each release
    key: Key
    alike: Alike | None = None  # None: by what the records are
    batches: Sequence[Records] = ()  # behind each release, whose averages count for no record
    placebo: tuple[Places, Key, Alike | None] | None = None  # where the user chose the records
    wrong: str = ""  # that these are not its records
    confidence: Sequence[Tensor] = ()  # (k,) of the candidates
    groups: Sequence[str] = ()  # (t,) that the targets belong to
    redealt: Redealt | None = None  # in the candidates' place: they depend on who sits where
    game: Literal["", "independent", "shared"] = (
        ""  # Balle22's: is training random for each target by itself
    )


@dataclass(frozen=True, eq=False)
class Scored:
    """What came back, measured: for the page and for the section."""

    metrics: dict[str, float]
    evidence: dict[str, Tensor] = field(default_factory=dict)  # for the owner's eyes
    notes: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)
    baselines: tuple[dict[str, str | float], ...] = ()
    risk: dict[str, Tensor] = field(default_factory=dict)  # evidence for the records at risk
    ranked_by: str = ""
    verdict: Verdict = NOT_JUDGED  # where nobody is lined up
    leak: Rate | None = None  # where nobody is lined up
    proved: int = 0  # records
    members: int = 0  # records behind the releases, as far as known

    @property
    def nearer(self) -> bool | None:
        """Nearer than anything held, more often than decoys; None: it was not measured."""
        figures = self.metrics
        if "null_success_high" in figures and "success_low" in figures:
            return figures["success_low"] > figures["null_success_high"]
        if "above_bar_share_low" in figures and self.leak is not None:
            return figures["above_bar_share_low"] > (self.leak.chance or 0.0)
        return None


@dataclass(frozen=True, eq=False)
class Rung:
    """An easier version of a case."""

    value: str  # on the axis of the reach chart
    words: str  # completes "identifies 16 of 16 records …"
    seconds: float  # estimated
    case: Callable[[RunFolder, Progress], Case]
    counts: int | None = None  # times as much as in the case itself, that a record counts there
    earns: bool = True  # an attack that works there and is silent on the case has shown something


@dataclass(frozen=True, eq=False)
class Ladder:
    respect: str  # in which the rungs differ
    own: str  # the user's value
    words: str  # completes "identifies 0 of 100 records …" for the user's own system
    rungs: tuple[Rung, ...]  # easiest first

    @property
    def first(self) -> int:
        """The place of the rung that is tried first: the easiest that earns something."""
        return next((place for place, rung in enumerate(self.rungs) if rung.earns), 0)

    @property
    def seconds(self) -> float | None:
        """Seconds of that rung; None: there is none."""
        return self.rungs[self.first].seconds if self.rungs else None


def another_seed(seed: int) -> int:
    """Seed of another draw of the same system."""
    return Key.from_seed(seed).fold("drawn once more").seed() % 1_000_000_007


def relevant(counts: int, records: int) -> bool:
    """Whether a rung on which a record counts so many times as much says something of the case itself.

    records: that the case is trained on. Sixteen times, and a tenth of the records, at most.
    """
    return counts <= MOST_COUNTED and counts * LEAST_SHARE <= records


@dataclass(frozen=True, eq=False)
class Safer:
    """A case with a fix, and what the fix costs."""

    case: Case
    kept: float | None  # accuracy of the model, or how much of an update stays
    before: float | None
    cost: str = ""  # in words, besides what is kept


@dataclass(frozen=True, eq=False)
class Fix:
    id: str
    words: str
    guarantee: str
    measure: str  # what `kept` is
    seconds: float  # estimated
    apply: Callable[[RunFolder, Progress], Safer]
    only: tuple[str, ...] = ()  # rows that it is put to; empty: all
    release: str = ""  # what it protects
    short: str = ""  # for a chart; else the words
    secret: bool = False  # it protects by what nobody may learn


@runtime_checkable
class Case(Protocol):
    """One released thing, read and checked. A kind states what differs from the usual, which is here."""

    kind_name: ClassVar[str] = ""  # of its `Kind`; rows of other packages name it

    @property
    def title(self) -> str:
        """Completes "What stops the leak of …"."""
        ...

    # Read

    def digests(self) -> dict[str, str]:
        """What is no file but decides the result: the same digests, the same run."""
        return {}

    def resolve_settings(self, brief: Brief, store: Store) -> Brief:
        """The brief with this release's sizes, steps and threads as numbers."""
        threads = threads_for(brief.settings.machine.threads)
        return brief.with_settings(brief.settings.with_values("machine", threads=threads))

    def resolved(self, brief: Brief, store: Store) -> Self:
        """This case by a brief whose settings are numbers."""
        ...

    # Plan

    def inputs(self) -> Inputs: ...
    def rows(self) -> Sequence[Row]:
        """Every attack that could be run, strongest adversary last."""
        ...

    # Attack

    def made(self, folder: RunFolder, progress: Progress) -> Self:
        """With its releases, where they are made here."""
        return self

    def questions(self, row: Row) -> Sequence[Question]: ...
    def settled(self, question: Question, earlier: Sequence[Answer]) -> bool:
        """Whether the answers before leave nothing for rows that run only if they are needed."""
        return False

    def learnt(self, row: Row, question: Question, earlier: Mapping[str, Answer]) -> Question:
        """With what the answers before, by row, have shown."""
        return question

    def as_records(self, row: Row, question: Question, found: Reconstruction) -> Reconstruction:
        """What an attack brought back, as records like those that are private."""
        return found

    def proved(self, row: Row, question: Question, found: Reconstruction) -> Answer:
        """With what the release itself proves of it."""
        return Answer(question, found)

    # Judge

    def seats(self, row: Row, answers: Sequence[Answer]) -> Seats | None:
        """None: there is nobody to compare with."""
        ...

    def score(self, row: Row, answers: Sequence[Answer], ranks: Tensor | None) -> Scored:
        """ranks: (t,) of the targets in their line-up; None: there was none."""
        ...

    def refusal(self, why: str) -> str:
        """Completes "not audited: …" where an attack does not apply, for this reason of its own."""
        return why

    def doubt(self, row: Row, answers: Sequence[Answer], metrics: Mapping[str, float]) -> str:
        """Why silence of this attack would say nothing; empty: it says something."""
        return ""

    def facts(self) -> Facts:
        """About what was attacked, for the page; its releases are made."""
        return {}

    def together(self, found: Sequence[Findings]) -> list[Findings]:
        """All rows' findings, with what only all of them tell."""
        return list(found)

    def premise(self) -> Premise | None:
        """Whether the release follows from the true records by the training that is assumed.

        The owner has both. None: it cannot be told. Its releases are made.
        """
        return None

    def conditions(self) -> tuple[Condition, ...]:
        """What the attacks need in order to work here, and whether it is so; none: it was not looked at."""
        return ()

    def ladders(self) -> Sequence[Ladder]:
        """Easier versions of the system, on which an attack that found nothing must show that it works.

        One respect each; the next is only climbed where those before show nothing.
        """
        return ()

    def fixes(self) -> Sequence[Fix]:
        """What could stop a leak; nothing for a file as it is, which cannot be trained again."""
        return ()

    def with_more(self, times: int) -> tuple[Self, dict[str, int]] | None:
        """This system with so many times the effort, and the command's options for it.

        No options: its records do not go further. None: it has none for its effort.
        """
        return None

    def redealt(self) -> Self:
        """This system with new targets and new random numbers, to try fixes on.

        Where the records are those of a file, only the random numbers are new. Its releases are not made.
        """
        return self

    # Write

    @property
    def deviations(self) -> tuple[str, ...]:
        """From the papers."""
        return ()

    def charts(self, found: Sequence[Findings]) -> list[Chart]:
        return []


@dataclass(frozen=True)
class Kind:
    """A kind of release: its cases, the page's title, and how it is read."""

    case: type[Case]
    title: str
    read: Callable[[Brief, Load], Case | None]  # None: not released
    section: type[ReleaseSettings] | None = None  # of another package's kind: its part of the brief

    @property
    def name(self) -> str:
        return self.case.kind_name


# From other packages


def rows_of(case: Case) -> list[Row]:
    """The rows of a case, then those that other packages add to its kind."""
    rows = list(case.rows())
    for plugin in plugins(ATTACKS, case.kind_name) if case.kind_name else ():
        makes_rows = plugin.load()
        if not callable(makes_rows):
            raise plugin.broken("a function from a case to rows is needed")
        try:
            added = list(makes_rows(case))
        except Exception as error:
            raise plugin.broken(f"it raised {type(error).__name__}: {error}") from error
        for row in added:
            if not isinstance(row, Row):
                raise plugin.broken(f"it gives a {type(row).__name__}, not a Row")
            if row.id in {one.id for one in rows}:
                raise plugin.broken(f"a row of this kind is called {row.id!r} already")
            rows.append(row)
    return rows


def added_kind(name: str) -> Kind:
    """The kind of release that another package brings, by its section's name."""
    plugin = kind_plugin(name)
    if plugin is None:
        raise ExhumeError(f"{name}: no installed package brings this kind of release")
    kind = plugin.load()
    if not isinstance(kind, Kind):
        raise plugin.broken(f"it is a {type(kind).__name__}, not a Kind")
    if why := _fault_of(kind.case):
        raise plugin.broken(why)
    if kind.name != name:
        raise plugin.broken(f"its cases are called {kind.name!r}, and its entry point {name!r}")
    return kind


_STATED = ("title", "resolved", "inputs", "rows", "questions", "seats", "score")  # by every kind


def _fault_of(case: type) -> str:
    """Why the engine cannot take cases of this class as they are meant; empty: it can.

    A method under a name that the engine does not know would be passed over in silence.
    """
    if not (isinstance(case, type) and Case in case.__mro__):
        return "its case is no class made from Case"
    named = case.__name__
    theirs = [
        each
        for each in case.__mro__
        if Case in each.__mro__ and not each.__module__.startswith("exhume.")
    ]
    known = {name for each in case.__mro__ if each not in theirs for name in dir(each)}
    for each in theirs:
        for name, value in vars(each).items():
            method = isinstance(value, FunctionType | staticmethod | classmethod)
            if method and not name.startswith("_") and name not in known:
                hooks = sorted(hook for hook in known if not hook.startswith("_"))
                return (
                    f"nothing calls {named}.{name} ({nearest(name, hooks)}); "
                    "a method of its own begins with an underscore"
                )
    missing = [name for name in _STATED if getattr_static(case, name) is vars(Case)[name]]
    return f"{named} does not define {', '.join(missing)}" if missing else ""


def packages_used(case: Case) -> dict[str, str]:
    """The packages whose kind or rows an audit of this case uses: other versions, another run."""
    kind = kind_plugin(case.kind_name)
    used = [*([kind] if kind else []), *plugins(ATTACKS, case.kind_name)]
    return {f"package for {case.kind_name}": ", ".join(one.package for one in used)} if used else {}
