"""Features that the client of a split network sends."""
