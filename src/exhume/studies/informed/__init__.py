"""The informed adversary (Balle22, Mnemonist23)."""
