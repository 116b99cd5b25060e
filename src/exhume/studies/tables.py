"""Tables of the pages, filled from the results that studies keep.

A page says what a table is made of, in a comment that no reader sees:

    <!-- table informed-epochs
    | steps | MSE | success |
    |---|---|---|
    | [1; 3; mean=mean record] | {steps.*.mse:.4f} | {steps.*.success:.1%} |
    -->
    <!-- /table -->

`exhume study tables` writes what stands between the two comments. Braces hold a metric of the kept result
(`docs/results/NAME.json`) and its format. A row with names in brackets stands for as many rows: `*` is the
name, and what follows its "=" is shown in its place. `<!-- claims NAME -->` … `<!-- /claims -->` holds the
claims of a study. A number in running text is followed by what it is: `0.0109<!-- informed-epochs
{steps_1.mse:.4f} -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from exhume.core.contract import ExhumeError
from exhume.core.results import Claim, StudyResult, read_result

_TABLE = re.compile(r"(<!-- table ([a-z0-9-]+)\n(.*?)\n-->\n)(.*?)(<!-- /table -->)", re.DOTALL)
_CLAIMS = re.compile(r"(<!-- claims ([a-z0-9-]+) -->\n)(.*?)(<!-- /claims -->)", re.DOTALL)
_PROSE = re.compile(r"[^\s>]+(<!-- ([a-z0-9-]+)\s(\{[^{}]+\}) -->)")
_NAMES = re.compile(r"\[([^]]*)\](?!\()")  # not a link
_METRIC = re.compile(r"\{([^{}:]+):([^{}]+)\}")


def write_tables(docs: Path) -> list[Path]:
    """Fill the tables of every page; returns the pages that changed."""
    changed = []
    for page in sorted(docs.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = filled(text, docs, page.name)
        if new != text:
            page.write_text(new, encoding="utf-8")
            changed.append(page)
    return changed


def filled(text: str, docs: Path, page: str) -> str:
    """A page with its tables as the kept results have them."""

    def table(found: re.Match[str]) -> str:
        begin, study, template, _, end = found.groups()
        metrics = _kept(docs, study, page).metrics
        rows = [
            _with_numbers(row, metrics, f"{page}: the table of {study}")
            for line in template.splitlines()
            for row in _rows(line)
        ]
        return _between(begin, rows, end)

    def claims(found: re.Match[str]) -> str:
        begin, study, _, end = found.groups()
        return _between(begin, _claimed(_kept(docs, study, page).claims), end)

    def prose(found: re.Match[str]) -> str:
        mark, study, template = found.groups()
        metrics = _kept(docs, study, page).metrics
        return _with_numbers(template, metrics, f"{page}: a number of {study}") + mark

    return _PROSE.sub(prose, _CLAIMS.sub(claims, _TABLE.sub(table, text)))


def _between(begin: str, rows: Iterable[str], end: str) -> str:
    return begin + "\n" + "\n".join(rows) + "\n\n" + end


def _kept(docs: Path, study: str, page: str) -> StudyResult:
    path = docs / "results" / f"{study}.json"
    result = read_result(path) if path.is_file() else None
    if not isinstance(result, StudyResult):
        raise ExhumeError(
            f"{page}: a table is made of {study}, which has no kept result; "
            f"exhume study run {study} --keep makes one"
        )
    return result


def _claimed(claims: Sequence[Claim]) -> Iterator[str]:
    """The rows of a table; what the papers say is left out where all claims are our own."""
    theirs = any(claim.paper for claim in claims)
    yield "| claim | paper | measured | |" if theirs else "| claim | measured | |"
    yield "|---|---|---|---|" if theirs else "|---|---|---|"
    for claim in claims:
        word = "holds" if claim.holds else f"**{claim.word}**"
        cells = [claim.statement, *([claim.paper] if theirs else []), claim.measured, word]
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _rows(line: str) -> Iterator[str]:
    """A line of the template for each of the names in its brackets."""
    found = _NAMES.search(line)
    if found is None:
        yield line
        return
    for each in found[1].split(";"):
        name, _, shown = each.strip().partition("=")
        row = line[: found.start()] + (shown or name) + line[found.end() :]
        yield re.sub(r"\*(?=[^{}]*:[^{}]*\})", name, row)  # in braces only


def _with_numbers(row: str, metrics: Mapping[str, float], where: str) -> str:
    def number(found: re.Match[str]) -> str:
        name, form = found[1], found[2]
        if name not in metrics:
            raise ExhumeError(f"{where} asks for {name}, which the result does not have")
        try:
            return format(metrics[name], form)
        except ValueError:
            raise ExhumeError(f"{where}: {form!r} is no format of a number") from None

    return _METRIC.sub(number, row)
