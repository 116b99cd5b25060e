"""Defences: a way of training, or a release, to a safer one. Strength zero is the identity."""
