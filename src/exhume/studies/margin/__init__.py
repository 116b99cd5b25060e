"""Weights alone (Buzaglo23)."""
