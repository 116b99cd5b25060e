"""The self-contained HTML page of a run: verdict, evidence, figures and settings in one file.

The page opens from disk with the network off. It carries private records, unless it is redacted: then it
holds no record, no per-record number, nothing that says where the user's files lie or whose they are.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from exhume.core.contract import ExhumeError, Shard
from exhume.core.notation import duration_of
from exhume.core.results import LimitRow, Rate, Result, Section, StudyResult, read_json, read_result
from exhume.core.typed_json import from_json
from exhume.report import words
from exhume.report.evidence import (
    PairGroup,
    RiskTable,
    TextGallery,
    risk_table,
    sides_of_threshold,
    ssim_against_margin,
    texts_of,
)
from exhume.report.figures import draw_chart, histogram, interval, scatter
from exhume.report.gallery import Gallery, make_gallery, read_evidence
from exhume.report.meaning import meaning, next_steps
from exhume.report.words import TableRow, number, percent, show
from exhume.settings.schema import toml_at
from exhume.store.shards import write_atomically

TEMPLATES = Path(__file__).parent / "templates"
RECORDS_SIZE = 7_000_000  # bytes of record drawings on one page, over all attacks
SPREAD = (0.05, 0.25, 0.5, 0.75, 0.95)
STARTS_AS_PATH = re.compile(r"(?:~\w*|\.{1,2}|[A-Za-z]:|file://)?[/\\]")
FILE_ALONE = re.compile(r"[^\s/\\]+\.[A-Za-z]\w{0,11}(:\w+)?$")
PATH_IN_TEXT = re.compile(
    r"""(?<![\w/\\])(?:~\w*|\.{1,2}|[A-Za-z]:|file://)?[/\\](?:[^\s/\\"'<>|,;()]+[/\\])+[^\s/\\"'<>|,;()]*"""
)
PERSONAL = {"host", "hostname", "node", "user", "username"}  # keys of an environment
COMPARED = {
    "mse": "reconstruction",
    "oracle_mse": "nearest-record oracle",
    "null_mse": "unrelated record (null)",
}


def draw(run: Path, *, redact: bool = False) -> Path:
    """Write `report.html` of a run folder, or `report-redacted.html`, and say where it is."""
    path = run / ("report-redacted.html" if redact else "report.html")
    write_atomically(path, _render(_view(run, redact=redact)).encode())
    return path


# What the templates see


@dataclass(frozen=True)
class Adversary:
    """What one adversary knew, and what its attacks saw."""

    attacks: list[str]
    sees: list[str]
    knows: list[str]


@dataclass(frozen=True)
class AttackView:
    """One attack: what its result says, and what its evidence shows."""

    anchor: str
    attack: Section
    knows: list[str]
    metrics: list[TableRow]
    histogram: Markup
    scatter: Markup
    spread: list[list[str]]  # one row per kind of error: its name and its quantiles
    gallery: Gallery | None
    texts: TextGallery | None
    sides: list[PairGroup]  # pairs on both sides of the threshold of similarity
    margin: Markup  # similarity against margin
    risk: RiskTable | None  # the records that leak most


def _view(run: Path, *, redact: bool) -> dict[str, Any]:
    result, config, environment = redacted_run(run) if redact else _read(run)
    evidence = [_evidence(run, attack) for attack in result.attacks]
    share = RECORDS_SIZE // max(1, sum(e is not None for e in evidence))
    sections = [
        _attack(place, attack, tensors, list(result.classes), share=0 if redact else share)
        for place, (attack, tensors) in enumerate(
            zip(result.attacks, evidence, strict=True), start=1
        )
    ]
    limits = next((attack.limits for attack in result.attacks if attack.limits), None)
    refused = [section for section in sections if not section.attack.applies]
    sections = [section for section in sections if section.attack.applies]
    if isinstance(result, Result):
        sections.sort(key=_strength, reverse=True)
    return {
        "result": result,
        "redact": redact,
        "shows_records": any(section.gallery or section.texts for section in sections),
        "sections": sections,
        "refused": refused,
        "adversaries": _adversaries(sections or refused),
        "charts": [(chart.title, draw_chart(chart)) for chart in result.charts],
        "tiles": key_figures(result),
        "limits": limits,
        "limit_rows": [(row, _allowed(row)) for row in limits.rows] if limits else [],
        "config": [TableRow(k, show(v)) for k, v in _flat(config)],
        "spread_at": [f"{q:.0%}" for q in SPREAD],
        "tone": "unknown",
        "victim": [],
        "metrics": [],
        **_facts(result),
        "environment": [TableRow(k, show(v)) for k, v in _flat(environment)],
    }


_Run = tuple[Result | StudyResult, dict[str, Any], dict[str, Any]]


def _read(run: Path) -> _Run:
    """The result of a run, its settings and its environment."""
    result = read_result(run / "result.json")
    settings = run / "config.toml"
    config = toml_at(settings) if settings.exists() else {}
    return result, config, read_json(run / "environment.json", needed=False)


