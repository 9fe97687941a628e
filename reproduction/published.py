"""The paper's numbers, to be printed beside ours: Titsias et al. (2021), arXiv:2009.03228."""

# Sinusoids: (method, inner steps at test; None where there are none) -> K -> (MSE, 95% interval over 10 repeats).
TABLE_1_REPEATS = 10
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

# 5-way classification: row -> accuracy in % and SD over 3 trainings, in the order of TABLE_2_COLUMNS.
TABLE_2_TRAININGS = 3
TABLE_2_COLUMNS = (
    ("cub", 1),
    ("cub", 5),
    ("mini-imagenet", 1),
    ("mini-imagenet", 5),
    ("omniglot-emnist", 1),
    ("omniglot-emnist", 5),
    ("mini-imagenet-cub", 1),
    ("mini-imagenet-cub", 5),
)
_Cell = tuple[float, float]
TABLE_2: dict[str, tuple[_Cell, ...]] = {
    "feature-transfer": (
        (46.19, 0.64),
        (68.40, 0.79),
        (39.51, 0.23),
        (60.51, 0.55),
        (64.22, 1.24),
        (86.10, 0.84),
        (32.77, 0.35),
        (50.34, 0.27),
    ),
    "baseline++": (
        (61.75, 0.95),
        (78.51, 0.59),
        (47.15, 0.49),
        (66.18, 0.18),
        (56.84, 0.91),
        (80.01, 0.92),
        (39.19, 0.12),
        (57.31, 0.11),
    ),
    "matching-net": (
        (60.19, 1.02),
        (75.11, 0.35),
        (48.25, 0.65),
        (62.71, 0.44),
        (75.01, 2.09),
        (87.41, 1.79),
        (36.98, 0.06),
        (50.72, 0.36),
    ),
    "proto-net": (
        (52.52, 1.90),
        (75.93, 0.46),
        (44.19, 1.30),
        (64.07, 0.65),
        (72.04, 0.82),
        (87.22, 1.01),
        (33.27, 1.09),
        (52.16, 0.17),
    ),
    "maml": (
        (56.11, 0.69),
        (74.84, 0.62),
        (45.39, 0.49),
        (61.58, 0.53),
        (72.68, 1.85),
        (83.54, 1.79),
        (34.01, 1.25),
        (48.83, 0.62),
    ),
    "relation-net": (
        (62.52, 0.34),
        (78.22, 0.07),
        (48.76, 0.17),
        (64.20, 0.28),
        (75.62, 1.00),
        (87.84, 0.27),
        (37.13, 0.20),
        (51.76, 1.48),
    ),
    "dkt-linear": (
        (60.23, 0.76),
        (74.74, 0.22),
        (48.44, 0.36),
        (62.88, 0.46),
        (75.97, 0.70),
        (89.51, 0.44),
        (38.72, 0.42),
        (54.20, 0.37),
    ),
    "dkt-cosine": (
        (63.37, 0.19),
        (77.73, 0.26),
        (48.64, 0.45),
        (62.85, 0.37),
        (73.06, 2.36),
        (88.10, 0.78),
        (40.22, 0.54),
        (55.65, 0.05),
    ),
    "dkt-bn-cosine": (
        (62.96, 0.62),
        (77.76, 0.62),
        (49.73, 0.07),
        (64.00, 0.09),
        (75.40, 1.10),
        (90.30, 0.49),
        (40.14, 0.18),
        (56.40, 1.34),
    ),
    "gp-vib-linear": (
        (62.73, 0.59),
        (77.78, 0.27),
        (49.61, 0.29),
        (65.84, 0.22),
        (76.01, 0.54),
        (89.93, 0.23),
        (39.52, 0.7),
        (54.51, 0.45),
    ),
    "gp-vib-cosine": (
        (62.36, 0.77),
        (78.35, 0.23),
        (49.80, 0.52),
        (65.60, 0.54),
        (74.58, 1.56),
        (88.73, 0.75),
        (40.70, 0.48),
        (56.70, 0.62),
    ),
}


def table_2(row: str, experiment: str, shots: int) -> tuple[float, float] | None:
    """The paper's accuracy in % and its SD over 3 trainings; None where it has none."""
    if row not in TABLE_2 or (experiment, shots) not in TABLE_2_COLUMNS:
        return None
    return TABLE_2[row][TABLE_2_COLUMNS.index((experiment, shots))]


# The longer version's further experiments: row -> (experiment, shots) -> accuracy in %, its 95% interval over 10
# repeats. MAML's on Omniglot and mini-ImageNet are those Finn et al. (2017) report.
_Further = dict[tuple[str, int], tuple[float, float]]
FURTHER_COLUMNS = (
    ("omniglot", 1),
    ("omniglot", 5),
    ("mini-imagenet", 1),
    ("mini-imagenet", 5),
    ("augmented-omniglot", 15),
)
FURTHER_REPEATS = 10


def _further(*cells: tuple[float, float]) -> _Further:
    return dict(zip(FURTHER_COLUMNS, cells, strict=True))


FURTHER: dict[str, _Further] = {
    "maml": _further((98.7, 0.4), (99.9, 0.1), (48.7, 1.84), (63.11, 0.92), (76.67, 0.663)),
    "stochastic-maml": _further((98.944, 0.031), (99.745, 0.017), (48.139, 0.311), (64.179, 0.781), (77.3, 1.123)),
    "gp-vib-linear": _further((99.036, 0.034), (99.776, 0.019), (48.097, 0.213), (64.474, 0.235), (80.73, 0.776)),
    "gp-vib-cosine": _further((99.059, 0.030), (99.774, 0.016), (47.934, 0.293), (63.660, 0.262), (80.77, 0.804)),
    "gp-maml-linear": _further((99.027, 0.025), (99.771, 0.019), (48.509, 0.346), (64.760, 0.226), (81.33, 0.488)),
    "gp-maml-cosine": _further((99.051, 0.028), (99.783, 0.019), (48.075, 0.445), (64.506, 0.178), (81.79, 0.671)),
}

# The same, negative log likelihood a test point; no spread is published.
FURTHER_NLL: dict[str, dict[tuple[str, int], float]] = {
    row: dict(zip(FURTHER_COLUMNS, cells, strict=True))
    for row, cells in {
        "maml": (0.032, 0.008, 1.279, 0.926, 0.694),
        "stochastic-maml": (0.031, 0.008, 1.270, 0.925, 0.673),
        "gp-vib-linear": (0.036, 0.012, 1.267, 0.904, 0.676),
        "gp-vib-cosine": (0.045, 0.019, 1.262, 0.921, 0.662),
        "gp-maml-linear": (0.036, 0.010, 1.246, 0.900, 0.671),
        "gp-maml-cosine": (0.045, 0.019, 1.274, 0.902, 0.616),
    }.items()
}

# Augmented Omniglot with a further convolution after each layer: (row, batch-norm) -> accuracy in %, no spread.
DEEPER: dict[tuple[str, bool], float] = {
    ("gp-vib-linear", False): 86.29,
    ("gp-vib-cosine", False): 85.6,
    ("gp-vib-linear", True): 86.62,
    ("gp-vib-cosine", True): 86.7,
    ("gp-maml-linear", False): 84.59,
    ("gp-maml-cosine", False): 84.23,
    ("gp-maml-linear", True): 85.94,
    ("gp-maml-cosine", True): 86.17,
}
WARP_LEAP = 83.6  # the best the paper compares these with
