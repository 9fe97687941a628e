"""The paper's tables and figures: which runs they need, what was published, and how ours compare."""
