"""The informed adversary: knows all training records but one (Balle22, Mnemonist23)."""
