"""Inputs from the features that a client sends to a server (Ensembler24)."""
