"""Where the numbers of a page come from: a hook of mkdocs.

A page whose block of commands runs studies ends with a line that says which of them have a kept result
(`docs/results/NAME.json`, by `exhume study run NAME --keep`) and which numbers were typed, and with which
version. The line `::: origins` becomes the list of all these pages.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUN = re.compile(r"exhume study run ([a-z][a-z0-9-]+)")
LIST = re.compile(r"^::: origins$", re.MULTILINE)
APART = ("index.md", "papers.md", "scale-out.md")  # they name studies of other pages


def on_page_markdown(markdown, page, **_):
    """Called by mkdocs for every page."""
    text = LIST.sub(lambda _: listed(), markdown)
    return text + noted(page.file.src_uri)


def studies_of(name: str) -> tuple[list[str], list[str]]:
    """Studies that a page runs: those whose results are kept, and the others."""
    page = DOCS / name
    if "/" in name or name in APART or not page.exists():
        return [], []
    found = sorted(set(RUN.findall(page.read_text(encoding="utf-8"))))
    kept = [study for study in found if (DOCS / "results" / f"{study}.json").exists()]
    return kept, [study for study in found if study not in kept]


def noted(name: str) -> str:
    """The last lines of a page; "" for one without studies."""
    kept, typed = studies_of(name)
    said = [f"[kept result](results/{study}.json) of `{study}`" for study in kept]
    if typed:
        names = ", ".join(f"`{study}`" for study in typed)
        said.append(f"typed from a run of {names} with exhume {version()}, without a kept result")
    return f"\n\n---\n\n*[Numbers](numbers.md) on this page: {'; '.join(said)}.*\n" if said else ""


def listed() -> str:
    """A table of every page with studies."""
    rows = []
    for page in sorted(DOCS.glob("*.md")):
        kept, typed = studies_of(page.name)
        if kept or typed:
            title = page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
            files = ", ".join(f"[{study}](results/{study}.json)" for study in kept)
            rest = ", ".join(typed) + f" ({version()})" if typed else ""
            rows.append(f"| [{title}]({page.name}) | {files} | {rest} |")
    return "\n".join(
        ["| page | kept results | typed, and with which version |", "|---|---|---|", *rows]
    )


def version() -> str:
    """The one that every typed number was made with."""
    source = (ROOT / "src" / "exhume" / "studies" / "papers.py").read_text(encoding="utf-8")
    return re.search(r'^MADE_WITH = "(.+?)"', source, re.MULTILINE)[1]
