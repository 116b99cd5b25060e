"""The verdict, in words: leaks, at risk, no leak found, or not audited. Silence is never shown as safety.

leaks          more private records are identified among strangers than chance explains, or a
               reconstruction proves itself
at risk        only an adversary who knows more than the assumed one does that
no leak found  neither, by an attack that works on an easier version of the same system
not audited    nothing is known: nothing applied, nothing was shown to work here, or too few records
"""

from __future__ import annotations

from collections.abc import Sequence

from exhume.core.evidence import LineupRow, Reach
from exhume.core.results import Rate, Section, Verdict
from exhume.score.intervals import rate_of
from exhume.score.lineup import LEVEL

MOST_UNNOTICED = 0.5  # share of the records that may leak unnoticed before a test audits nothing
BORDERLINE = 0.001  # adjusted p above which a leak must show among new strangers, too
SECOND_LEVEL = 0.05  # at which it must


def verdict_on(section: Section, reach: Reach | None = None) -> Verdict:
    """One attack's. reach: of the same attack on easier versions of the system."""
    row = section.lineup
    if not section.applies:
        return not_audited(section.status.reason)
    if found_something(section):
        return _at_risk(section) if section.knows_more else _leaks(section)
    if row is None:
        return not_audited("there were no records to compare the reconstructions with")
    why = _says_nothing(section, row) or _not_shown(section, row, reach)
    if why or reach is None:
        return not_audited(why)
    return _no_leak(section, row, reach)


def _not_shown(section: Section, row: LineupRow, reach: Reach | None) -> str:
    """Why an attack that found nothing has not earned its word; empty: it has."""
    name = section.spec.name
    if reach is None:
        return f"{name} found no more than chance explains, and was not tried on an easier version"
    if not reach.nearest and reach.distance is not None:
        return (
            f"{name} found no more than chance explains, and a record would have to count {reach.distance} "
            f"times before it sees it, which says little of records that count once. {reach.sentence}"
        )
    if not reach.nearest:
        return (
            f"{name} found no more than chance explains, and was not shown to work on an easier version of "
            f"the same system: {reach.sentence}"
        )
    share = noticed(row, reach)
    if share > MOST_UNNOTICED:
        return (
            f"too few records: with {row.targets} only a leak of {share:.0%} of them or more would have been "
            "noticed; use more targets"
        )
    return ""


def found_something(section: Section) -> bool:
    """More than chance explains, or proved; a proof does not count against a line-up that knows nobody."""
    row = section.lineup
    if section.proved and (row is None or row.identified or not row.targets):
        return True
    return leaking_row(section) is not None


def leaking_row(section: Section) -> LineupRow | None:
    """The line-up that shows a leak: of all records, or of the tenth that the attacker is surest of."""
    rows = [row for row in (section.lineup, section.surest) if row is not None]
    return next((row for row in rows if _confirmed(row)), None)


def _confirmed(row: LineupRow) -> bool:
    """Significant; a borderline result also among other strangers."""
    if row.adjusted > LEVEL:
        return False
    if row.adjusted <= BORDERLINE:
        return True
    return row.second is not None and row.second <= SECOND_LEVEL


def silent(section: Section) -> bool:
    """It ran as it should, could have noticed something, and found nothing."""
    row = section.lineup
    return (
        section.applies
        and row is not None
        and not found_something(section)
        and not _says_nothing(section, row)
    )


def unsettled(section: Section) -> str:
    """Why neither a leak nor silence can be read from it: a doubt, or a draw that did not repeat itself."""
    if section.doubt:
        return section.doubt
    for row in (section.lineup, section.surest):
        if row is not None and row.adjusted <= LEVEL and not _confirmed(row):
            second = "no second draw" if row.second is None else f"{row.second:.2g} in the second"
            return (
                f"the line-up is borderline: p is {row.adjusted:.2g} for all tests of this audit in the "
                f"first draw of strangers and {second}; use more records"
            )
    return ""


def _says_nothing(section: Section, row: LineupRow) -> str:
    """Why silence of this attack is no evidence; empty: it is."""
    if why := unsettled(section):
        return why
    if not row.targets:
        alike = row.copies > row.left_out / 2
        remedy = f"give {'records that differ from each other' if alike else 'more records of the same kind'}"
        return f"no record could be lined up ({row.left_out} left out: {_causes(row)}); {remedy}"
    if row.needed > row.targets:
        return (
            f"the test has no power: {row.targets} records, each among {row.strangers} strangers, would "
            "prove nothing even if all were identified; use more records"
        )
    return ""


def noticed(row: LineupRow, reach: Reach) -> float:
    """The smallest leaking share that would have been noticed, if the attack succeeds as on that rung."""
    return min(1.0, row.detectable / reach.low) if reach.low > 0 else 1.0


def leak_of(row: LineupRow | None) -> Rate | None:
    """How much leaks, with its exact interval."""
    if row is None or not row.targets:
        return None
    return rate_of(row.identified, row.targets, chance=row.chance, detectable=row.detectable)


