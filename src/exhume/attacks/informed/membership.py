"""Membership by loss: was this record among the training records? The simpler question of Balle22, Fig. 10.

A model has a lower loss on what it was trained on. That is a score, not a reconstruction, so these are
functions; `score/membership.py` says how well the score separates models trained with the record from
models trained without it.
"""

from __future__ import annotations

from torch import Tensor

from exhume.core.contract import Records
from exhume.models.glm import losses
from exhume.models.mlp import MLP
from exhume.train.recipe import check_fits
from exhume.train.stacked import logits


def loss_of(mlp: MLP, parameters: Tensor, records: Records) -> Tensor:
    """(s, p) models and n records to the cross-entropy of each, (s, n), in fp64."""
    check_fits(mlp, records)
    signal = logits(mlp, parameters.double(), records.inputs.double())
    return losses(signal, records.labels)


def membership_scores(mlp: MLP, parameters: Tensor, records: Records) -> Tensor:
    """(s, n): minus the loss, so that larger speaks for membership.

    Sees: weights of s models. Assumes: the architecture, and the record asked about with its label.
    """
    return -loss_of(mlp, parameters, records)
