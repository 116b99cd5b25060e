"""Split inference (Ensembler24)."""

from exhume.studies.split import (
    channel,
    ensembler_selector,
    ensembler_tables,
    knowledge,
    points,
    repairs,
    text,
)

__all__ = ["STUDIES"]

STUDIES = (
    ensembler_tables.CIFAR10,
    points.STUDY,
    knowledge.STUDY,
    text.STUDY,
    ensembler_tables.CIFAR100,
    ensembler_tables.FACES,
    ensembler_selector.STUDY,
    channel.STUDY,
    repairs.STUDY,
)
