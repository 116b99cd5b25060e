"""Weights alone (Buzaglo23)."""

from exhume.studies.margin import (
    classes,
    defence,
    large,
    multiclass,
    ordinary,
    weight_decay,
)

__all__ = ["STUDIES"]

STUDIES = (
    *(study.STUDY for study in (multiclass, classes, weight_decay, defence, large, ordinary)),
    large.THOUSAND,
)
