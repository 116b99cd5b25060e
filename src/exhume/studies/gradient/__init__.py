"""Gradients and updates (Wang23)."""
