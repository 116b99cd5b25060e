"""Weights that are trained the user's way."""
