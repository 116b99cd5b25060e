"""Networks as values."""
