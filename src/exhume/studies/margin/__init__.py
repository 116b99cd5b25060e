"""Weights alone (Buzaglo23)."""

from exhume.studies.margin import (
    classes,
    defence,
    large,
    multiclass,
    ordinary,
    search,
    weight_decay,
)

__all__ = ["STUDIES"]

STUDIES = (
    *(
        study.STUDY
        for study in (multiclass, classes, weight_decay, defence, search, large, ordinary)
    ),
    large.THOUSAND,
)
