"""The run folder and the self-contained page drawn from it."""
