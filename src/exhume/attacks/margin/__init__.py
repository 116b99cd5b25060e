"""Attacks on the weights of a network that was trained far beyond zero error (Buzaglo23)."""
