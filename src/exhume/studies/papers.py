"""Papers and us: every figure, table and claim of the five papers, theirs beside ours, as one page.

`docs/papers.toml` lists what the papers show and which study reruns it; what a paper says of it, and what
would count as holding, stands in the study's `claims.toml`. Where a result is kept
(`docs/results/NAME.json`, by `exhume study run NAME --keep`), words and numbers are its own; else they are
typed from the study's page, and the row says so. A row counts only claims that the paper makes; other kept
claims are listed last.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from exhume.core.contract import ExhumeError
from exhume.core.results import Claim, StudyResult, read_result
from exhume.studies.claims import papers_of

HOLDS, PART, UNDECIDED = "holds", "holds in part", "undecided"
FAILS, NOT_RUN = "does not hold", "not run"
WORDS = (HOLDS, PART, UNDECIDED, FAILS, NOT_RUN)
MADE_WITH = "0.1.0"  # the version that every typed number was made with
_BEGIN, _END = "<!-- papers: made by `exhume study papers` -->", "<!-- /papers -->"
_INTRO = f"""# Papers and us

Every figure, table and claim of the five papers that exhume reruns, theirs beside ours. This page is made by
`exhume study papers` from the results that studies keep; a test fails if it is stale. A row marked † is typed
from its page (exhume {MADE_WITH}) and is to be rerun with `--keep`. *Undecided*: the interval contains both
sides of what would count as holding. Sizes are smaller than the papers', so *does not hold* means: not at
this size; the papers' sizes are `--scale paper`. Excerpts of the papers were read, not their whole text: what
a paper says is what these say. What else differs from each paper: [deviations](deviations.md).
"""


@dataclass(frozen=True)
class Row:
    """One thing that a paper shows, as the data file has it."""

    paper: str
    item: str
    study: str
    page: str
    size: str
    claims: tuple[str, ...] = ()  # ids; * stands for anything; none: all of the study's
    word: str = ""  # typed
    measured: str = ""
    scale: str = "cpu"

    @property
    def says(self) -> str:
        """What the paper says, by the claims that the row names."""
        said = papers_of(self.study).items()
        return "; ".join(dict.fromkeys(text for name, text in said if self.names(name)))

    def names(self, claim: str) -> bool:
        return any(fnmatch(claim, one) or fnmatch(one, claim) for one in self.claims or ("*",))


@dataclass(frozen=True, eq=False)
class Papers:
    titles: Mapping[str, str]
    rows: tuple[Row, ...]
    results: Mapping[str, StudyResult]

    def word(self, row: Row) -> str:
        """Whether it holds, by the claims of the kept result; without one as typed."""
        claims = self.claims(row)
        if claims is None:
            return row.word or NOT_RUN
        if not claims:
            return NOT_RUN
        words = {claim.word for claim in claims}
        if len(words) == 1:
            return words.pop()
        return PART if HOLDS in words else UNDECIDED

    def measured(self, row: Row) -> str:
        claims = self.claims(row)
        if claims is None:
            return row.measured
        held = sum(claim.holds is True for claim in claims)
        several = f"{held} of {len(claims)} claims hold; " if len(claims) > 1 else ""
        return several + "; ".join(f"{claim.id}: {claim.measured}" for claim in claims)

    def claims(self, row: Row) -> list[Claim] | None:
        """Those of the kept result that the paper makes; None: there is none."""
        if row.study not in self.results:
            return None
        claims = self.results[row.study].claims
        return [claim for claim in claims if claim.paper and row.names(claim.id)]

    def others(self) -> Iterator[tuple[StudyResult, list[Claim]]]:
        """Kept results, and those of their claims that no row names."""
        for name, result in self.results.items():
            named = {c.id for row in self.rows if row.study == name for c in self.claims(row) or ()}
            rest = [claim for claim in result.claims if claim.id not in named]
            if rest:
                yield result, rest


def read_papers(docs: Path) -> Papers:
    """The data file and every kept result beside it."""
    path = docs / "papers.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExhumeError(f"{path}: cannot be read ({error})") from None
    titles = {name: about["title"] for name, about in content["papers"].items()}
    rows = tuple(_row(one, titles, path) for one in content["row"])
    results: dict[str, StudyResult] = {}
    for kept in sorted((docs / "results").glob("*.json")):
        result = read_result(kept)
        if isinstance(result, StudyResult):
            results[result.study] = result
    return Papers(titles, rows, results)


def _row(content: Mapping[str, Any], titles: Mapping[str, str], path: Path) -> Row:
    known = {each.name for each in fields(Row)}
    if unknown := sorted(set(content) - known):
        raise ExhumeError(f"{path}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    row = Row(**{**content, "claims": tuple(content.get("claims", ()))})
    if row.paper not in titles:
        raise ExhumeError(
            f"{path}: {row.item}: paper {row.paper!r} is not one of {', '.join(titles)}"
        )
    if row.word and row.word not in WORDS:
        raise ExhumeError(f"{path}: {row.item}: word {row.word!r} is not one of {', '.join(WORDS)}")
    return row


# The page


def page_of(papers: Papers) -> str:
    lines = [
        _INTRO.rstrip(),
        "",
        *_table(["paper", *WORDS], _counts(papers)),
    ]
    for name, title in papers.titles.items():
        rows = [row for row in papers.rows if row.paper == name]
        lines += ["", f"## {name}: {title}", ""]
        lines += _table(
            ["what", "the paper says", "", "ours", "size", "command"],
            [_cells(papers, row) for row in rows],
        )
    lines += ["", "## Beyond the papers", ""]
    lines += ["Claims of kept results that no row above names."]
    for result, claims in papers.others():
        lines += [
            "",
            f"**{result.title}** (`exhume study run {result.study} --scale {result.scale}`)",
            "",
        ]
        lines += _table(
            ["claim", "", "measured"],
            [[c.statement, _marked(c.word), str(c.measured)] for c in claims],
        )
    return "\n".join([*lines, ""])


def _cells(papers: Papers, row: Row) -> list[str]:
    kept = papers.results.get(row.study)
    typed = "" if kept or papers.word(row) == NOT_RUN else " †"
    scale = row.scale if kept is None else kept.scale
    return [
        f"[{row.item}]({row.page})",
        row.says,
        _marked(papers.word(row)) + typed,
        papers.measured(row),
        row.size,
        f"`exhume study run {row.study} --scale {scale}`",
    ]


def _marked(word: str) -> str:
    return word if word in (HOLDS, NOT_RUN) else f"**{word}**"


def _counts(papers: Papers) -> list[list[str]]:
    rows = []
    for name in papers.titles:
        words = [papers.word(row) for row in papers.rows if row.paper == name]
        rows.append([name, *(str(words.count(word)) for word in WORDS)])
    every = [papers.word(row) for row in papers.rows]
    return [*rows, ["all", *(str(every.count(word)) for word in WORDS)]]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *escaped)]


# All of them


def due(papers: Papers) -> dict[str, float | None]:
    """Every study that a row needs, with the seconds that its kept result took; the cheapest first.

    Those of which nothing is kept take a time that nobody knows, and come last.
    """
    names = dict.fromkeys(row.study for row in papers.rows)
    took = {
        name: papers.results[name].wall_seconds if name in papers.results else None
        for name in names
    }
    return dict(sorted(took.items(), key=lambda item: (item[1] is None, item[1] or 0.0)))


# The README


def summary_of(papers: Papers) -> str:
    rows = _counts(papers)
    text = (
        "What the five papers show, rerun here: [every figure, table and claim](docs/papers.md), ours beside "
        "theirs, with size and command."
    )
    return "\n".join([_BEGIN, text, "", *_table(["paper", *WORDS], rows), _END])


def with_summary(readme: str, papers: Papers) -> str:
    """The README with its summary made anew, between its two marks."""
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ExhumeError(f"README.md: the marks {_BEGIN} and {_END} are missing")
    return f"{before}{summary_of(papers)}{after}"


def write_papers(docs: Path) -> list[Path]:
    """Write docs/papers.md and docs/deviations.md, and the summary into the README beside docs."""
    papers, readme = read_papers(docs), docs.parent / "README.md"
    texts = {
        docs / "papers.md": page_of(papers),
        docs / "deviations.md": deviations_of(papers, docs),
        readme: with_summary(readme.read_text(encoding="utf-8"), papers),
    }
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)


def deviations_of(papers: Papers, docs: Path) -> str:
    pages = {name: [r.page for r in papers.rows if r.paper == name] for name in papers.titles}
    return deviations_page(docs, papers.titles, pages)


# What differs from each paper, on one page: the numbered lists of the studies' pages, put together.


_HEADING = re.compile(r"^\*\*Deviations from [^*]*\*\*.*$|^#+ Deviations from .*$", re.MULTILINE)
_DEVIATION = re.compile(r"^\d+\. ")
_DEVIATIONS_INTRO = """# Deviations from the papers

Where a study differs from its paper: in size, in method, in what is counted. The lists are those of the
studies' pages, put together by `exhume study papers`.
"""


def deviations_page(
    docs: Path, titles: Mapping[str, str], pages: Mapping[str, Sequence[str]]
) -> str:
    """titles: of the papers; pages: those that rerun each, in order."""
    lines = [_DEVIATIONS_INTRO.rstrip()]
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
            if _DEVIATION.match(line):
                found.append(_DEVIATION.sub("", line))
            elif line.startswith(" ") and found:
                found[-1] += f" {line.strip()}"
            else:
                break
    return found
