"""The report's standing texts."""

TITLE = "Results"
PAPER = "Titsias, Ruiz, Nikoloutsopoulos, Galashov: Information Theoretic Meta Learning with Gaussian Processes (2021)"
INTRODUCTION = (
    f"Our numbers beside those of {PAPER}. Made by `metavib report` from the records in `results/` alone; each "
    "table's own command is `metavib reproduce NAME`. Cells without a run say so."
)
DIFFERENCE = (
    "The difference counts standard errors: d = (ours − paper) / √(se_ours² + se_paper²). The standard error of a mean "
    "over n ≥ 2 trainings is SD / √n, with SD the standard deviation between trainings; where the paper gives a 95% "
    "interval over trainings, it is that half-width / 1.96.",
    "One training alone says nothing about the spread between trainings. Its standard error is an estimate, "
    "√(SD_paper² + (half-width of its 95% interval over test episodes / 1.96)²): the paper's SD of one training of the "
    "same cell stands in for ours. Such cells say '1 training'.",
    "▲ marks cells that are better than the paper by two standard errors or more, ▼ those that are worse; for errors "
    "and NLLs less is better, so there a negative difference is the better one.",
    "What it leaves out: all trainings of ours are tested on the same episodes, whose own error (about 0.2 points of "
    "accuracy in 3,000 episodes) is no part of SD / √n; an SD over two or three trainings is itself known only very "
    "roughly; and with this many cells some lie beyond two standard errors by chance. The difference says "
    "where to look, and is no test of significance.",
)
RECORDS = (
    "A record a run: full config, seed, commit, checksums of the data files, machine, versions, time, validation "
    "curve, test metrics with intervals. Records made before checksums were kept say 'not recorded'."
)
