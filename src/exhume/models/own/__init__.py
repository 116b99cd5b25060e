"""The user's own networks."""
