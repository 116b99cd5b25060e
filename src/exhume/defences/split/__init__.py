"""Ways to train a split network so that what the client sends gives less away (Ensembler24)."""
