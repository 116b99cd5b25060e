"""Split inference (Ensembler24)."""

from exhume.studies.split import (
    ensembler_cifar10,
    ensembler_cifar100,
    ensembler_faces,
    ensembler_selector,
    knowledge,
    points,
    text,
)

__all__ = ["STUDIES"]

STUDIES = (
    ensembler_cifar10.STUDY,
    points.STUDY,
    knowledge.STUDY,
    text.STUDY,
    ensembler_cifar100.STUDY,
    ensembler_faces.STUDY,
    ensembler_selector.STUDY,
)
