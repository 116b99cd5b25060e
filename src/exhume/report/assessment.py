"""Two pages of evidence for an impact assessment, and a fragment for a model card.

They follow the questions that regulators ask of a model (EDPB Opinion 28/2024) and say which of them an
audit answers. They hold no record and no path, and name no class: they are made to be passed on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exhume.core.contract import ExhumeError
from exhume.core.notation import duration_of
from exhume.core.results import Result, Section
from exhume.report.meaning import meaning, most_known, next_steps
from exhume.report.page import redacted_run, render_alone
from exhume.report.words import KNOWN, number, percent, show
from exhume.store.shards import write_atomically

_LISTED = 10  # attacks in the table, those that brought most back first
_LAW = (
    "Facts for an assessment, no legal advice. Whether a model is anonymous, and which risk is acceptable, "
    "is for those who are responsible and for their supervisory authority."
)
_REFERENCES = (
    "EDPB, Opinion 28/2024 on certain data protection aspects related to the processing of personal data in "
    "the context of AI models: both likelihoods below must be insignificant, taking into account all the "
    "means reasonably likely to be used.",
    "NIST AI 100-2, Adversarial Machine Learning: this audit tries what is called data reconstruction there; "
    "not membership inference, property inference or model extraction.",
    "ICO, Guidance on AI and data protection (privacy attacks on models), and the motivated intruder of its "
    "guidance on anonymisation: the adversaries here are at least as able, and know what is stated.",
)


@dataclass(frozen=True)
class Part:
    """A heading, what is said below it, and a table."""

    title: str
    sentences: list[str]
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def write_assessment(run: Path) -> list[Path]:
    """Write `assessment.html`, `assessment.md` and `model-card.md` of an audit; returns where they are."""
    result, config, environment = redacted_run(run)
    if not isinstance(result, Result):
        raise ExhumeError(f"{run}: the run of a study; an assessment is made of an audit")
    parts = list(_parts(run, result, config, environment))
    title = f"{result.title}: evidence for an assessment"
    files = {
        "assessment.html": render_alone("assessment.html", title=title, result=result, parts=parts),
        "assessment.md": _markdown(title, parts),
        "model-card.md": _model_card(result, environment),
    }
    for name, text in files.items():
        write_atomically(run / name, text.encode())
    return [run / name for name in files]


def _parts(
    run: Path, result: Result, config: Mapping[str, Any], environment: Mapping[str, Any]
) -> Iterator[Part]:
    yield Part(
        "The finding",
        [f"{result.verdict.word.upper()}. {result.verdict.sentence}", *meaning(result)],
    )
    yield from _direct(result)
    yield Part(
        "Likelihood of obtaining personal data through queries",
        [
            "Not covered. This audit looks at what is released (weights, updates or features), and sends no "
            "query to a deployed model. What answers give away has to be assessed by other means."
        ],
    )
    yield Part("Who is assumed to have access, and what they know", _access(result))
    yield Part("What was done about it", _done(result))
    yield Part("What is recommended", [_as_sentence(step) for step in next_steps(result)])
    date = str(environment.get("date", "not recorded"))
    yield Part(
        "How long this is valid",
        [
            "Until the model is trained again, or more is released. It covers attacks that exhume knows "
            f"({environment.get('exhume', 'version not recorded')}, run on {date}); attacks published later "
            "are not in it."
        ],
    )
    digest = hashlib.sha256((run / "result.json").read_bytes()).hexdigest()
    files = [f"{name} {value}" for name, value in config.get("digests", {}).items()]
    versions = [f"{n} {environment[n]}" for n in ("exhume", "torch", "python") if n in environment]
    yield Part(
        "How to repeat it",
        [
            f"Data: {result.data}. Seed {result.seed}. Versions: {', '.join(versions) or 'not recorded'}. "
            "The settings are in config.toml of the run folder; the same settings give the same bits on the "
            "same processor type.",
            f"SHA-256 of result.json: {digest}. "
            + (
                f"Digests of files: {', '.join(files)}."
                if files
                else "No file of weights was named."
            ),
        ],
    )
    yield Part("References", [*_REFERENCES, _LAW])


def _as_sentence(step: str) -> str:
    return f"{step[:1].upper()}{step[1:]}."


def _direct(result: Result) -> Iterator[Part]:
    """What was tried on the release itself."""
    threats = {(row.id, row.release): row.threat for row in result.plan}
    ran = [section for section in result.attacks if section.applies and section.leak is not None]
    ran.sort(key=lambda s: s.leak.share if s.leak else 0.0, reverse=True)
    rows = tuple(_row(s, threats.get((s.spec.id, s.release), "")) for s in ran[:_LISTED])
    said = []
    if len(ran) > _LISTED:
        said.append(f"The {_LISTED} of {len(ran)} attacks that brought most back.")
    left = [row for row in result.plan if not row.run]
    if left:
        said.append(
            f"Not run: {'; '.join(f'{row.name} ({row.why})' for row in left[:4])}"
            f"{f', and {len(left) - 4} more' if len(left) > 4 else ''}. This is no evidence of anything."
        )
    yield Part(
        "Likelihood of extracting personal data directly from the release",
        said or (["Every attack that applies was run."] if rows else ["No attack was scored."]),
        (
            "Attack",
            "What it sees and knows",
            "Brought back",
            "By chance",
            "Noticed if over",
            "Effort",
        ),
        rows,
    )
    groups = most_known(result)
    lists = [s.at_risk.csv for s in result.attacks if s.at_risk]
    yield Part(
        "For whom most",
        [
            f"More exposed than the others: {'; '.join(groups)}."
            if groups
            else "No group of records stands out, or groups were not looked at.",
            *([f"Record by record: {lists[0]} in the run folder (private)."] if lists else []),
        ],
    )


def _row(section: Section, threat: str) -> tuple[str, ...]:
    leak, cost = section.leak, section.cost
    assert leak is not None
    beside = "" if section.counts else " (beside the verdict)"
    return (
        section.spec.name + beside,
        threat or ", ".join(KNOWN.get(name, name) for name in section.knows),
        f"{number(leak.successes)} of {number(leak.trials)} ({percent(leak.low)} to {percent(leak.high)})",
        show(None) if leak.chance is None else percent(leak.chance),
        percent(leak.detectable) if leak.detectable else show(None),
        f"{duration_of(cost.seconds)}{f', {number(cost.models)} models' if cost.models else ''}",
    )


def _access(result: Result) -> list[str]:
    sees = dict.fromkeys(s.spec.sees for s in result.attacks if s.applies and s.spec.sees)
    knows = dict.fromkeys(
        KNOWN.get(name, name) for s in result.attacks if s.applies and s.counts for name in s.knows
    )
    said = [
        f"Anyone who has: {', '.join(sees) or 'the release'}. "
        f"Knows besides: {', '.join(knows) or 'nothing'}.",
        "If nobody with access can know this, read the finding as an upper bound; if somebody can know more, "
        "as a lower one.",
    ]
    more = dict.fromkeys(s.knows_more for s in result.attacks if s.applies and s.knows_more)
    return [*said, *([f"Also tried: an adversary who knows {', '.join(more)}."] if more else [])]


def _done(result: Result) -> list[str]:
    tried = [f"{fix.words}: {fix.outcome}." for fix in result.fixes if fix.tried]
    limits = next((s.limits for s in result.attacks if s.limits), None)
    guarantee = list(limits.notes) if limits else []
    return [*tried, *guarantee] or ["No fix was tried, and no guarantee was stated."]


def _markdown(title: str, parts: list[Part]) -> str:
    lines = [f"# {title}", ""]
    for part in parts:
        lines += [f"## {part.title}", ""]
        if part.rows:
            lines += [_line(part.heads), "|---" * len(part.heads) + "|", *map(_line, part.rows), ""]
        lines += [line for sentence in part.sentences for line in (_escaped(sentence), "")]
    return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(_escaped(cell).replace("|", "\\|") for cell in cells) + " |"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return " ".join(text.split()).replace("<", "&lt;").replace("`", "'")


def _model_card(result: Result, environment: Mapping[str, Any]) -> str:
    """Sections as the template of Hugging Face's model cards names them."""
    leak = result.leak
    said = [_escaped(sentence) for sentence in (result.verdict.sentence, *meaning(result))]
    measured = (
        f"| records brought back | {number(leak.successes)} of {number(leak.trials)} "
        f"({percent(leak.low)} to {percent(leak.high)}) |"
        if leak and leak.trials
        else "| records brought back | not scored |"
    )
    return "\n".join(
        [
            "## Bias, Risks, and Limitations",
            "",
            "### Reconstruction of training data",
            "",
            f"Audit with exhume {environment.get('exhume', '')}, "
            f"{environment.get('date', 'date not recorded')}: **{result.verdict.word}**.",
            "",
            *(line for sentence in said for line in (sentence, "")),
            "### Recommendations",
            "",
            *(f"- {_escaped(_as_sentence(step))}" for step in next_steps(result)),
            "",
            "## Evaluation",
            "",
            "| privacy of the training data | |",
            "|---|---|",
            f"| verdict | {result.verdict.word} |",
            measured,
            f"| attacks run | {sum(s.applies for s in result.attacks)} |",
            "| queries to the deployed model, membership inference | not audited |",
            "",
        ]
    )
