"""Audits: what is released, by which attacks, scored and written down. One room for each kind of release."""

from exhume.auditing.checkpoint.findings import margin_findings
from exhume.auditing.findings import Audit
from exhume.auditing.plan import Plan
from exhume.auditing.run import audit, plan
from exhume.auditing.training.game import (
    DEVIATIONS,
    Game,
    audit_exact,
    audit_informed,
    audit_private,
    informed_game,
    split_roles,
)
from exhume.results import Findings

__all__ = [
    "DEVIATIONS",
    "Audit",
    "Findings",
    "Game",
    "Plan",
    "audit",
    "audit_exact",
    "audit_informed",
    "audit_private",
    "informed_game",
    "margin_findings",
    "plan",
    "split_roles",
]
