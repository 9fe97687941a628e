r"""Standardisation of inputs and outputs, learned once and kept with the model.

Networks and priors of this library expect numbers of order one. `columns` and `outputs` learn means and scales from
the training data; what they return is a NamedTuple of tensors that saves with the model (`state`, `from_state`) and
takes predictions back to the units they came in.
"""

import warnings
from collections.abc import Mapping, Sequence
from math import inf, log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

BEYOND = 10.0  # deviations from the median, from which on an output says nothing of what is usual
NEAREST = 8.0  # deviations of the logarithm from its mean, beyond which a distance from an edge counts as so small
ROUNDING = 1e-12  # of the distance of two ends: what can be told from either of them
MISSING = ("auto", "mean", "refuse")
"""What may be done about missing values: the training mean and an indicator, which a warning tells; the same without a
word; or an error that names the column."""
NAMED = 5  # columns that a warning names, at most
SCALE_VALUES, SCALE_ROWS = 30, 5  # values of a scale, at most, and rows of each on average, at least
SPILL = 1e-3  # share of what lies beyond an end of a scale that is not the end's
END_ROWS, END_SHARE = 10, 0.02  # rows, and share of them, that an end of a scale has at least


class Columns(NamedTuple):
    """Inputs to numbers of order one: `mean` and `scale`, `(d,)` for a table, `(C, 1, 1)` for images; `flags (k,)`.

    Column j becomes (x_j - mean_j) / scale_j. A missing value (NaN) becomes 0, the training mean, and each column in
    `flags` (those in which values were missing in training) is followed, after all others, by a column that says
    where: 1 for missing, 0 for there.
    """

    mean: Tensor
    scale: Tensor
    flags: Tensor

    @property
    def width(self) -> int:
        """Number of columns after standardisation, of a table."""
        return len(self.mean) + len(self.flags)

    def standardise(self, x: Tensor) -> Tensor:
        """`(..., d)` to `(..., d + k)`, or images to images; missing values are those of the columns' mean."""
        missing = x.isnan()
        z = ((x - self.mean) / self.scale).masked_fill(missing, 0.0)
        return torch.cat([z, missing[..., self.flags].to(z.dtype)], -1) if len(self.flags) else z


class Outputs(NamedTuple):
    """Real outputs to mean 0 and variance 1, and predictions back: scalars `mean` and `scale`.

    Where outputs come in steps (counts, marks from 1 to 5, stars by halves), all are multiples of `step`, on a scale
    from `low` to `high`; `step` is 0 where they may be any numbers. `steps_of` looks for all three.
    """

    mean: Tensor
    scale: Tensor
    step: Tensor = torch.tensor(0.0, dtype=torch.float64)
    low: Tensor = torch.tensor(0.0, dtype=torch.float64)
    high: Tensor = torch.tensor(inf, dtype=torch.float64)

    @property
    def stepped(self) -> bool:
        """Whether outputs come in steps."""
        return float(self.step) > 0

    @property
    def grid(self) -> "Grid":
        """The steps and the ends of their scale, once outputs are standardised."""
        low, high = (float(self.standardise(end)) for end in (self.low, self.high))
        return Grid(float(self.step / self.scale) / 2, low, high, SPILL if float(self.low) else 0.0, SPILL)

    @property
    def zero(self) -> float:
        """Where the zero of their own units lies, once outputs are standardised."""
        return float(self.standardise(torch.zeros_like(self.mean)))

    @property
    def log_scale(self) -> float:
        r"""$\log$ scale: a density of standardised outputs, less this, is one of outputs in their own units."""
        return log(float(self.scale))

    def standardise(self, y: Tensor) -> Tensor:
        """(y - mean) / scale; counts and labels, which have no other scale than their own, stay as they are."""
        return y if self.trivial else (y - self.mean) / self.scale

    def restore(self, y: Tensor) -> Tensor:
        """Back to the units of the data: a mean, or the end of an interval."""
        return y if self.trivial else y * self.scale + self.mean

    def restore_variance(self, var: Tensor) -> Tensor:
        """Back to the squared units of the data."""
        return var if self.trivial else var * self.scale.square()

    def rounded(self, y: Tensor) -> Tensor:
        """Quantiles in the units of the data as outputs have them: the steps whose halves around them hold y.

        Example:
            >>> counts = Outputs(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(1.0))
            >>> counts.rounded(torch.tensor([-3.0, 0.4, 2.6]))
            tensor([0., 0., 3.])
        """
        if not self.stepped:
            return y
        return ((y / self.step - 0.5).ceil() * self.step).to(y).clamp(float(self.low), float(self.high)) + 0.0

    def nearest(self, y: Tensor) -> Tensor:
        """The steps that lie nearest to some numbers, within the ends or beyond them; y itself where there are none."""
        return ((y / self.step).round() * self.step).to(y) if self.stepped else y

    def clamped(self, mean: Tensor) -> Tensor:
        """Means, which lie within the ends of the scale where outputs come in steps."""
        return mean.clamp(float(self.low), float(self.high)) if self.stepped else mean

    @property
    def trivial(self) -> bool:
        """Whether nothing is changed."""
        return float(self.mean) == 0 and float(self.scale) == 1


