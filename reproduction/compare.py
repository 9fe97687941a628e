r"""Our number beside the paper's, and how far apart they are.

The difference of a cell is counted in standard errors,

$$ d = \frac{\text{ours} - \text{paper}}{\sqrt{\mathrm{se}_\text{ours}^2 + \mathrm{se}_\text{paper}^2}}, $$

where the standard error of a mean over $n \ge 2$ trainings is $SD / \sqrt n$, SD the standard deviation between
trainings (with n - 1). A published 95% interval over n trainings is turned back: $\mathrm{se} = ci / 1.96$.

One training alone says nothing about the spread between trainings. Its standard error is an estimate: the paper's SD
of one training of the same cell, and the error of its test episodes, $\sqrt{SD_\text{paper}^2 + (ci / 1.96)^2}$.

What d leaves out: all trainings of ours are tested on the same episodes, whose own error (about 0.2 points of
accuracy in 3000 episodes) is no part of $SD / \sqrt n$; and an SD over two or three trainings is itself known
only very roughly. So d says where to look, and is no test of significance.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

Z = 1.96
APART = 2.0  # standard errors from which on two numbers count as different

ABOVE, AT, BELOW, NOT_RUN, ALONE = "above", "at", "below", "not run", "alone"


class Estimate(NamedTuple):
    """A mean over trainings, and what is known of its spread.

    Args:
        mean: over trainings.
        sd: standard deviation between trainings; None where there is one training, or none is published.
        trainings: their number.
        ci95: half-width of the 95% interval over the test tasks of one training; None where not known.

    Example:
        >>> over_trainings([70.0, 72.0])
        Estimate(mean=71.0, sd=1.4142135623730951, trainings=2, ci95=None)
    """

    mean: float
    sd: float | None
    trainings: int
    ci95: float | None = None

    @property
    def interval(self) -> float | None:
        """Half-width of the 95% interval of the mean over trainings; over test tasks where there is one training."""
        return self.ci95 if self.sd is None else Z * self.sd / sqrt(self.trainings)


def over_trainings(means: Sequence[float], ci95: float | None = None) -> Estimate:
    """The estimate from a number each training; `ci95` is that of a single one."""
    if len(means) == 1:
        return Estimate(means[0], None, 1, ci95)
    return Estimate(fmean(means), stdev(means), len(means))


def published(mean: float, *, sd: float | None = None, ci95: float | None = None, trainings: int) -> Estimate:
    """A number of the paper, with its SD between trainings or its 95% interval over them."""
    if ci95 is not None:
        sd = ci95 / Z * sqrt(trainings)
    return Estimate(mean, sd, trainings)


def difference(ours: Estimate, paper: Estimate) -> float | None:
    """(ours - paper) in standard errors, as the module says; None where the paper gives no spread, or there is none."""
    if paper.sd is None:
        return None
    if ours.sd is None:
        own = paper.sd**2 + ((ours.ci95 or 0.0) / Z) ** 2
    else:
        own = ours.sd**2 / ours.trainings
    variance = own + paper.sd**2 / paper.trainings
    return (ours.mean - paper.mean) / sqrt(variance) if variance else None


class Cell(NamedTuple):
    """One number of ours beside one of the paper's.

    Args:
        key: its name, by which a note speaks of it.
        ours: None where there is no run.
        paper: None where the paper has no such number.
        digits: of ours behind the point.
        paper_digits: of the paper's; as many as ours unless told.
        lower: whether less is better.
        interval: whether the ± of several trainings is the 95% interval of their mean, rather than their SD.
        alike: whether ours was made as the paper's was. Otherwise the difference is shown without a judgement.

    Example:
        >>> cell = Cell("cub/maml-1", over_trainings([60.0, 62.0]), published(56.11, sd=0.69, trainings=3))
        >>> cell.text, cell.paper_text, cell.difference_text
        ('61.00 ± 1.41 (2 trainings)', '56.11 ± 0.69', '+4.5 ▲')
    """

    key: str
    ours: Estimate | None
    paper: Estimate | None
    digits: int = 2
    paper_digits: int | None = None
    lower: bool = False
    interval: bool = False
    alike: bool = True

    @property
    def difference(self) -> float | None:
        """In standard errors."""
        return None if self.ours is None or self.paper is None else difference(self.ours, self.paper)

    @property
    def verdict(self) -> str:
        """Ours against the paper: better or worse by two standard errors or more, or in between.

        `ABOVE` is better and `BELOW` worse, whichever way the number counts.
        """
        if self.ours is None:
            return NOT_RUN
        d = self.difference
        if d is None or not self.alike:
            return ALONE
        better = -d if self.lower else d
        return ABOVE if better >= APART else BELOW if better <= -APART else AT

    @property
    def text(self) -> str:
        """Our number."""
        return "not run" if self.ours is None else self._text(self.ours, self.digits) + self._trainings()

    @property
    def paper_text(self) -> str:
        """The paper's number."""
        return (
            ""
            if self.paper is None
            else self._text(self.paper, self.digits if self.paper_digits is None else self.paper_digits)
        )

    @property
    def difference_text(self) -> str:
        """The difference with its sign, and a mark where it is two standard errors or more."""
        d = self.difference
        if d is None:
            return ""
        marks = {ABOVE: " ▲", BELOW: " ▼"}
        rounded = round(d, 1) + 0.0  # no negative zero
        return f"{rounded:+.1f}".replace("-", "−") + marks.get(self.verdict, "")

    def _text(self, estimate: Estimate, digits: int) -> str:
        spread = estimate.interval if self.interval or estimate.sd is None else estimate.sd
        number = f"{estimate.mean:.{digits}f}"
        return number if spread is None else f"{number} ± {spread:.{digits}f}"

    def _trainings(self) -> str:
        """Said where it decides what the ± is."""
        assert self.ours is not None
        if self.ours.sd is None:
            return " (1 training)"
        return "" if self.interval else f" ({self.ours.trainings} trainings)"
