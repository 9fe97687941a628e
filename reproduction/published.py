"""The numbers of the paper, to stand beside ours: Titsias et al. (2021), arXiv:2009.03228, and its longer version.

Each table is written as the paper prints it, a mean and what follows its ± sign. What that is differs: a standard
deviation between trainings in table 2, a 95% interval of the mean over trainings everywhere else.
"""

from reproduction.compare import Estimate, published

Column = tuple[str, int]  # an experiment and its shots


def _columns(
    text: str, columns: tuple[Column, ...], *, ci95: bool, trainings: int
) -> dict[tuple[str, str, int], Estimate]:
    """Reads a table with a line for each method: (row, experiment, shots) -> its number."""
    found = {}
    for line in text.strip().splitlines():
        row, *cells = line.split()
        for column, cell in zip(columns, cells, strict=True):
            mean, spread = map(float, cell.split("±"))
            found[row, *column] = published(
                mean, ci95=spread if ci95 else None, sd=None if ci95 else spread, trainings=trainings
            )
    return found


# Sinusoids, mean squared error for K = 5, 10 and 20: the mean of 10 trainings and its 95% interval. A row is a method
# and the number of its inner steps at test.
TABLE_1_TRAININGS = 10
TABLE_1_SHOTS = (5, 10, 20)
_TABLE_1 = _columns(
    """
    maml/1              0.600±0.662  0.359±0.015  0.228±0.018
    maml/5              0.311±0.013  0.120±0.006  0.060±0.004
    maml/10             0.280±0.013  0.096±0.005  0.043±0.003
    stochastic-maml/1   0.662±0.040  0.382±0.021  0.244±0.014
    stochastic-maml/5   0.352±0.035  0.141±0.014  0.073±0.006
    stochastic-maml/10  0.317±0.340  0.116±0.012  0.054±0.004
    gp-vib/             0.020±0.014  0.002±0.001  0.001±0.001
    gp-maml/1           0.058±0.054  0.002±0.001  0.002±0.002
    """,
    tuple(("sinusoid", k) for k in TABLE_1_SHOTS),
    ci95=True,
    trainings=TABLE_1_TRAININGS,
)
Steps = int | None  # None for a method without inner steps
TABLE_1: dict[tuple[str, Steps, int], Estimate] = {
    (row.partition("/")[0], int(row.partition("/")[2] or 0) or None, k): estimate
    for (row, _, k), estimate in _TABLE_1.items()
}

# 5-way classification, accuracy in per cent: the mean of 3 trainings and the standard deviation between them.
TABLE_2_TRAININGS = 3
TABLE_2_EXPERIMENTS = ("cub", "mini-imagenet", "omniglot-emnist", "mini-imagenet-cub")
TABLE_2_COLUMNS = tuple((experiment, shots) for experiment in TABLE_2_EXPERIMENTS for shots in (1, 5))
TABLE_2 = _columns(
    """
    feature-transfer  46.19±0.64 68.40±0.79  39.51±0.23 60.51±0.55  64.22±1.24 86.10±0.84  32.77±0.35 50.34±0.27
    baseline++        61.75±0.95 78.51±0.59  47.15±0.49 66.18±0.18  56.84±0.91 80.01±0.92  39.19±0.12 57.31±0.11
    matching-net      60.19±1.02 75.11±0.35  48.25±0.65 62.71±0.44  75.01±2.09 87.41±1.79  36.98±0.06 50.72±0.36
    proto-net         52.52±1.90 75.93±0.46  44.19±1.30 64.07±0.65  72.04±0.82 87.22±1.01  33.27±1.09 52.16±0.17
    maml              56.11±0.69 74.84±0.62  45.39±0.49 61.58±0.53  72.68±1.85 83.54±1.79  34.01±1.25 48.83±0.62
    relation-net      62.52±0.34 78.22±0.07  48.76±0.17 64.20±0.28  75.62±1.00 87.84±0.27  37.13±0.20 51.76±1.48
    dkt-linear        60.23±0.76 74.74±0.22  48.44±0.36 62.88±0.46  75.97±0.70 89.51±0.44  38.72±0.42 54.20±0.37
    dkt-cosine        63.37±0.19 77.73±0.26  48.64±0.45 62.85±0.37  73.06±2.36 88.10±0.78  40.22±0.54 55.65±0.05
    dkt-bn-cosine     62.96±0.62 77.76±0.62  49.73±0.07 64.00±0.09  75.40±1.10 90.30±0.49  40.14±0.18 56.40±1.34
    gp-vib-linear     62.73±0.59 77.78±0.27  49.61±0.29 65.84±0.22  76.01±0.54 89.93±0.23  39.52±0.70 54.51±0.45
    gp-vib-cosine     62.36±0.77 78.35±0.23  49.80±0.52 65.60±0.54  74.58±1.56 88.73±0.75  40.70±0.48 56.70±0.62
    """,
    TABLE_2_COLUMNS,
    ci95=False,
    trainings=TABLE_2_TRAININGS,
)

