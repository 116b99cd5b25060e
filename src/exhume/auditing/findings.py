"""What an audit hands back."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exhume.core.results import Rate, Result, Verdict

__all__ = ["Audit"]


@dataclass(frozen=True)
class Audit:
    """A finished audit: its result, and where everything lies. In a notebook it shows its report.

    verdict     word, sentence, detail
    leak        of the strongest attack: successes, trials, low, high
    metrics     of that attack, by name; where nothing could be scored, of the first that ran
    advice      fixes that were tried, best first, in words
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

    def _repr_html_(self) -> str:
        page = html.escape(self.report.read_text(encoding="utf-8"), quote=True)
        return (
            f"<p><b>{html.escape(self.verdict.sentence)}</b></p>"
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" '
            'style="width:100%;height:640px;border:1px solid #ccc"></iframe>'
        )
