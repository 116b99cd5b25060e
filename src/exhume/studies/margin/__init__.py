"""Weights alone (Buzaglo23)."""

from exhume.studies.margin import (
    classes,
    large,
    multiclass,
    ordinary,
    weight_decay,
)

__all__ = ["STUDIES"]

STUDIES = (
    *(study.STUDY for study in (multiclass, classes, weight_decay, large, ordinary)),
    large.THOUSAND,
)
