"""Which records leak most, and what they have in common: margin, gradient, being unlike the others.

A factor explains nothing by being large in one record. It counts as a reason only where, over all records,
its rank correlation with leaking is certainly not 0; then a record whose value is among the fifth at the
risky end has it as a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import Key
from exhume.score.intervals import Correlation, rank_correlation
from exhume.score.margin import GOOD

FACTORS = {  # the tensor in the evidence: its name, and the words for much and little of it
    "margins": ("margin", "a larger margin", "a smaller margin"),
    "gradient_norms": ("gradient norm", "a larger gradient", "a smaller gradient"),
    "outliers": ("outlier score", "more unlike the others", "more typical than the others"),
}
_RISKY = 0.8  # share of the records that a reason must exceed
_NEAREST = 5
_FEWEST = 10  # records from which on a correlation is looked for


@dataclass(frozen=True, eq=False)
class Risk:
    """Every scored record, in the order of the evidence."""

    rows: Tensor  # (t,) place in the data, from 0
    leak: Tensor  # (t,) larger: leaks more
    back: Tensor  # (t,) bool: brought back, by the rule of the verdict
    measure: str  # what `leak` is, in words
    factors: Mapping[str, Tensor]  # (t,) each, by its name in FACTORS
    correlations: Mapping[str, Correlation]  # with `leak`

    @property
    def order(self) -> list[int]:
        """Those that leak most first."""
        found: list[int] = self.leak.argsort(descending=True, stable=True).tolist()
        return found

    def why(self, index: int) -> str:
        """Every factor that goes with leaking and is at its risky end in this record."""
        reasons = []
        for name, correlation in self.correlations.items():
            if correlation.low <= 0 <= correlation.high:
                continue
            values = self.factors[name]
            _, more, less = FACTORS[name]
            rising = correlation.rho > 0
            beyond = values < values[index] if rising else values > values[index]
            share = float(beyond.double().sum()) / max(1, len(values) - 1)
            if share >= _RISKY:
                reasons.append(f"{more if rising else less} than {share:.0%} of the records")
        return "; ".join(reasons)

    def sentences(self) -> list[str]:
        """What goes with leaking, over all records."""
        sentences = []
        for name, found in self.correlations.items():
            title = FACTORS[name][0]
            if found.low <= 0 <= found.high:
                sentences.append(f"The {title} does not tell who leaks (rank correlation {found}).")
            else:
                way = "larger" if found.rho > 0 else "smaller"
                sentences.append(
                    f"The {way} its {title}, the more a record leaks (rank correlation {found})."
                )
        return sentences


def risk_of(evidence: Mapping[str, Tensor]) -> Risk | None:
    """Who leaks, by a scored attack's evidence; None where that does not say which records it is about.

    Leaking is the error of another record's answer (of the label) ÷ this one's, or structural similarity. Not
    measured against the nearest held record, as the verdict does:
    that one is far from whatever is unlike the others, so unlike records would seem to leak by definition.
    """
    if "rows" not in evidence:
        return None
    if "oracle_mse" in evidence:
        leak = evidence["null_mse"].double() / evidence["mse"].double().clamp_min(1e-12)
        back = evidence["mse"] < evidence["oracle_mse"]
        measure = "error of another record's answer ÷ this one's"
    elif "cosine" in evidence:
        leak, back = evidence["cosine"].double(), evidence["rank"] == 1
        measure = "cosine with what came back, columns scaled alike"
    else:
        leak = evidence["ssim"].double()
        back, measure = leak > GOOD, "structural similarity (SSIM)"
    factors = {name: evidence[name].double() for name in FACTORS if name in evidence}
    correlations, key = {}, Key.from_seed(0).fold("at risk")  # list and page say the same
    if len(leak) >= _FEWEST:
        correlations = {
            name: rank_correlation(values, leak, key.fold(name)) for name, values in factors.items()
        }
    return Risk(evidence["rows"], leak, back, measure, factors, correlations)


def outlier_scores(records: Tensor, others: Tensor) -> Tensor:
    """(t, *shape), (n, *shape) to (t,): mean distance to the five nearest others, over its median.

    A record that is among the others itself does not count as its own neighbour.
    """
    flat, pool = records.flatten(1).double(), others.flatten(1).double()
    parts = []
    for part in torch.split(flat, 256):
        apart = torch.cdist(part, pool)
        apart = apart.masked_fill(apart == 0, torch.inf)  # itself, and copies of it
        near = apart.topk(min(_NEAREST, len(pool)), dim=1, largest=False).values
        finite = near.isfinite()
        parts.append(near.where(finite, torch.zeros(())).sum(1) / finite.sum(1).clamp_min(1))
    distances = torch.cat(parts)
    return distances / distances.median().clamp_min(1e-12)
