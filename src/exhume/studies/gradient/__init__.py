"""Gradients and updates (Wang23)."""

from exhume.studies.gradient import (
    batch,
    client,
    deep,
    defences,
    query,
    start,
    tensor,
    tokens,
)

__all__ = ["STUDIES"]

STUDIES = (
    tensor.STUDY,
    batch.STUDY,
    start.STUDY,
    query.STUDY,
    defences.STUDY,
    deep.STUDY,
    client.STUDY,
    tokens.STUDY,
)
