"""How a step is run fast: compiled, recorded, shared out among processes."""
