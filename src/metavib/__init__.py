"""Few-shot learning with honest uncertainty."""
