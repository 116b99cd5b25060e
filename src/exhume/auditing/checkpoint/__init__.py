"""A file of weights, as it is."""