class Grid(NamedTuple):
    r"""Outputs in steps from `low` to `high`, `half` of a step to either side of each, for a law of any numbers.

    What the law has beyond an end is the end's, but for a small share of it, `below` or `above`, which stays: that
    there is an end was inferred from rows that happened to be seen. None is left below a count of zero.
    """

    half: float
    low: float
    high: float
    below: float
    above: float

    def bounded(self, p: Tensor, y: Tensor) -> Tensor:
        """The distribution function at points y between outputs, of a law whose own is p there.

        Example:
            >>> marks = Grid(0.5, 1.0, 5.0, 0.01, 0.01)
            >>> marks.bounded(torch.tensor([0.1, 0.2, 0.9]), torch.tensor([0.5, 1.5, 5.5]))
            tensor([0.0010, 0.2000, 0.9990])
        """
        return torch.where(y < self.low, self.below * p, torch.where(y > self.high, 1 - self.above * (1 - p), p))

    def left(self, y: Tensor) -> Tensor:
        """The share of a law that is left at outputs y: all of it but beyond the ends."""
        beyond = torch.where(y > self.high + self.half, self.above, torch.ones_like(y))
        return torch.where(y < self.low - self.half, self.below, beyond)


class Edge(NamedTuple):
    r"""Numbers on one side of an edge, by the logarithm of their distance from it: $z = (\log|y - e| - c) / b$.

    Weights, prices and counts lie above an edge (b > 0), ages at death and scores near full marks below one (b < 0); z
    rises with y in either case, has mean 0 and variance 1, and may be any real number. A number on the wrong side of
    the edge, or all but on it, counts as one `NEAREST` deviations towards it. `furthest` is the logarithm of the
    largest distance that was seen.

    Example:
        >>> positive = edged(torch.tensor([1.0, 10.0, 100.0]), 0.0)
        >>> z = positive.standardise(torch.tensor([1.0, 10.0, 1000.0]))
        >>> [round(v, 3) for v in z.tolist()], [round(v, 3) for v in positive.restore(z).tolist()]
        ([-1.225, 0.0, 2.449], [1.0, 10.0, 1000.0])
    """

    edge: Tensor
    centre: Tensor
    spread: Tensor
    furthest: Tensor

    def standardise(self, y: Tensor) -> Tensor:
        """z of y."""
        nearest = (self.centre - NEAREST * self.spread.abs()).exp()
        return (self.distance(y).maximum(nearest).log() - self.centre) / self.spread

    def restore(self, z: Tensor) -> Tensor:
        """y of z."""
        return self.edge + self.spread.sign() * (self.centre + self.spread * z).exp()

    def log_slope(self, y: Tensor) -> Tensor:
        r"""$\log dz/dy$, which is added to a log density of z to make it one of y; $-\infty$ beyond the edge."""
        distance = self.distance(y)
        slope = -distance.clamp(min=torch.finfo(distance.dtype).tiny).log() - self.spread.abs().log()
        return slope.masked_fill(distance <= 0, float("-inf"))

    def distance(self, y: Tensor) -> Tensor:
        """From the edge, negative beyond it."""
        return (y - self.edge) * self.spread.sign()

    def within(self, p: Tensor, y: Tensor) -> Tensor:
        """Probabilities of outputs up to y: p where y is on the right side of the edge, and 0 below or 1 above it."""
        return torch.where(self.distance(y) > 0, p, (self.spread < 0).to(p.dtype))


