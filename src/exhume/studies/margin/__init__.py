"""Weights alone (Buzaglo23)."""

from exhume.studies.margin import (
    classes,
    defence,
    large,
    multiclass,
    search,
    weight_decay,
)

__all__ = ["STUDIES"]

STUDIES = (
    multiclass.STUDY,
    classes.STUDY,
    weight_decay.STUDY,
    defence.STUDY,
    search.STUDY,
    large.STUDY,
)
