"""The paper's numbers, to be printed beside ours: Titsias et al. (2021), arXiv:2009.03228."""

# Sinusoids: (method, inner steps at test; None where there are none) -> K -> (MSE, 95% interval over 10 repeats).
TABLE_1: dict[tuple[str, int | None], dict[int, tuple[float, float]]] = {
    ("maml", 1): {5: (0.600, 0.662), 10: (0.359, 0.015), 20: (0.228, 0.018)},
    ("maml", 5): {5: (0.311, 0.013), 10: (0.12, 0.006), 20: (0.06, 0.004)},
    ("maml", 10): {5: (0.280, 0.013), 10: (0.096, 0.005), 20: (0.043, 0.003)},
    ("stochastic-maml", 1): {5: (0.662, 0.04), 10: (0.382, 0.021), 20: (0.244, 0.014)},
    ("stochastic-maml", 5): {5: (0.352, 0.035), 10: (0.141, 0.014), 20: (0.073, 0.006)},
    ("stochastic-maml", 10): {5: (0.317, 0.34), 10: (0.116, 0.012), 20: (0.054, 0.004)},
    ("gp-vib", None): {5: (0.02, 0.014), 10: (0.002, 0.001), 20: (0.001, 0.001)},
    ("gp-maml", 1): {5: (0.058, 0.054), 10: (0.002, 0.001), 20: (0.002, 0.002)},
}
