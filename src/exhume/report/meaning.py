"""What a verdict means and what to do next, for a person who decides and does not attack.

The same sentences end the page, the two pages of an assessment and what the console says.
"""

from __future__ import annotations

from exhume.core.results import Result, Section
from exhume.report.words import number, percent

_VACUOUS = 0.99  # success that a bound allows, from which on it says nothing
_FILES = ("checkpoint", "fitted")  # releases that are attacked as they are: there is nothing to try


def meaning(result: Result) -> list[str]:
    """Sentences on what the verdict says about the records and what it does not, and on what is proved."""
    return [*_of_the_word(result), *_proved(result)]


def _of_the_word(result: Result) -> list[str]:
    word = result.verdict.word
    if word == "not audited":
        return [
            "By attacks nothing is known about this release: neither that it gives records away, nor that it "
            "does not.",
            "Do not quote this page as a sign that there is no risk.",
        ]
    if word == "leaks":
        return [*_leaking(result), "It does not say that such an adversary exists."]
    if word == "at risk":
        return [
            "Whoever has the release and nothing more brought no record back; whoever also has "
            f"{_more(result)} did.",
            "So it is a secret that protects the records, not the form of the release. If the secret gets "
            "out, what was released until then cannot be called back.",
        ]
    return [
        "The attacks named here brought nothing back, and the same attacks do work on an easier version "
        f"of the same system.{_unnoticed(result)}",
        "It is no proof of safety: a stronger attack, or an adversary who knows more than was assumed, may "
        "still succeed.",
    ]


def next_steps(result: Result) -> list[str]:
    """What to do, the most urgent first."""
    word = result.verdict.word
    if word == "leaks":
        return [
            *_stop_it(result),
            "if it was released already, treat that as a disclosure of the records, and tell whoever answers "
            "for data protection",
        ]
    if word == "at risk":
        return [
            f"keep secret what the stronger adversary knows ({_more(result)}), and write down who has it",
            "or choose a protection that needs no secret: the same command with --try-fixes tries them",
        ]
    if word == "no leak found":
        return [
            "keep this folder; after a change, audit again and run exhume compare OLD NEW",
            "exhume report RUN --assessment writes two pages for an impact assessment",
        ]
    return [
        result.next
        or "change what the reason above names, and audit again: until then nothing is known"
    ]


def most_known(result: Result) -> list[str]:
    """Groups of records of which more come back than of all, in words."""
    rows = result.extent.groups or ()
    return [f"{row.name}: {row.identified} of {row.targets}" for row in rows if row.stands_out]


def _leaking(result: Result) -> list[str]:
    leak, expected = result.leak, result.extent.expected_by_chance
    if leak is None or not leak.trials:
        return [
            "Whoever has this release can compute private records from it; the release proves it."
        ]
    whole = result.extent.strength == "reconstructed"
    how = "rebuild private records from it" if whole else "tell which records are behind it"
    chance = "" if expected is None else f", where chance gives about {expected:.2g}"
    said = [
        f"Whoever has this release, and knows what this adversary was assumed to know, can {how}: "
        f"{number(leak.successes)} of the {number(leak.trials)} that were tried{chance}.",
        f"Of records like these, between {percent(leak.low)} and {percent(leak.high)} are open to this "
        "attack; of those that did not come back another attack may get more.",
    ]
    if not whole:
        said.append("What comes back points at a record. It need not look like it.")
    if groups := most_known(result):
        said.append(f"More exposed than the others: {'; '.join(groups)}.")
    return said


def _proved(result: Result) -> list[str]:
    """What a guarantee allows any attack, beside the best that was tried; a bound may allow everything."""
    rows = [row for section in result.attacks if section.limits for row in section.limits.rows]
    return [
        f"The bound on {row.game} is vacuous: it allows {percent(row.bound)}, so nothing follows from it; "
        f"{row.attack} reached {percent(row.rate)}."
        if row.bound > _VACUOUS
        else f"Proved, whatever the attack: at most {percent(row.bound)} success at {row.game}; {row.attack} "
        f"reached {percent(row.rate)}, guessing {percent(row.kappa)}."
        for row in sorted(rows, key=lambda row: row.rate, reverse=True)[:2]
    ]


def _unnoticed(result: Result) -> str:
    noticed = [row.leak.detectable for row in result.releases if row.leak] or (
        [result.leak.detectable] if result.leak else []
    )
    return (
        f" A leak of {percent(max(noticed))} of the records or more would have been noticed, if the attack "
        "succeeds as it does there; a smaller one may be there."
        if noticed
        else ""
    )


def _more(result: Result) -> str:
    return ", ".join(dict.fromkeys(s.knows_more for s in result.attacks if _succeeded(s))) or (
        "what the stronger adversary knows"
    )


def _succeeded(section: Section) -> bool:
    return bool(section.knows_more) and section.verdict == "at risk"


def _stop_it(result: Result) -> list[str]:
    tried = [row for row in result.fixes if row.tried]
    stops = [row for row in tried if row.verdict == "no leak found"]
    if stops:
        names = "; ".join(row.words for row in stops)
        return [f"apply a fix that stops it, best first ({names}), then audit again"]
    if tried:
        return [
            "none of the fixes that were tried is shown to stop it: train on more records, in fewer steps or "
            "privately, or keep the release"
        ]
    leaking = [row.kind for row in result.releases if row.word == "leaks"]
    if leaking and all(kind in _FILES for kind in leaking):
        return [
            "do not release this file; describe its training in [victim] of an audit.toml, and "
            "--try-fixes shows which training would not leak"
        ]
    return [
        "do not release this as it is; the same command with --try-fixes shows what stops it",
        "until then, give it only to people who may see the records themselves",
    ]
