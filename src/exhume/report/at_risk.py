"""The records that leak most, with thumbnails and reasons: a table for the full page only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup
from torch import Tensor

from exhume.report.figures import img, strip
from exhume.report.words import number
from exhume.score.risk import FACTORS, risk_of

__all__ = ["RiskRow", "RiskTable", "risk_table"]

_SHOWN = 12


@dataclass(frozen=True)
class RiskRow:
    row: int
    record: Markup
    found: Markup
    leak: str
    back: bool
    factors: list[str]
    why: str


@dataclass(frozen=True)
class RiskTable:
    heads: list[str]  # of the factors
    rows: list[RiskRow]
    total: int


def risk_table(evidence: Mapping[str, Tensor]) -> RiskTable | None:
    """The first few; None where the evidence does not say which records it is about."""
    risk = risk_of(evidence)
    if risk is None or "targets" not in evidence:
        return None
    rows = [
        RiskRow(
            int(risk.rows[index]),
            _drawn(evidence["targets"][index], f"Record {int(risk.rows[index])}"),
            _drawn(evidence["reconstructions"][index], "What the attack brought back"),
            number(float(risk.leak[index])),
            bool(risk.back[index]),
            [number(float(values[index])) for values in risk.factors.values()],
            risk.why(index),
        )
        for index in risk.order[:_SHOWN]
    ]
    heads = [FACTORS[name][0].capitalize() for name in risk.factors]
    return RiskTable(heads, rows, len(risk.rows))


def _drawn(record: Tensor, alt: str) -> Markup:
    if record.ndim == 1:
        low, high = record.float().min(), record.float().max()
        return strip((record.float() - low) / (high - low).clamp_min(1e-12), label=alt)
    return img(record, alt, Markup(' width="48"'), side=64)
