"""What an audit or a study found, as types: everything that stands in `result.json`, and no record.

    Result       verdict, one `Section` per attack, the plan, fixes, one `ReleaseRow` per released thing
    StudyResult  claims with what was measured

`leak` is the one number for "how much leaks": the strongest attack's rate, in the banner, the tiles, the
table, `--fail-over`, JUnit and JSON alike. Reconstructions lie beside the result in safetensors files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import Tensor

from exhume.core.contract import Cost, ExhumeError, NotApplicable, Outcome, Status
from exhume.core.errors import unfinished
from exhume.core.evidence import Condition, ControlRow, Extent, LineupRow, Reach
from exhume.core.files import object_at
from exhume.core.typed_json import FLAT, from_json, to_json

SCHEMAS = {"audit": 4, "study": 2}
_READABLE = {
    "audit": (SCHEMAS["audit"],),
    "study": (1, SCHEMAS["study"]),
}  # 1: nothing is undecided

Number = int | float
Word = Literal["leaks", "at risk", "no leak found", "not audited"]
Facts = dict[str, str | float]


@dataclass(frozen=True)
class Verdict:
    word: Word
    sentence: str
    detail: str


NOT_JUDGED = Verdict("not audited", "Not judged.", "")  # an attack that a study shows


@dataclass(frozen=True)
class Rate:
    """How many of the records came back."""

    successes: int
    trials: int
    low: float  # 95% interval of the share
    high: float
    chance: float | None = None  # the same share among records that were not in the release
    detectable: float = 0.0  # a smaller share may go unnoticed

    @property
    def share(self) -> float:
        return self.successes / self.trials if self.trials else 0.0

    def __str__(self) -> str:
        return f"{self.successes} of {self.trials} ({self.share:.1%})"


# One attack


@dataclass(frozen=True)
class AttackSpec:
    """An attack as the run folder and the page call it."""

    id: str
    name: str
    paper: str = ""
    sees: str = ""


@dataclass(frozen=True)
class LimitRow:
    """One attack in one game, beside what the claimed privacy allows any attack."""

    attack: str
    game: str
    successes: int
    trials: int
    kappa: float  # what guessing reaches
    bound: float
    low: float  # 95% interval of the success
    high: float
    rate: float
    alarm: bool


@dataclass(frozen=True)
class PrivacyLimits:
    alarm: str  # in words; empty where there is none
    notes: tuple[str, ...]
    rows: tuple[LimitRow, ...]


@dataclass(frozen=True)
class AtRisk:
    """The list of all records that were scored, those that leak most first."""

    csv: str
    measure: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """One attack on one release: numbers and words."""

    spec: Annotated[AttackSpec, FLAT]
    status: Status
    knows: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    leak: Rate | None = None  # None: nothing could be scored
    release: str = ""
    verdict: str = ""
    counts: bool = True  # for the verdict; False: a bound, or a comparison
    lineup: LineupRow | None = None  # None: there was nobody to compare with
    surest: LineupRow | None = None  # of the tenth that the attacker is surest of; None: not tested
    proved: int = 0  # records that training on the reconstructions proves
    doubt: str = (
        ""  # why silence of this attack says nothing, such as a search that did not converge
    )
    beside: str = ""  # sentence on an adversary who changes what is sent: no part of the verdict
    knows_more: str = ""  # than the adversary that is assumed: success means at risk
    baselines: tuple[dict[str, str | float], ...] = ()
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()
    evidence: str = ""  # the file with the records
    ranked_by: str = ""
    at_risk: AtRisk | None = None
    limits: PrivacyLimits | None = None
    extent: Annotated[Extent, FLAT] = Extent()

    @property
    def applies(self) -> bool:
        return self.status.outcome is not Outcome.NOT_APPLICABLE

    @staticmethod
    def inapplicable(spec: AttackSpec, why: NotApplicable, knows: Sequence[str] = ()) -> Section:
        """The reason, and no numbers."""
        status = Status(Outcome.NOT_APPLICABLE, why.why, why.ever)
        return Section(spec, status, tuple(knows))


@dataclass(frozen=True, eq=False)
class Findings:
    """One attack on one release, scored: what the result says of it, and the records behind that."""

    section: Section
    verdict: Verdict = NOT_JUDGED
    evidence: dict[str, Tensor] = field(default_factory=dict)  # for the owner's eyes only
    facts: Facts = field(default_factory=dict)  # about what was attacked
    risk: dict[str, Tensor] = field(default_factory=dict)  # evidence for the records at risk

    @property
    def metrics(self) -> dict[str, float]:
        return self.section.metrics

    @property
    def counts(self) -> bool:
        return self.section.counts and self.section.applies

    @property
    def share(self) -> float:
        """Share of the records: how much leaks; -1 where nothing could be scored."""
        leak = self.section.leak
        return leak.share if leak is not None and self.counts else -1.0

    @property
    def tested(self) -> bool:
        """Its line-up decides something: the verdict itself, or that a secret alone protects."""
        section = self.section
        return section.lineup is not None and (section.counts or bool(section.knows_more))


# Charts


@dataclass(frozen=True)
class Point:
    """One measurement; an interval that is not known has zero width."""

    x: Number | str
    y: Number
    low: Number | None = None
    high: Number | None = None


@dataclass(frozen=True)
class Chart:
    """Plain data, so that it can be drawn again. All x are numbers, or all are names."""

    title: str
    x: str  # what the axes show
    y: str
    series: Mapping[str, Sequence[Point]]
    x_scale: Literal["log", "linear"] = "linear"
    y_scale: Literal["log", "linear"] = "linear"

    def __post_init__(self) -> None:
        kinds = {isinstance(p.x, str) for points in self.series.values() for p in points}
        if len(kinds) > 1:
            raise ValueError("x mixes names and numbers")


# An audit


@dataclass(frozen=True)
class PlannedAttack:
    """An attack that could be run, what it takes, and whether it is."""

    id: str
    name: str
    release: str
    threat: str  # what the adversary sees and knows, in words
    estimated_seconds: float
    run: bool
    why: str = ""  # it is left out
    records: int = 0  # that it is tried on
    models: int = 0  # that are trained for it
    steps: int = 0  # of its search
    seconds: float | None = None  # what it really took
    cpu_seconds: float | None = None  # of all its processes


@dataclass(frozen=True)
class FixRow:
    """A fix, and what the attack still brought back; or why it was not tried."""

    id: str
    release: str
    words: str
    short: str
    guarantee: str
    outcome: str
    tried: bool = False
    leak: Rate | None = None
    without: Rate | None = None  # what leaks of the same records without it
    verdict: str = ""
    measure: str = ""  # what `kept` is
    kept: float | None = None  # accuracy of the model, or how much of an update stays
    before: float | None = None
    seconds: float | None = None

    @property
    def sentence(self) -> str:
        return f"{self.words}: {self.outcome}."


@dataclass(frozen=True)
class ReleaseRow:
    """One released thing: what it is, its verdict, and the best fix that was tried."""

    kind: str
    name: str
    word: str
    sentence: str
    detail: str
    fix: str = ""
    leak: Rate | None = None
    seed: int = 0
    data: str = ""
    threads: int = 0
    extent: Annotated[Extent, FLAT] = Extent()  # of the attack that its verdict quotes


@dataclass(frozen=True)
class Result:
    """An audit."""

    title: str
    data: str
    seed: int
    conditions: tuple[Condition, ...] = field(default=(), kw_only=True)  # read before the verdict
    verdict: Verdict
    leak: Rate | None = None  # the strongest attack's that counts
    alarm: str = ""  # where an attack did better than the claimed privacy allows
    attacks: tuple[Section, ...] = ()
    plan: tuple[PlannedAttack, ...] = ()
    fixes: tuple[FixRow, ...] = ()
    releases: tuple[ReleaseRow, ...] = ()
    controls: tuple[ControlRow, ...] = ()
    reach: tuple[Reach, ...] = ()
    charts: tuple[Chart, ...] = ()
    victim: Facts = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    resumed_from: str = ""  # the other version whose work was gone on with
    wall_seconds: float = 0.0
    next: str = ""  # where nothing is known: what to run, and what it takes
    extent: Annotated[Extent, FLAT] = Extent()  # of the attack whose number `leak` is

    @property
    def kind(self) -> str:
        return "audit"

    @property
    def strongest(self) -> Section | None:
        """The attack whose number `leak` is."""
        counted = [section for section in self.attacks if section.counts]
        earned = [s for s in counted if s.verdict == self.verdict.word == "no leak found"]
        return strongest(earned or counted)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMAS["audit"], "kind": "audit", **to_json(self)}


def strongest(sections: Sequence[Section]) -> Section | None:
    """The attack that brought most back; of equal ones the first. None where nothing was scored."""
    scored = [section for section in sections if section.leak is not None and section.leak.trials]
    return max(scored, key=lambda s: s.leak.share if s.leak else -1.0, default=None)


def refused(result: Result, fail_on: str | None) -> str:
    """What of the verdict a gate refuses; empty: nothing.

    fail_on: "at-risk", also any leak; "recognised", any leak; "reconstructed", a leak of whole records.
    """
    word = result.verdict.word
    if fail_on == "at-risk" and word in ("leaks", "at risk"):
        return f"the verdict is {word!r}"
    if word != "leaks" or fail_on not in ("reconstructed", "recognised"):
        return ""
    strengths = [result.extent.strength, *(row.extent.strength for row in result.releases)]
    strength = "reconstructed" if "reconstructed" in strengths or result.alarm else "recognised"
    return f"records are {strength}" if fail_on in ("recognised", strength) else ""


def lacking_power(result: Result, power: float | None) -> str:
    """Why "no leak found" is not enough for who asks that so small a leak be noticed; empty: it is.

    Of several releases every one counts; in one that was not audited any leak may go unnoticed.
    """
    if power is None or result.verdict.word != "no leak found":
        return ""
    earned = [row.leak if row.word == "no leak found" else None for row in result.releases]
    least = max((leak.detectable if leak else 1.0 for leak in earned), default=1.0)
    if least <= power:
        return ""
    return f"a leak below {least:.0%} of the records may go unnoticed, {power:.0%} is asked for"


# A study


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper (or of ours) and what was measured."""

    id: str
    statement: str
    paper: str | float  # what the paper reports, in its own figures
    measured: str | float
    holds: bool | None  # None: undecided, the interval contains both sides of the bar

    @property
    def word(self) -> str:
        return "undecided" if self.holds is None else "holds" if self.holds else "does not hold"


