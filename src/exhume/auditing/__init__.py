"""Audits: what is released, by which attacks, scored and written down. One file for each kind of release."""

from exhume.auditing.brief import Brief
from exhume.auditing.checkpoint.attack import WeightsSettings, audit_weights
from exhume.auditing.findings import Audit, Findings
from exhume.auditing.run import audit
from exhume.auditing.training.game import (
    DEVIATIONS,
    Game,
    audit_exact,
    audit_informed,
    audit_private,
    dealt,
    informed_game,
)

__all__ = [
    "DEVIATIONS",
    "Audit",
    "Brief",
    "Findings",
    "Game",
    "WeightsSettings",
    "audit",
    "audit_exact",
    "audit_informed",
    "audit_private",
    "audit_weights",
    "dealt",
    "informed_game",
]
