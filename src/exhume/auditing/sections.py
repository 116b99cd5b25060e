"""The section of an attack that answers one reconstruction per target, beside the baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from exhume.contract import Reconstruction
from exhume.results import AttackSpec, Section
from exhume.score.targets import TargetScores

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
) -> Section:
    """metrics: further ones, after the scores and the attack's own figures."""
    measured = {name: errors.means() for name, errors in scores.baselines.items()}
    measured["nearest-neighbour oracle (knows the truth)"] = scores.oracle.means()
    return Section(
        spec,
        found.status,
        tuple(knows),
        {**scores.metrics, **found.observed, **metrics},
        scores.leak,
        baselines=tuple({"name": name, **values} for name, values in measured.items()),
        cost=found.cost,
        notes=tuple(notes),
    )
