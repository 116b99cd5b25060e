"""What differs from each paper, on one page: the numbered lists of the studies' pages, put together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["deviations_in", "deviations_page"]

_HEADING = re.compile(r"^\*\*Deviations from [^*]*\*\*.*$|^#+ Deviations from .*$", re.MULTILINE)
_ITEM = re.compile(r"^\d+\. ")
_INTRO = """# Deviations from the papers

Where a study differs from its paper: in size, in method, in what is counted. The lists are those of the
studies' pages, put together by `exhume study papers`.
"""


def deviations_page(
    docs: Path, titles: Mapping[str, str], pages: Mapping[str, Sequence[str]]
) -> str:
    """titles: of the papers; pages: those that rerun each, in order."""
    lines = [_INTRO.rstrip()]
    for paper, title in titles.items():
        lines += ["", f"## {paper}: {title}"]
        for page in dict.fromkeys(pages[paper]):
            text = (docs / page).read_text(encoding="utf-8")
            found = deviations_in(text)
            if found:
                heading = text.splitlines()[0].removeprefix("# ")
                lines += ["", f"[{heading}]({page})", ""]
                lines += [f"{place}. {words}" for place, words in enumerate(found, 1)]
    return "\n".join([*lines, ""])


def deviations_in(text: str) -> list[str]:
    """The items of every numbered list under a heading "Deviations from …"."""
    found: list[str] = []
    for heading in _HEADING.finditer(text):
        for line in text[heading.end() :].strip("\n").splitlines():
            if _ITEM.match(line):
                found.append(_ITEM.sub("", line))
            elif line.startswith(" ") and found:
                found[-1] += f" {line.strip()}"
            else:
                break
    return found
