"""Victims: data and training to a release and the secret behind it."""
