"""How the service does under load and under faults: `python -m benchmarks serve`."""
