"""Records inside the span of a gradient."""