def edged(y: Tensor, edge: float) -> Edge:
    """Learns the mean and deviation of logarithms from numbers `y (n,)`, all of them on one side of an edge."""
    distance = y - edge
    side = 1.0 if float(distance.max()) > 0 else -1.0
    logs = (side * distance).log()
    spread = logs.std(correction=0).clamp(min=1e-6)
    return Edge(torch.full_like(spread, edge), logs.mean(), side * spread, logs.max())


class Band(NamedTuple):
    r"""Numbers between two ends, by their logits: $z = (\log(y - l) - \log(h - y) - c) / b$ with $l < y < h$.

    Shares lie between 0 and 1. z has mean 0 and variance 1, and may be any real number. Where outputs lie exactly at an
    end, as shares that were rounded do, they count as `first` or `last`: half as far from it as the nearest of the
    others. What comes back from beyond these is the end itself. Where none was seen there, they are the ends.

    Example:
        >>> shares = banded(torch.tensor([0.1, 0.5, 0.9]), 0.0, 1.0)
        >>> z = shares.standardise(torch.tensor([0.1, 0.5, 0.99]))
        >>> [round(v, 3) for v in z.tolist()], [round(v, 3) for v in shares.restore(z).tolist()]
        ([-1.225, 0.0, 2.561], [0.1, 0.5, 0.99])
        >>> rounded = banded(torch.tensor([0.0, 0.2, 0.5, 0.9]), 0.0, 1.0)
        >>> round(rounded.first.item(), 2), rounded.restore(torch.tensor(-9.0)).item()
        (0.1, 0.0)
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    spread: Tensor
    first: Tensor
    last: Tensor

    def standardise(self, y: Tensor) -> Tensor:
        """z of y."""
        inside = self._inside(y)
        return ((inside - self.low).log() - (self.high - inside).log() - self.centre) / self.spread

    def restore(self, z: Tensor) -> Tensor:
        """y of z, which is between the ends for any z."""
        y = self._between(z)
        return torch.where(y <= self.first, self.low, torch.where(y >= self.last, self.high, y))

    def log_slope(self, y: Tensor) -> Tensor:
        r"""$\log dz/dy$, which is added to a log density of z to make it one of y; $-\infty$ beyond the ends."""
        inside = self._inside(y)
        slope = (self.high - self.low).log() - (inside - self.low).log() - (self.high - inside).log()
        below, above = self._beyond(y)
        return (slope - self.spread.log()).masked_fill(below | above, float("-inf"))

    def within(self, p: Tensor, y: Tensor) -> Tensor:
        """Probabilities of outputs up to y: p where y is between the ends, 0 below them, 1 from the upper one on."""
        below, _ = self._beyond(y)
        return torch.where(y >= self.high, 1.0, p).masked_fill(below, 0.0)

    def _between(self, z: Tensor | float) -> Tensor:
        return self.low + (self.high - self.low) * torch.sigmoid(self.centre + self.spread * z)

    def _inside(self, y: Tensor) -> Tensor:
        """y, or the nearest number whose logit is one."""
        nearest, furthest = self._between(-NEAREST), self._between(NEAREST)
        return y.maximum(self.first.maximum(nearest)).minimum(self.last.minimum(furthest))

    def _beyond(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Whether y is below the band, and whether it is above: an end is where no output was seen at it."""
        below = torch.where(self.first > self.low, y < self.low, y <= self.low)
        return below, torch.where(self.last < self.high, y > self.high, y >= self.high)


def banded(y: Tensor, low: float, high: float) -> Band:
    """Learns the mean and deviation of logits from numbers `y (n,)` between two ends, some of them inside."""
    ends = torch.full_like(y[0], low), torch.full_like(y[0], high)
    first, last = ends
    least = ROUNDING * (high - low)  # half of the last digit below an end would be the end itself
    if bool((y <= low).any()):
        first = low + ((y[y > low].min() - low) / 2).clamp(min=least)
    if bool((y >= high).any()):
        last = high - ((high - y[y < high].max()) / 2).clamp(min=least)
    inside = y.maximum(first).minimum(last)
    logits = (inside - low).log() - (high - inside).log()
    return Band(*ends, logits.mean(), logits.std(correction=0).clamp(min=1e-6), first, last)