@dataclass(frozen=True)
class StudyResult:
    study: str
    scale: str
    seed: int
    title: str
    claims: tuple[Claim, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    charts: tuple[Chart, ...] = ()
    attacks: tuple[Section, ...] = ()
    classes: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    resumed_from: str = ""
    wall_seconds: float = 0.0
    environment: dict[str, Any] = field(default_factory=dict)
    setting: Any = None  # its real sizes

    @property
    def kind(self) -> str:
        return "study"

    @property
    def strongest(self) -> Section | None:
        return strongest(self.attacks)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMAS["study"], "kind": "study", **to_json(self)}


# Files


def read_result(path: Path) -> Result | StudyResult:
    """What a `result.json` says; raises `ExhumeError` with what is wrong with it."""
    value = read_json(path)
    kind = value.get("kind", "study" if "study" in value else None)
    if kind not in SCHEMAS:
        raise ExhumeError(f"{path}: kind is {kind!r}, legal are 'audit' and 'study'")
    if value.get("schema") not in _READABLE[kind]:
        raise ExhumeError(
            f"{path}: schema is {value.get('schema')!r:.40}, this version reads {SCHEMAS[kind]}: the result "
            f"of another version of exhume; run the {kind} again"
        )
    if kind == "study":
        return from_json(StudyResult, value, str(path))
    return from_json(Result, value, str(path))


def read_json(path: Path, *, needed: bool = True) -> dict[str, Any]:
    if path.exists():
        return object_at(path)
    if needed:
        raise unfinished(path)
    return {}