# Words

MANY_LEFT_OUT = 0.2  # share of the targets left out that the headline names
OF_OTHERS = "They are not the records as they were named"
_PROOFS = ("gives the update back", "gives the release back")


def _share(row: LineupRow) -> str:
    every = row.targets + row.left_out
    many = row.left_out >= MANY_LEFT_OUT * every and row.left_out > 0
    absent = f"; {row.left_out} of {every} left out: {_causes(row)}" if many else ""
    return f"{row.identified} of {row.targets} records ({row.share:.0%}{absent})"


def _causes(row: LineupRow) -> str:
    """Why targets were left out; with counts where there are several reasons."""
    alone = row.left_out - row.copies - row.held
    counts = {
        "near-duplicates": row.copies,
        "held by the adversary": row.held,
        "without enough strangers": alone,
    }
    some = {why: count for why, count in counts.items() if count}
    if not some:
        return "without enough strangers"
    return (
        next(iter(some)) if len(some) == 1 else ", ".join(f"{n} {why}" for why, n in some.items())
    )


def _against_chance(row: LineupRow) -> str:
    rate = rate_of(row.identified, row.targets)
    borderline = BORDERLINE < row.adjusted <= LEVEL and row.second is not None
    again = f" Drawn again with new strangers: p = {row.second:.2g}." if borderline else ""
    return (
        f"By chance {row.chance:.1%} would be identified (p = {row.p:.2g}, {row.adjusted:.2g} for all "
        f"tests of this audit).{again} 95% interval of the share, over these targets alone: "
        f"{rate.low:.1%} to {rate.high:.1%}."
    )


def _leaks(section: Section) -> Verdict:
    row = leaking_row(section)
    proofs = [note for note in section.notes if any(said in note for said in _PROOFS)]
    others = [f"{OF_OTHERS}: {section.doubt}."] * bool(section.doubt and section.lineup is None)
    if row is not None:
        detail = [
            _against_chance(row),
            *([section.extent.epsilon.sentence] if section.extent.epsilon else []),
        ]
        return Verdict("leaks", f"The release leaks: {_came_back(section, row)}", " ".join(detail))
    count = "1 record was" if section.proved == 1 else f"{section.proved} records were"
    return Verdict(
        "leaks",
        f"The release leaks: {count} reconstructed, and the release itself proves it.",
        " ".join([*proofs, *others]),
    )


def _came_back(section: Section, row: LineupRow) -> str:
    """Whether records are reconstructed or only recognised, and how many chance would name."""
    how = (
        "were reconstructed" if section.extent.strength == "reconstructed" else "can be recognised"
    )
    expected = f"by chance {row.chance * row.targets:.2g} would be"
    more = f"more like what came back than {_strangers(row)}"
    if row.surest == "releases":
        return (
            f"of the {row.targets} records that the attacker is surest of, {row.identified} {how}: each is "
            f"{more} are; {expected}."
        )
    if row.surest == "answers":
        return (
            f"by the tenth of its answers that the attacker is surest of, {_share(row)} {how}: each is "
            f"{more} are; {expected}."
        )
    return f"{_share(row)} {how}: each is {more} are; {expected}."


def _at_risk(section: Section) -> Verdict:
    row = section.lineup
    some = _share(row) if row is not None else f"{section.proved} records"
    return Verdict(
        "at risk",
        f"The records are at risk: an adversary who also knows {section.knows_more} gets {some} back; those "
        "who do not know it found nothing.",
        "What protects the records is that this stays secret, not what is released."
        + (f" {_against_chance(row)}" if row is not None else ""),
    )


def _no_leak(section: Section, row: LineupRow, reach: Reach) -> Verdict:
    share = noticed(row, reach)
    far = (
        f" A record would have to count {reach.distance} times before this attack sees it."
        if reach.distance
        else ""
    )
    return Verdict(
        "no leak found",
        f"No leak found: {_share(row)} are more like their reconstructions than {_strangers(row)}, not more "
        f"than chance explains. {reach.sentence}{far}",
        f"{section.spec.name}: a leak of {share:.0%} of the records or more would have been noticed with 95% "
        f"probability, if it succeeds as it does {reach.best}. A smaller leak, or another attack, is not "
        "ruled out.",
    )


def _strangers(row: LineupRow) -> str:
    return f"all of {row.strangers} {row.among}"


def gravest(verdicts: Sequence[Verdict]) -> Verdict:
    """One attack that succeeds is enough; one that could not run says nothing."""
    order = ("leaks", "at risk", "no leak found", "not audited")
    return min(verdicts, key=lambda verdict: order.index(verdict.word))


def broken(alarm: str) -> Verdict:
    """An attack did better than the stated privacy allows any attack."""
    return Verdict("leaks", "The stated privacy does not hold.", alarm)


def not_audited(why: str) -> Verdict:
    return Verdict(
        "not audited",
        f"Not audited: {why[:1].lower()}{why[1:].rstrip('.')}.",
        "Nothing is known about what this release leaks.",
    )
