"""Gradients and updates (Wang23)."""

from exhume.studies.gradient import batch, networks, tensor, texts

__all__ = ["STUDIES"]

STUDIES = (
    tensor.STUDY,
    batch.STUDY,
    batch.START,
    batch.QUERY,
    batch.DEFENCES,
    tensor.NOISE,
    batch.DEEP,
    texts.STUDY,
    networks.STUDY,
)
