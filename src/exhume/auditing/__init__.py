"""Audits: what is released, by which attacks, scored and written down. One file for each kind of release."""

from exhume.auditing.informed import (
    DEVIATIONS,
    Audit,
    Findings,
    Game,
    audit,
    audit_exact,
    audit_informed,
    audit_private,
    dealt,
    informed_game,
)
from exhume.auditing.weights import WeightsSettings, audit_weights

__all__ = [
    "DEVIATIONS",
    "Audit",
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
