"""Attacks: one idea of one paper, one file. None of them can receive a Secret."""
