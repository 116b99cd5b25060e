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
name, and what follows its "=" is shown in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from exhume.contract import ExhumeError
from exhume.results import StudyResult, read_result

__all__ = ["filled", "write_tables"]

_TABLE = re.compile(r"(<!-- table ([a-z0-9-]+)\n(.*?)\n-->\n)(.*?)(<!-- /table -->)", re.DOTALL)
_NAMES = re.compile(r"\[([^]]*)\](?!\()")  # not a link
_METRIC = re.compile(r"\{([^{}:]+):([^{}]+)\}")


def write_tables(docs: Path) -> list[Path]:
    """Fill the tables of every page; returns the pages that changed."""
    changed = []
    for page in sorted(docs.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = filled(text, docs, page.name)
        if new != text:
            page.write_text(new, encoding="utf-8")
            changed.append(page)
    return changed


def filled(text: str, docs: Path, page: str) -> str:
    """A page with its tables as the kept results have them."""

    def fill(found: re.Match[str]) -> str:
        begin, study, template, _, end = found.groups()
        kept = docs / "results" / f"{study}.json"
        result = read_result(kept) if kept.is_file() else None
        if not isinstance(result, StudyResult):
            raise ExhumeError(
                f"{page}: a table is made of {study}, which has no kept result; "
                f"exhume study run {study} --keep makes one"
            )
        rows = [
            _with_numbers(row, result.metrics, f"{page}: the table of {study}")
            for line in template.splitlines()
            for row in _rows(line)
        ]
        return begin + "\n" + "\n".join(rows) + "\n\n" + end

    return _TABLE.sub(fill, text)


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