class Root(NamedTuple):
    r"""Numbers from an edge upwards, by the square root of their distance from it: $z = (\sqrt{y - e} - c) / b$.

    Counts have a noise that grows as their square root does, and growth slows down: a square root does less to either
    than a logarithm. z has mean 0 and variance 1; what comes back from below the root of 0 is the edge itself. The
    slope of a square root has no bound at the edge: nearer than `least`, the smallest distance that was seen, it is
    taken to be what it is there.

    Example:
        >>> heights = rooted(torch.tensor([1.0, 4.0, 9.0]), 0.0)
        >>> z = heights.standardise(torch.tensor([1.0, 4.0, 25.0]))
        >>> [round(v, 3) for v in z.tolist()], [round(v, 3) for v in heights.restore(z).tolist()]
        ([-1.225, 0.0, 3.674], [1.0, 4.0, 25.0])
        >>> heights.restore(torch.tensor(-9.0)).item()
        0.0
    """

    edge: Tensor
    centre: Tensor
    spread: Tensor
    least: Tensor

    def standardise(self, y: Tensor) -> Tensor:
        """z of y; that of the edge for numbers below it."""
        return ((y - self.edge).clamp(min=0).sqrt() - self.centre) / self.spread

    def restore(self, z: Tensor) -> Tensor:
        """y of z."""
        return self.edge + (self.centre + self.spread * z).clamp(min=0).square()

    def log_slope(self, y: Tensor) -> Tensor:
        r"""$\log dz/dy$, which is added to a log density of z to make it one of y; $-\infty$ below the edge."""
        slope = -0.5 * (4 * (y - self.edge).maximum(self.least)).log() - self.spread.log()
        return slope.masked_fill(y < self.edge, float("-inf"))

    def within(self, p: Tensor, y: Tensor) -> Tensor:
        """Probabilities of outputs up to y: p from the edge on, and 0 below it."""
        return p.masked_fill(y < self.edge, 0.0)


def rooted(y: Tensor, edge: float) -> Root:
    """Learns the mean and deviation of square roots from numbers `y (n,)`, none of them below an edge."""
    distance = y - edge
    roots = distance.sqrt()
    spread = roots.std(correction=0).clamp(min=1e-6)
    return Root(torch.full_like(spread, edge), roots.mean(), spread, distance[distance > 0].min())


Link = Edge | Band | Root
"""What outputs become, where these are not Gaussian as they are."""


class Scaling(NamedTuple):
    """Both."""

    x: Columns
    y: Outputs

    def state(self) -> dict[str, Tensor]:
        """The tensors by name, to be saved beside the weights."""
        return {f"{side}.{name}": t for side in self._fields for name, t in getattr(self, side)._asdict().items()}


def from_state(tensors: Mapping[str, Tensor]) -> Scaling:
    """What `Scaling.state` returned, read back; files from before there were steps, or ends of them, have none."""
    of_steps = {name: tensors[f"y.{name}"] for name in Steps._fields if f"y.{name}" in tensors}
    try:
        return Scaling(
            Columns(tensors["x.mean"], tensors["x.scale"], tensors["x.flags"]),
            Outputs(tensors["y.mean"], tensors["y.scale"], **of_steps),
        )
    except KeyError as error:
        raise ValueError(f"the standardisation lacks {error}; it has {', '.join(sorted(tensors))}.") from error


def columns(x: Any, *, names: Sequence[str] | None = None, missing: str = "refuse") -> Columns:
    """Learns means and scales: of each column of `x (n, d)`, or of each channel of images `x (n, C, H, W)`.

    Args:
        x: real numbers, NaN for missing.
        names: of the columns, for error messages.
        missing: one of `MISSING`.
    """
    values = np.asarray(x, dtype=np.float64)
    if values.ndim == 2:
        check_learnable(values, names=names)
    check_finite(values, names=names, missing=missing)
    if values.ndim > 2:
        axes = (0, *range(2, values.ndim))
        mean, scale = _moments(values, axes)
        shape = (-1, *(1,) * (values.ndim - 2))
        return Columns(torch.as_tensor(mean).reshape(shape), torch.as_tensor(scale).reshape(shape), _none())
    gaps = np.asarray(np.isnan(values).any(0))
    if missing == "auto" and gaps.any():
        warnings.warn(
            f"missing values: {_gaps(values, gaps, names)}. The mean of the column stands in their place, and one more "
            "input says where; missing='mean' (--missing mean) does so without a word, missing='refuse' refuses them.",
            UserWarning,
            stacklevel=2,
        )
    mean, scale = _moments(values, (0,))
    return Columns(torch.as_tensor(mean), torch.as_tensor(scale), torch.as_tensor(np.flatnonzero(gaps)))


