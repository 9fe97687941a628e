"""How the records of each reproduction are shown: its tables and its figures, as the report has them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from reproduction import grids, plots
from reproduction.grids import Grid
from reproduction.grids.grid import EXPERIMENTS, by_experiment

Records = dict[str, Any]


class Drawing(NamedTuple):
    """A figure: its file in the reproduction's folder, what it shows, and how to draw it.

    `draw` is None where it takes a trained model and not the records alone: then the file is taken as it lies there.
    """

    file: str
    caption: str
    draw: Callable[[], Figure] | None


def _nothing(records: Records) -> list[Drawing]:
    return []


class Display(NamedTuple):
    """How a reproduction is shown.

    Args:
        title: of the section.
        about: what it is, in a sentence or two.
        grids: its tables, from its records.
        drawings: its figures, from its records; asked only where there are records.
        of: the folder of its records, where it shows those of another reproduction.
        order: of the runs, where it is not that of the paper's table.
        empty: whether its tables say something without any record: which cells there are, and the paper's numbers.
    """

    title: str
    about: str
    grids: Callable[[Records], list[Grid]]
    drawings: Callable[[Records], list[Drawing]] = _nothing
    of: str = ""
    order: tuple[str, ...] = ()
    empty: bool = False


def _comparison(records: Records) -> list[Drawing]:
    caption = "Accuracy of ours and of the paper's; bars are 95% intervals, with one training over its test episodes"
    return [Drawing("comparison.png", caption, lambda: plots.comparison(grids.table_2(records)))]


def _figure_2(records: Records) -> list[Drawing]:
    caption = "Truth, posterior mean and two standard deviations on one new sinusoid as points arrive"
    return [Drawing("figure-2.png", caption, None)]


def _beta(records: Records) -> list[Drawing]:
    return [Drawing("beta.png", "Scores against beta, with 95% intervals", lambda: plots.beta_curve(records))]


def _shots(records: Records) -> list[Drawing]:
    caption = "Accuracy against the number of shots at test, with 95% bands"
    return [Drawing("shots.png", caption, lambda: plots.shots_curve(records))]


def _inner_steps(records: Records) -> list[Drawing]:
    caption = "Accuracy against the number of inner steps at test, with 95% bands"
    return [Drawing("inner-steps.png", caption, lambda: plots.inner_steps_curve(records))]


def _glyphs(records: Records) -> list[Drawing]:
    return [Drawing("reliability.png", "Accuracy against confidence", lambda: plots.reliability(records))]


def _calibration(records: Records) -> list[Drawing]:
    return [
        Drawing(
            f"{experiment}.png",
            f"Accuracy against confidence, {EXPERIMENTS.get(experiment, experiment)}; a line a training",
            lambda group=group: plots.reliability(group),  # type: ignore[misc]
        )
        for experiment, group in by_experiment(records).items()
    ]


_IMPROVED_SINUSOID = ("plain", "reach", "reach-cosine", "reach-cosine-lr", "all")

DISPLAYS = {
    "table-2": Display(
        "Table 2: few-shot classification",
        "5-way accuracy in per cent, mean over trainings ± their standard deviation; with one training ± is the 95% "
        "interval over its test episodes. The paper's: mean ± SD over 3 trainings. Rows beyond the paper's are recipes "
        "of our own, beside the paper's number for the method they vary.",
        grids.table_2,
        _comparison,
        empty=True,
    ),
    "table-1": Display(
        "Table 1: sinusoids",
        "Mean squared error on new sinusoids after K points. 'Improved' is a recipe of our own.",
        grids.table_1,
        order=("maml", "stochastic-maml", "gp-vib", "gp-maml", "gp-vib-improved"),
        empty=True,
    ),
    "figure-2": Display(
        "Figure 2: one sinusoid, more and more points",
        "One training of GP-VIB with the paper's recipe.",
        grids.sinusoids,
        _figure_2,
    ),
    "improved-sinusoid": Display(
        "What our recipe for sinusoids changed",
        "One change after the other: a first layer spread over the range of the inputs, a cosine schedule, a "
        "higher learning rate, and a lower start and floor of the noise.",
        grids.sinusoids,
        order=tuple(f"gp-vib-{step}" for step in _IMPROVED_SINUSOID),
    ),
    "improved-photographs": Display(
        "What helps on photographs",
        "10,000 steps, a sixth of the paper's; one shot unless said. Accuracy in per cent on 5-way validation "
        "episodes, which alone decide what becomes a recipe. 'Mean': beta 80 times as large, as if the fit were a "
        "mean over the 80 query points; 'start': sites that start at m = 5, s = 0.13; 'splits': the bound averaged "
        "over 17 splits of a task; 'crops': at least 0.35 of an image, where the protocol takes "
        "0.08; 'rates': 0.01 for sites and out-scale. 'Ways' and 'poolings': all of these, crops of at least 0.9 (CUB: "
        "0.35), training tasks of so many classes and 85 to 160 images, and so many of Conv4's layers pooled.",
        grids.progress,
    ),
    "starts": Display(
        "How photographs begin",
        "GP-VIB from mini-ImageNet to CUB, one shot, linear kernel, on a CPU. 'Paper': sites that start at m = 1, "
        "s = 0.69 (the paper does not say where its sites do); 'start': at m = 5, s = 0.13. Accuracy in per cent on "
        "5-way validation episodes; 20 is chance.",
        grids.progress,
    ),
    "crops": Display(
        "Crops of small photographs",
        "mini-ImageNet with five shots, the first 3,000 of 40,000 steps, on a CPU. 'Paper': training crops of at least "
        "0.08 of an image, as the protocol has them, which cuts them from whole photographs where ours have 84 x 84 "
        "pixels; 'large crops': of at least 0.9. Accuracy in per cent on 300 5-way validation episodes.",
        grids.progress,
    ),
    "omniglot": Display(
        "Omniglot, 5-way",
        "The longer version's experiment, accuracy in per cent and negative log likelihood; the paper's: 95% interval "
        "over 10 repeats, no spread for the NLL, so no difference in standard errors. 'Shorter': 10,000 steps "
        "instead of 60,000, and a cosine schedule; 'shuffled': the characters of all alphabets split at random (Finn "
        "et al., 2017), and not by alphabet (Vinyals et al., 2016): the paper does not say which.",
        grids.omniglot,
        empty=True,
    ),
    "lengths": Display(
        "How long Omniglot takes",
        "GP-VIB, linear kernel, one shot, steps of 32 tasks with a cosine schedule: whether length is what 'shorter' "
        "lacks. 'Shuffled': the characters of all alphabets are split at random (Finn et al., 2017), and not by "
        "alphabet (Vinyals et al., 2016). 'Transductive': batch-norm by the statistics of support and query, at test "
        "too. Up to 3,000 steps on a CPU.",
        grids.images,
    ),
    "augmented-omniglot": Display(
        "Augmented Omniglot, 20-way",
        "20 characters of an alphabet, 15 drawings each, moved about at random. At test the paper's methods see up to "
        "2,000 augmented points, so its numbers stand beside ours with as many, taken up by the constant-memory "
        "update.",
        grids.augmented_omniglot,
        empty=True,
    ),
    "rates": Display(
        "How GP+MAML begins on Augmented Omniglot",
        "Cosine kernel, the first 900 of 5,000 steps, on a CPU. 'Paper': its learning rate, 0.005; 'half': 0.0025, as "
        "GP-VIB has; 'first order': the paper's, inner steps taken as constants when the bound is differentiated. "
        "Accuracy in per cent on 20-way validation episodes; 5 is chance.",
        grids.progress,
    ),
    "beta": Display("Beta", "GP-VIB against the weight of the KL.", grids.beta, _beta),
    "shots": Display("Shots", "Accuracy against the number of shots at test.", grids.shots, _shots),
    "inner-steps": Display(
        "Inner steps",
        "MAML and GP+MAML on Omniglot, trained for 10,000 steps with one inner step, against their number at test.",
        grids.inner_steps,
        _inner_steps,
    ),
    "calibration": Display(
        "Calibration",
        "Negative log likelihood, Brier score and expected calibration error of table 2's runs. The paper has no such "
        "numbers.",
        grids.calibration,
        _calibration,
        of="table-2",
    ),
    "glyphs": Display(
        "Glyphs, built in",
        "Every method of table 2 on characters made from fonts, in a short training: no download, not in the paper. "
        "'Improved': two poolings in Conv4 instead of four; training tasks of 20 classes (10 at five shots), in all "
        "splits.",
        grids.images,
        _glyphs,
    ),
}
