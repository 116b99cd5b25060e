"""The section of an attack that answers one reconstruction per target, beside the baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from exhume.core.contract import Reconstruction
from exhume.core.evidence import LineupRow
from exhume.core.results import AttackSpec, Section
from exhume.score.targets import TargetScores
from exhume.score.verdict import leak_of

__all__ = ["targets_section"]

_NOTHING: Mapping[str, float] = MappingProxyType({})


def targets_section(
    spec: AttackSpec,
    knows: Sequence[str],
    found: Reconstruction,
    scores: TargetScores,
    *,
    metrics: Mapping[str, float] = _NOTHING,
    notes: Sequence[str] = (),
    lineup: LineupRow | None = None,
    doubt: str = "",
) -> Section:
    """metrics: further ones, after the scores and the attack's own figures.

    lineup: of an audit, which judges by it; None: of a study, whose rate is the paper's.
    """
    measured = {name: errors.means() for name, errors in scores.baselines.items()}
    measured["nearest-neighbour oracle (knows the truth)"] = scores.oracle.means()
    return Section(
        spec,
        found.status,
        tuple(knows),
        {**scores.metrics, **found.observed, **metrics},
        scores.leak if lineup is None else leak_of(lineup),
        baselines=tuple({"name": name, **values} for name, values in measured.items()),
        cost=found.cost,
        notes=tuple(notes),
        lineup=lineup,
        doubt=doubt,
    )
