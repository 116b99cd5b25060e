"""The kinds of release there are, in the order of the page."""

from __future__ import annotations

from exhume.auditing.checkpoint.release import read_checkpoint_release
from exhume.auditing.linear.release import read_linear
from exhume.auditing.release import Room
from exhume.auditing.split.release import read_split_release
from exhume.auditing.training.release import read_training
from exhume.auditing.updates.release import read_updates

__all__ = ["ROOMS"]

ROOMS = (
    Room("weights", "An informed adversary against a released classifier", read_training),
    Room("checkpoint", "Training images from released weights alone", read_checkpoint_release),
    Room("update", "What the updates of clients give away", read_updates),
    Room("split", "What the features of a split network give away", read_split_release),
    Room("fitted", "What a fitted linear model gives away", read_linear),
)