def tell_of_new_gaps(
    x: np.ndarray, learned: Columns, *, names: Sequence[str] | None = None, missing: str = "refuse"
) -> None:
    """Warns of values that rows `x (n, d)` lack in columns that lacked none in training, where `missing` is auto."""
    gaps = np.isnan(x).any(0) if x.ndim == 2 else np.zeros(0, dtype=bool)
    gaps[[i for i in learned.flags.tolist() if i < len(gaps)]] = False
    if missing == "auto" and gaps.any():
        warnings.warn(
            f"missing values, which training had none of: {_gaps(x, gaps, names)}. The mean of the column stands in "
            "their place, and predictions are as sure as of a row that has it.",
            UserWarning,
            stacklevel=2,
        )


def unscaled(width: int) -> Columns:
    """Inputs of a given width that stay as they are."""
    return Columns(torch.zeros(width, dtype=torch.float64), torch.ones(width, dtype=torch.float64), _none())


def outputs(y: Any) -> Outputs:
    """Learns mean and scale of real outputs `y (n,)`; one wrong row among them does not decide what is large."""
    mean, scale = _moments(within_reach(np.asarray(y, dtype=np.float64)), (0,))
    return Outputs(torch.as_tensor(mean), torch.as_tensor(scale))


class Steps(NamedTuple):
    """Of what all outputs are multiples, and the ends of their scale; a step of 0 where they may be any numbers."""

    step: Tensor
    low: Tensor
    high: Tensor


def steps_of(y: Any) -> Steps:
    """The steps that outputs `y (n,)` come in, and where their scale ends.

    Whole numbers, none of which is below zero, come in steps of 1 and begin at 0. So do other outputs in steps where
    they are a scale: a few values, many rows of each, and an end to them. An end of a scale is a value beyond which
    there is none although there should be: marks of 5 are as frequent as marks of 4, while a count of 9 that is the
    largest of all is rare. So it has at least `END_SHARE` of the rows, `END_ROWS` of them, and half as many as the
    value next to it.

    Example:
        >>> counts, marks, stars = [0, 1, 1, 2] * 9 + [9], [1, 2, 3, 4, 5] * 10, [3.5, 4.0, 4.5, 5.0, 5.0] * 9
        >>> [tuple(v.item() for v in steps_of(y)) for y in (counts, marks, stars, [0.5, 3.25, 1.1])]
        [(1.0, 0.0, inf), (1.0, 1.0, 5.0), (0.5, 0.0, 5.0), (0.0, 0.0, inf)]
    """
    values, counts = np.unique(np.asarray(y, dtype=np.float64), return_counts=True)
    whole = bool(len(values) and values[0] >= 0 and np.all(values == np.round(values)))
    step = 1.0 if whole else _common_step(values, counts)
    low, high = (_end(values[::side], counts[::side], step) for side in (1, -1))
    if not whole and low is None and high is None:
        step = 0.0
    least = 0.0 if whole or not step or values[0] >= 0 else -inf
    ends = (step, least if low is None else low, inf if high is None else high)
    return Steps(*(torch.tensor(v, dtype=torch.float64) for v in ends))


def _common_step(values: np.ndarray, counts: np.ndarray) -> float:
    """Of what a few values, with many rows of each, are all multiples; 0 where there is none such."""
    if not 2 < len(values) <= SCALE_VALUES or counts.sum() < SCALE_ROWS * len(values):
        return 0.0
    step = float(np.diff(values).min())
    return step if np.allclose(values / step, np.round(values / step), rtol=0, atol=1e-6) else 0.0


def _end(values: np.ndarray, counts: np.ndarray, step: float) -> float | None:
    """The first of some values, where a scale ends there."""
    if not step or len(values) < 2:
        return None
    return float(values[0]) if counts[0] >= max(END_ROWS, END_SHARE * counts.sum(), counts[1] / 2) else None


