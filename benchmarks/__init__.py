"""How fast, how much memory, and against whom: one command prints the tables (`python -m benchmarks`)."""
