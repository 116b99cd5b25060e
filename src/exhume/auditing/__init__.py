"""Audits: what is released, by which attacks, scored and written down. A file for each kind of release."""

from exhume.auditing.findings import Audit
from exhume.auditing.kinds.checkpoint_findings import margin_findings
from exhume.auditing.kinds.training import CLOSED_FORM, DEVIATIONS, attack_targets
from exhume.auditing.kinds.training_game import Game, informed_game, split_roles
from exhume.auditing.memory import in_memory
from exhume.auditing.plan import Plan
from exhume.auditing.run import audit, plan
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
    "in_memory",
    "informed_game",
    "margin_findings",
    "plan",
    "split_roles",
]
