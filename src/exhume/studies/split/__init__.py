"""Split inference (Ensembler24)."""
