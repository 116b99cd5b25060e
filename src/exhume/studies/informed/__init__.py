"""The informed adversary (Balle22, Mnemonist23)."""

from exhume.studies.informed import (
    activations,
    certificates,
    cifar10,
    dp,
    epochs,
    gallery,
    glm,
    init,
    mnemonist,
    mnist,
    reconstructors,
    start,
    through_training,
    transfer,
    zero_gradients,
)

__all__ = ["STUDIES"]

STUDIES = (
    mnist.STUDY,
    reconstructors.STUDY,
    through_training.STUDY,
    init.STUDY,
    glm.STUDY,
    mnemonist.STUDY,
    activations.STUDY,
    dp.STUDY,
    epochs.STUDY,
    start.STUDY,
    zero_gradients.STUDY,
    transfer.STUDY,
    gallery.STUDY,
    cifar10.STUDY,
    certificates.STUDY,
)
