"""Other people's frameworks: what they train or serve, seen by ours."""
