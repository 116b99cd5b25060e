"""Gradients and updates (Wang23)."""

from exhume.studies.gradient import (
    batch,
    deep,
    defences,
    networks,
    noise,
    query,
    start,
    tensor,
    tokens,
)

__all__ = ["STUDIES"]

STUDIES = tuple(
    study.STUDY for study in (tensor, batch, start, query, defences, noise, deep, tokens, networks)
)
