"""A fitted linear model."""