# The further experiments of the longer version: the mean of 10 trainings and its 95% interval, first of the accuracy in
# per cent and then of the negative log likelihood of a test point (whose caption does not say what its ± is; the
# trainings are those of the accuracies). MAML's accuracies on Omniglot and mini-ImageNet are those that Finn et al.
# (2017) report, its likelihoods and Augmented Omniglot the paper's own trainings.
FURTHER_TRAININGS = 10
FURTHER_COLUMNS = (
    ("omniglot", 1),
    ("omniglot", 5),
    ("mini-imagenet", 1),
    ("mini-imagenet", 5),
    ("augmented-omniglot", 15),
)
FURTHER = _columns(
    """
    maml             98.700±0.400  99.900±0.100  48.700±1.840  63.110±0.920  76.670±0.663
    stochastic-maml  98.944±0.031  99.745±0.017  48.139±0.311  64.179±0.781  77.300±1.123
    gp-vib-linear    99.036±0.034  99.776±0.019  48.097±0.213  64.474±0.235  80.730±0.776
    gp-vib-cosine    99.059±0.030  99.774±0.016  47.934±0.293  63.660±0.262  80.770±0.804
    gp-maml-linear   99.027±0.025  99.771±0.019  48.509±0.346  64.760±0.226  81.330±0.488
    gp-maml-cosine   99.051±0.028  99.783±0.019  48.075±0.445  64.506±0.178  81.790±0.671
    """,
    FURTHER_COLUMNS,
    ci95=True,
    trainings=FURTHER_TRAININGS,
)
FURTHER_NLL = _columns(
    """
    maml             0.032±0.001  0.008±0.001  1.279±0.006  0.926±0.011  0.694±0.020
    stochastic-maml  0.031±0.001  0.008±0.001  1.270±0.008  0.925±0.013  0.673±0.025
    gp-vib-linear    0.036±0.002  0.012±0.001  1.267±0.008  0.904±0.005  0.676±0.034
    gp-vib-cosine    0.045±0.001  0.019±0.001  1.262±0.006  0.921±0.006  0.662±0.027
    gp-maml-linear   0.036±0.003  0.010±0.001  1.246±0.007  0.900±0.009  0.671±0.024
    gp-maml-cosine   0.045±0.001  0.019±0.001  1.274±0.009  0.902±0.005  0.616±0.027
    """,
    FURTHER_COLUMNS,
    ci95=True,
    trainings=FURTHER_TRAININGS,
)

# Augmented Omniglot with a further convolution after each layer, without batch-norm and with it: accuracy in per cent
# and its 95% interval.
_DEEPER = _columns(
    """
    gp-vib-linear   86.29±0.84  86.62±1.30
    gp-vib-cosine   85.60±0.76  86.70±0.90
    gp-maml-linear  84.59±0.50  85.94±0.70
    gp-maml-cosine  84.23±1.00  86.17±1.04
    """,
    (("none", 15), ("batch-norm", 15)),
    ci95=True,
    trainings=FURTHER_TRAININGS,
)
DEEPER: dict[tuple[str, bool], Estimate] = {
    (row, norm != "none"): estimate for (row, norm, _), estimate in _DEEPER.items()
}
