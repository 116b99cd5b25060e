"""Audits: what is released, by which attacks, scored and written down. One room for each kind of release."""

from exhume.auditing.checkpoint.findings import margin_findings
from exhume.auditing.findings import Audit
from exhume.auditing.plan import Plan
from exhume.auditing.run import audit, plan
from exhume.auditing.training.game import (
    CLOSED_FORM,
    DEVIATIONS,
    Game,
    attack_targets,
    informed_game,
    split_roles,
)
from exhume.core.results import Findings

__all__ = [
    "CLOSED_FORM",
    "DEVIATIONS",
    "Audit",
    "Findings",
    "Game",
    "Plan",
    "attack_targets",
    "audit",
    "informed_game",
    "margin_findings",
    "plan",
    "split_roles",
]
