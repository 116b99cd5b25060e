"""Training: one model, or thousands of small ones side by side."""