def redacted_run(run: Path) -> _Run:
    """The result of a run, its settings and its environment, without paths, classes and names."""
    result, config, environment = _read(run)
    paths = [*paths_in(config), str(run), str(run.resolve())]
    extents = [section.extent for section in result.attacks]
    groups = sorted({row.name for extent in extents for row in extent.groups or ()})
    plain = redacted(result.to_json(), paths, groups)
    redacted_result = from_json(type(result), plain, str(run / "result.json"))
    return redacted_result, redacted(config, paths), redacted(environment, paths)


def _strength(section: AttackView) -> float:
    leak = section.attack.leak
    return leak.share if leak is not None and section.attack.counts else -1.0


def _adversaries(sections: list[AttackView]) -> list[Adversary]:
    """Attacks that know the same are one adversary's."""
    found: dict[tuple[str, ...], Adversary] = {}
    for section in sections:
        one = found.setdefault(tuple(section.knows), Adversary([], [], section.knows))
        one.attacks.append(section.attack.spec.name)
        sees = section.attack.spec.sees
        if sees and sees not in one.sees:
            one.sees.append(sees)
    return [one for one in found.values() if one.sees or one.knows]


def _facts(result: Result | StudyResult) -> dict[str, Any]:
    """What only an audit's page shows, or only a study's."""
    if isinstance(result, StudyResult):
        return {"metrics": words.metric_rows(result.metrics)}
    facts = [TableRow(words.humanise(k), words.measured(k, v)) for k, v in result.victim.items()]
    names = {attack.spec.id: attack.spec.name for attack in result.attacks}
    return {
        "tone": words.TONES[result.verdict.word],
        "victim": facts,
        "names": names,
        "beside": [attack.beside for attack in result.attacks if attack.beside],
        "meaning": meaning(result),
        "next_steps": next_steps(result),
    }


def _allowed(row: LimitRow) -> Markup:
    """What was measured, above what private training allows."""
    spans = {
        "measured": (row.low, row.rate, row.high),
        "allowed": (row.kappa, row.bound, row.bound),
    }
    return interval(spans, label=f"{row.attack}: {row.game}")


def _attack(
    place: int,
    attack: Section,
    evidence: Shard | None,
    classes: list[str],
    share: int,
) -> AttackView:
    ranked_by = attack.ranked_by
    errors = {
        title: evidence[name].double()
        for name, title in COMPARED.items()
        if evidence and name in evidence and ranked_by in ("", "mse")
    }
    similar = evidence if evidence and share and ranked_by == "ssim" else {}
    figure = Markup("")
    if share and {COMPARED["mse"], COMPARED["oracle_mse"]} <= set(errors):
        figure = scatter(
            errors[COMPARED["oracle_mse"]].tolist(),
            errors[COMPARED["mse"]].tolist(),
            label="Error of each reconstruction against the error of its oracle",
            x_label="oracle's error (MSE)",
            y_label="reconstruction's error (MSE)",
        )
    return AttackView(
        anchor=f"attack-{place}",
        attack=attack,
        knows=[words.KNOWN.get(name, str(name)) for name in attack.knows],
        metrics=words.metric_rows(attack.metrics),
        histogram=histogram(
            {title: values.tolist() for title, values in errors.items()},
            label="Histogram of errors",
            x_label="error (MSE), lower is closer",
        )
        if errors
        else Markup(""),
        scatter=figure,
        spread=[[title, *map(number, _quantiles(values))] for title, values in errors.items()],
        gallery=make_gallery(evidence, classes, size=share, ranked_by=ranked_by)
        if evidence and share and "lexicon" not in evidence.notes
        else None,
        texts=texts_of(evidence, classes) if evidence and share else None,
        sides=sides_of_threshold(similar),
        margin=ssim_against_margin(similar),
        risk=risk_table(evidence) if evidence and share and attack.at_risk else None,
    )


def _quantiles(values: Tensor) -> list[float]:
    finite = values[values.isfinite()]
    if not len(finite):
        return [math.nan] * len(SPREAD)
    found: list[float] = torch.quantile(finite, torch.tensor(SPREAD, dtype=finite.dtype)).tolist()
    return found


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in values.items():
        nested = isinstance(value, dict)
        rows += _flat(value, f"{prefix}{key}.") if nested else [(f"{prefix}{key}", value)]
    return rows


# Files


def _evidence(run: Path, attack: Section) -> Shard | None:
    name = attack.evidence
    if not name:
        return None
    path = run / name
    if not path.resolve().is_relative_to(run.resolve()):
        raise ExhumeError(f"{run / 'result.json'}: evidence {name!r} lies outside the run folder")
    return read_evidence(path)