def within_reach(y: np.ndarray, beyond: float = BEYOND) -> np.ndarray:
    """Outputs, with those brought closer that lie far beyond most; the very same where none does.

    Far is more than `beyond` deviations of a Gaussian with the same quartiles from the median.

    Example:
        >>> within_reach(np.array([0.0, 1.0, 2.0, 3.0, 1e6])).round(1).tolist()
        [0.0, 1.0, 2.0, 3.0, 16.8]
    """
    low, middle, high = np.quantile(y, [0.25, 0.5, 0.75]) if len(y) else (0.0, 0.0, 0.0)
    reach = beyond * (high - low) / 1.35
    return y.clip(middle - reach, middle + reach) if 0 < reach < np.abs(y - middle).max() else y


def as_they_are() -> Outputs:
    """Outputs that must not be changed: counts, labels."""
    return Outputs(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))


def check_learnable(x: np.ndarray, *, names: Sequence[str] | None = None) -> None:
    """Refuses a column of rows to learn from, `x (n, d)`, that is missing in all of them, by its name."""
    empty = np.flatnonzero(np.isnan(x).all(0))
    if len(x) and len(empty):
        raise ValueError(f"{_name(int(empty[0]), names)} has no values at all: leave it out.")


def check_finite(
    x: np.ndarray,
    *,
    names: Sequence[str] | None = None,
    missing: str = "refuse",
    lines: Sequence[int] | None = None,
) -> None:
    """Refuses infinite values, and missing ones unless they are provided for, by the name of their column.

    Args:
        x: rows `(n, d)`, or images `(n, C, H, W)`.
        names: of the columns.
        missing: one of `MISSING`.
        lines: the line of each row in the file that they come from; None: rows are counted, from 1.
    """
    if missing not in MISSING:
        raise ValueError(f"missing must be one of {', '.join(MISSING)}; got {missing!r}.")
    bad = np.isinf(x)
    what, remedy = "infinite values", "remove or correct those rows"
    if not bad.any() and (missing == "refuse" or x.ndim > 2):
        bad = np.isnan(x)
        what, remedy = "missing values (NaN)", "fill or drop them, or train with missing='mean' (--missing mean)"
    if not bad.any():
        return
    if x.ndim != 2:
        raise ValueError(f"the images have {what} (inf or NaN pixels): remove them.")
    column = int(np.flatnonzero(bad.any(0))[0])
    rows = np.flatnonzero(bad[:, column])
    first = f"row {rows[0] + 1}" if lines is None else f"line {lines[rows[0]]}"
    raise ValueError(
        f"{_name(column, names)} has {what} in {len(rows)} of {len(x)} rows, the first of them {first}: {remedy}."
    )


def _gaps(x: np.ndarray, gaps: np.ndarray, names: Sequence[str] | None) -> str:
    """Columns with missing values, and in how many rows; those of one column of a table count once."""
    rows = {_name(int(i), names): int(np.isnan(x[:, i]).sum()) for i in np.flatnonzero(gaps)}
    first = [f"{name} in {count}" for name, count in list(rows.items())[:NAMED]]
    more = f", and {len(rows) - NAMED} more columns" if len(rows) > NAMED else ""
    return f"{', '.join(first)} of {len(x)} rows{more}"


def _moments(x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over some axes, missing values left out; 1 in place of a deviation of zero."""
    # Dividing by the largest number first keeps the squares from overflowing.
    largest = np.maximum(np.nanmax(np.abs(x), axis=axes, keepdims=True, initial=0.0), np.finfo(np.float64).tiny)
    mean = np.nanmean(x / largest, axis=axes, keepdims=True)
    deviation = np.sqrt(np.nanmean(np.square(x / largest - mean), axis=axes, keepdims=True))
    constant = deviation <= 1e-14 * x.shape[0] ** 0.5  # what rounding makes of equal numbers
    scale = np.where(constant, 1.0, deviation * largest)
    return (mean * largest).squeeze(axes), scale.squeeze(axes)


def _none() -> Tensor:
    return torch.zeros(0, dtype=torch.int64)


def _name(column: int, names: Sequence[str] | None) -> str:
    return f"column {column}" if names is None else f"column {str(names[column])!r}"
