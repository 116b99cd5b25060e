"""Scoring: the only place besides victims where a Secret is opened."""