@cache
def _templates() -> Environment:
    """The templates; each is compiled once in a process, which takes longer than to render it."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters.update(number=number, percent=percent, show=show, duration=duration_of)
    return templates


def render_alone(name: str, **view: Any) -> str:
    """A page with a style of its own and no script."""
    style = (TEMPLATES / name).with_suffix(".css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(style)}"
    return _templates().get_template(name).render(**view, style=style, policy=policy)


def _render(view: dict[str, Any]) -> str:
    style, script = (
        (TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    # Only these two texts may act: markup that slipped through escaping would stay inert.
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {_hash(style)}; script-src {_hash(script)}"
    )
    page = _templates().get_template("page.html")
    view |= {"style": style, "script": script, "policy": policy}
    shown = words.without_tags(page.render(**view, glossary=[]))
    return page.render(**view, glossary=words.glossary_of(shown))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# The three or four figures at the top


@dataclass(frozen=True)
class Tile:
    title: str
    value: str
    range: str = ""
    beside: str = ""
    figure: Markup | None = None


def key_figures(result: Result | StudyResult) -> list[Tile]:
    """Figures of the attack that the verdict is about: the strongest."""
    best = result.strongest or next((a for a in result.attacks if "mse" in a.metrics), None)
    if best is None:
        return []
    leak = [_leak(best.leak)] if best.leak is not None and best.leak.trials else []
    finite = {name: value for name, value in best.metrics.items() if math.isfinite(value)}
    trained = (
        f"{number(best.cost.models)} models trained" if best.cost.models else "no models trained"
    )
    effort = Tile("Effort of the best attack", duration_of(best.cost.seconds), trained)
    return [*leak, *_measured(finite, len(result.classes)), effort]


def _leak(leak: Rate) -> Tile:
    rates = {"this attack": (leak.low, leak.share, leak.high)}
    beside = ""
    if leak.chance is not None:
        rates["by chance"] = (leak.chance, leak.chance, leak.chance)
        beside = f"by chance {percent(leak.chance)}"
    return Tile(
        "Records brought back",
        f"{number(leak.successes)} of {number(leak.trials)}",
        f"{percent(leak.share)} ({percent(leak.low)} to {percent(leak.high)})",
        beside,
        interval(rates, label="Share of the records brought back"),
    )


def _measured(m: dict[str, float], classes: int) -> Iterator[Tile]:
    if "tpr_at_1pct" in m:
        above = f"SSIM above {number(m['ssim_at_1pct'])}" if "ssim_at_1pct" in m else ""
        share = percent(m["tpr_at_1pct"])
        yield Tile("At 1% false positives", share, "of the training images", above)
    if "mse" in m:
        oracle = m.get("oracle_mse")
        ratio = f"{number(m['mse'] / oracle)} times the oracle's" if oracle else ""
        beside = f"nearest-record oracle {number(oracle)}" if oracle is not None else ""
        yield Tile("Error (MSE)", number(m["mse"]), ratio, beside)
    if "whole_texts" in m:
        likest = m.get("oracle_token_accuracy")
        beside = f"likest held text {percent(likest)}" if likest is not None else ""
        tokens = f"{percent(m['token_accuracy'])} of the tokens"
        yield Tile("Texts whole", percent(m["whole_texts"]), tokens, beside)
    if "label_accuracy" in m:
        low, high = m.get("label_accuracy_low"), m.get("label_accuracy_high")
        span = f"{percent(low)} to {percent(high)}" if low is not None and high is not None else ""
        guess = f"guessing {percent(1 / classes)}, {classes} classes" if classes else ""
        yield Tile("Labels inferred", percent(m["label_accuracy"]), span, guess)


# Redacted


def paths_in(value: Any) -> Iterator[str]:
    """Every string in a configuration that reads as a path, also relative or with spaces."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from paths_in(item)
    elif isinstance(value, str) and (
        STARTS_AS_PATH.match(value)
        or FILE_ALONE.match(value)
        or (re.search(r"[/\\]", value) and not re.search(r"\s", value))
    ):
        yield value


def redacted(value: Any, paths: list[str], groups: Sequence[str] = ()) -> Any:
    """A copy without paths and names of files, classes and groups numbered, machine and user left out.

    paths: those known from the configuration, found in running text even with spaces in them.
    """
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if str(k).lower() not in PERSONAL}
        copied = {_text(str(k), paths, groups): redacted(v, paths, groups) for k, v in kept.items()}
        if "classes" in value:
            known = value["classes"]
            numbered = isinstance(known, list)
            copied["classes"] = (
                [f"class {place + 1}" for place in range(len(known))] if numbered else "redacted"
            )
        return copied
    if isinstance(value, list):
        return [redacted(item, paths, groups) for item in value]
    return _text(value, paths, groups) if isinstance(value, str) else value


def _text(text: str, paths: list[str], groups: Sequence[str]) -> str:
    for place, name in enumerate(groups, 1):  # alone, or as a sentence on groups names it
        text = f"group {place}" if text == name else text.replace(f" {name} (", f" group {place} (")
    for path in sorted(paths, key=len, reverse=True):
        if _last(path).strip("."):  # not "/" or "..", which would eat half a sentence
            text = text.replace(path, _hidden(path))
    if STARTS_AS_PATH.match(text):
        return _hidden(text)
    return PATH_IN_TEXT.sub(lambda found: _hidden(found.group()), text)


def _hidden(path: str) -> str:
    """A file as its kind alone; what is named in it, such as a function, stays."""
    kind = re.search(r"\.[A-Za-z]\w{0,11}(:\w+)?$", _last(path))
    return f"redacted{kind[0]}" if kind else "redacted"


def _last(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
