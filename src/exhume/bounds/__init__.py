"""What no attack can exceed: reconstruction robustness (ReRo) of private training, and its prior."""
