"""What an audit hands back."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from exhume.core.contract import ExhumeError
from exhume.core.results import Rate, Result, Verdict
from exhume.store.shards import read_shard

_MEASURES = ("mse", "mae", "ncc", "ssim", "cosine", "lpips")  # of one record each, in the evidence


@dataclass(frozen=True)
class TargetRecord:
    """A private record, and how like it the strongest attack's answer is."""

    row: int  # its place in the records; where that is not known, among the targets
    identified: bool | None  # before all strangers; None: it stood in no line-up
    rank: int | None  # in its line-up, 1 is the first; 0: it was left out
    similarity: Mapping[str, float] = field(default_factory=dict)  # by measure


@dataclass(frozen=True, repr=False)
class Audit:
    """A finished audit: its result, and where everything lies. In a notebook it shows its report.

    verdict     word, sentence, detail
    leak        of the strongest attack: successes, trials, low, high
    metrics     of that attack, by name; where nothing could be scored, of the first that ran
    advice      fixes that were tried, best first, in words
    records     for each target: row, identified, rank, similarity by measure; of the strongest attack
    beside      sentences on adversaries who change what is sent: no part of the verdict
    alarm       in words, where an attack did better than the claimed privacy allows
    result      everything in result.json: attacks, plan, fixes, releases, charts, …
    folder, report, redacted    paths
    """

    result: Result
    folder: Path
    report: Path
    redacted: Path | None = None  # a version without records, where it was asked for

    @property
    def verdict(self) -> Verdict:
        return self.result.verdict

    @property
    def leak(self) -> Rate | None:
        return self.result.leak

    @property
    def alarm(self) -> str:
        return self.result.alarm

    @property
    def metrics(self) -> Mapping[str, float]:
        best = self.result.strongest or next((s for s in self.result.attacks if s.metrics), None)
        return best.metrics if best else {}

    @property
    def records(self) -> tuple[TargetRecord, ...]:
        """None where the strongest attack was not scored record by record."""
        best = self.result.strongest
        if best is None or not best.evidence:
            return ()
        evidence = read_shard(self.folder / best.evidence)
        ranks = evidence["rank"].tolist() if "rank" in evidence else None
        measured = {n: evidence[n].tolist() for n in _MEASURES if n in evidence}
        counts = {len(values) for values in measured.values()} | ({len(ranks)} if ranks else set())
        if len(counts) != 1:
            return ()
        (count,) = counts
        rows = evidence["rows"].tolist() if "rows" in evidence else list(range(count))
        return tuple(
            TargetRecord(
                rows[i],
                None if ranks is None else ranks[i] == 1,
                None if ranks is None else ranks[i],
                {name: values[i] for name, values in measured.items()},
            )
            for i in range(count)
        )

    def to_pandas(self) -> Any:
        """`records` as a DataFrame, a column for each measure."""
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError:
            raise ExhumeError("to_pandas needs pandas: pip install pandas") from None
        rows = [
            (one.row, one.identified, one.rank, *one.similarity.values()) for one in self.records
        ]
        measures = tuple(self.records[0].similarity) if rows else ()
        return pandas.DataFrame(rows, columns=["row", "identified", "rank", *measures])

    @property
    def advice(self) -> tuple[str, ...]:
        return tuple(row.sentence for row in self.result.fixes)

    @property
    def beside(self) -> tuple[str, ...]:
        return tuple(one.beside for one in self.result.attacks if one.beside)

    def __str__(self) -> str:
        rows = [
            (s.spec.name, str(s.leak) if s.leak else s.status.outcome.value)
            for s in self.result.attacks
        ]
        width = max((len(name) for name, _ in rows), default=0)
        table = [f"  {name:{width}}  {came_back}" for name, came_back in rows]
        return "\n".join([self.verdict.sentence, *self.beside, *table, f"report: {self.report}"])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        page = html.escape(self.report.read_text(encoding="utf-8"), quote=True)
        where = html.escape(self.report.resolve().as_uri(), quote=True)
        return (
            f"<p><b>{html.escape(self.verdict.sentence)}</b></p>"
            f"<pre>{html.escape(str(self))}</pre>"
            f'<p><a href="{where}">{html.escape(str(self.report))}</a></p>'
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" '
            'style="width:100%;height:640px;border:1px solid #ccc"></iframe>'
        )
