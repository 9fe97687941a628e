r"""What is reported of predictions: accuracy and calibration of classes, errors and coverage of real outputs.

Two spreads must never be mixed up, so they have no common name here. `over_episodes` gives the 95 % confidence
interval of a mean over test episodes of *one* trained model, $1.96\, SD / \sqrt n$, and the field is called
`episode_ci95`. `over_trainings` gives the standard deviation between *several* trainings, and the field is called
`training_sd`. Printing either says which it is.

Shapes: tasks lead, `p (..., v, N)` are predictive probabilities at v query points, `y (..., v)` labels, `mask (..., v)`
which of the points are real. Whatever is per task has shape `(...)`.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, isfinite, log, sqrt
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BINS = 15
PAIRS = 6  # of classes, that the temperature 1 counts for
REACH = 0.5  # of the logarithm of a temperature, by which a point's own may differ


# Means and their spreads


class OverEpisodes(NamedTuple):
    """A mean over test episodes of one model, and the half-width of its 95 % confidence interval.

    Example:
        >>> import torch
        >>> from metavib.training.metrics import over_episodes
        >>> print(over_episodes(torch.tensor([0.5, 0.7, 0.6, 0.6])))
        0.6 ± 0.08 (95% CI over 4 episodes)
    """

    mean: float
    episode_ci95: float
    episodes: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.episode_ci95:.2g} (95% CI over {self.episodes} episodes)"


class OverTrainings(NamedTuple):
    """A mean over several trainings of the same method, and the standard deviation between them.

    Example:
        >>> import torch
        >>> from metavib.training.metrics import over_trainings
        >>> print(over_trainings(torch.tensor([0.5, 0.7])))
        0.6 ± 0.14 (SD over 2 trainings)
    """

    mean: float
    training_sd: float
    trainings: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.training_sd:.2g} (SD over {self.trainings} trainings)"


class Interval(NamedTuple):
    r"""A mean and the half-width of its 95 % confidence interval, $1.96\, SD / \sqrt n$.

    Example:
        >>> import torch
        >>> from metavib.training.metrics import interval
        >>> interval(torch.tensor([1.0, 1.0, 1.0]))
        Interval(mean=1.0, ci95=0.0)
    """

    mean: float
    ci95: float


def interval(values: Tensor) -> Interval:
    r"""Mean of independent values and $1.96\, SD / \sqrt n$, SD with n - 1; infinite for a single value."""
    values = values.detach().flatten().to("cpu", torch.float64)
    n = values.numel()
    if not n:
        raise ValueError("a mean needs at least one value; got none.")
    half = 1.96 * float(values.std()) / sqrt(n) if n > 1 else float("inf")
    return Interval(float(values.mean()), half)


def over_episodes(values: Float[Tensor, "*episodes"]) -> OverEpisodes:
    """A metric of each episode, summarised over the episodes of one trained model."""
    return OverEpisodes(*interval(values), values.numel())


def over_trainings(values: Float[Tensor, " trainings"]) -> OverTrainings:
    """One number a training (itself a mean over episodes, say), summarised over trainings; SD with n - 1."""
    values = values.detach().to("cpu", torch.float64)
    if not values.numel():
        raise ValueError("a mean over trainings needs at least one; got none.")
    sd = float(values.std()) if values.numel() > 1 else float("nan")
    return OverTrainings(float(values.mean()), sd, values.numel())


# Classification, per task


def accuracy(
    p: Float[Tensor, "*b v N"], y: Int[Tensor, "*b v"], mask: Bool[Tensor, "*b v"] | None = None
) -> Float[Tensor, "*b"]:
    """Share of the query points whose most probable class is theirs."""
    return _mean((p.argmax(-1) == y).to(p.dtype), mask)


def nll(
    p: Float[Tensor, "*b v N"], y: Int[Tensor, "*b v"], mask: Bool[Tensor, "*b v"] | None = None
) -> Float[Tensor, "*b"]:
    r"""Mean of $-\log p(y)$ over the query points."""
    return _mean(-_of_class(p.clamp(min=torch.finfo(p.dtype).tiny).log(), y), mask)


def brier(
    p: Float[Tensor, "*b v N"], y: Int[Tensor, "*b v"], mask: Bool[Tensor, "*b v"] | None = None
) -> Float[Tensor, "*b"]:
    r"""Mean of $\sum_n (p_n - [y = n])^2$ over the query points: between 0 and 2."""
    return _mean((p - torch.nn.functional.one_hot(y, p.shape[-1])).square().sum(-1), mask)


# Known classes and others


def auroc(known: Float[Tensor, "..."], unknown: Float[Tensor, "..."]) -> float:
    """The chance that a known point has the larger score of the two, ties counting half: 1 is perfect, 0.5 is blind.

    Example:
        >>> import torch
        >>> from metavib.training.metrics import auroc
        >>> auroc(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))
        0.875
    """
    first, second = known.flatten().double(), unknown.flatten().double().sort().values
    below, up_to = (torch.searchsorted(second, first, right=right) for right in (False, True))
    return float((below + up_to).double().mean() / (2 * len(second)))


# Calibration, over all points together


class Reliability(NamedTuple):
    """Points binned by confidence: `edges (bins + 1,)`, and the mean `confidence`, `accuracy` and count of each bin.

    The means of an empty bin are NaN.

    Example:
        >>> import torch
        >>> from metavib.training.metrics import reliability
        >>> p = torch.tensor([[[0.9, 0.1], [0.9, 0.1]]])  # twice 90 % sure of class 0, and once right
        >>> round(reliability(p, torch.tensor([[0, 1]])).ece, 4)
        0.4
    """

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    points: Tensor

    @property
    def ece(self) -> float:
        r"""Expected calibration error: $\sum_b \frac{n_b}{n} |\mathrm{acc}_b - \mathrm{conf}_b|$."""
        gap = (self.accuracy - self.confidence).abs().nan_to_num()
        return float((self.points * gap).sum() / self.points.sum())


def reliability(
    p: Float[Tensor, "*b v N"],
    y: Int[Tensor, "*b v"],
    mask: Bool[Tensor, "*b v"] | None = None,
    *,
    bins: int = BINS,
) -> Reliability:
    """Accuracy against confidence (the largest probability) in equal bins, all points of all tasks pooled.

    Bins are closed above, (0, 1/15], (1/15, 2/15], ...: a confidence on an edge counts below it.
    """
    if bins < 1:
        raise ValueError(f"there must be at least one bin; got {bins}.")
    confidence, predicted = p.max(-1)
    hit = predicted == y
    confidence, hit = (t if mask is None else t[mask] for t in (confidence, hit))
    confidence, hit = confidence.flatten().double(), hit.flatten().double()
    if not confidence.numel():
        raise ValueError("calibration needs at least one point; got none.")
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=p.device)
    index = torch.bucketize(confidence, edges[1:-1])
    count = torch.bincount(index, minlength=bins).double()
    sums = (torch.bincount(index, weights, minlength=bins) for weights in (confidence, hit))
    mean_confidence, mean_accuracy = (total / count for total in sums)
    return Reliability(edges, mean_confidence, mean_accuracy, count)


def ece(
    p: Float[Tensor, "*b v N"],
    y: Int[Tensor, "*b v"],
    mask: Bool[Tensor, "*b v"] | None = None,
    *,
    bins: int = BINS,
) -> float:
    """Expected calibration error in equal bins, all points of all tasks pooled."""
    return reliability(p, y, mask, bins=bins).ece


@final
@dataclass(frozen=True)
class Temperature:
    r"""The temperature of class probabilities, by the number of points of a class that a task has on average.

    A model can be too sure with many points of a class and right with few. So a temperature is fitted for each of some
    numbers of shots; between them it is linear in the logarithm of their number, and beyond them it is constant.

    It can also be too sure of pictures of one kind, scans of handwriting say, and not sure enough of another. Where
    the features of the point that is predicted tell kinds apart, its temperature is multiplied by
    $\exp(b^\top \phi + b_0)$, kept within `REACH` (a temperature that depends on the input: Tomani et al., ECCV 2022).

    Args:
        shots: at which numbers temperatures are known, in ascending order.
        values: the temperature at each; 1 leaves probabilities as they are.
        slope: b, a number for each feature, and then $b_0$; none where the temperature is the same for all points.

    Example:
        >>> from metavib.training.metrics import Temperature
        >>> known = Temperature((1, 4), (1.0, 2.0))
        >>> [round(known.at(shots), 3) for shots in (0, 1, 2, 4, 100)]
        [1.0, 1.0, 1.5, 2.0, 2.0]
    """

    shots: tuple[int, ...] = (1,)
    values: tuple[float, ...] = (1.0,)
    slope: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in pairwise((0, *self.shots)))
        if len(self.shots) != len(self.values) or not self.shots or not ascending:
            raise ValueError(f"expected a temperature at each of some ascending numbers of shots; got {self}")
        if not all(0 < value < inf for value in self.values):
            raise ValueError(f"a temperature must be positive; got {self.values}")
        if not all(map(isfinite, self.slope)):
            raise ValueError("the slope of a temperature must be finite numbers.")

    def at(self, shots: float) -> float:
        """The temperature for tasks with so many points of a class on average."""
        return float(np.interp(log(max(shots, 1e-9)), [log(k) for k in self.shots], self.values))

    def factor(self, phi: Float[Tensor, "*b v m"]) -> Float[Tensor, "*b v 1"]:
        """What the temperature of each point is multiplied by, from its features."""
        *b, offset = self.slope
        return (phi @ phi.new_tensor(b) + offset).clamp(-REACH, REACH).exp().unsqueeze(-1)

    @property
    def plain(self) -> bool:
        """Whether probabilities are left as they are."""
        return all(value == 1.0 for value in self.values) and not self.slope


PLAIN = Temperature()
"""Leaves probabilities as they are."""


def tempered(p: Float[Tensor, "*b v N"], temperature: float | Tensor) -> Float[Tensor, "*b v N"]:
    r"""$p_n^{1/T}$, normalised: the softmax of logits over T where p is the softmax of logits.

    Args:
        p: probabilities.
        temperature: T; or one for each point, `(..., v, 1)`.
    """
    return (p.clamp(min=torch.finfo(p.dtype).tiny).log() / temperature).softmax(-1)


def fit_temperature(
    p: Float[Tensor, "*b v N"],
    y: Int[Tensor, "*b v"],
    mask: Bool[Tensor, "*b v"] | None = None,
    *,
    cautious: bool = False,
) -> float:
    r"""The T that minimises the NLL of `tempered(p, T)`, to be fitted on validation and used on test.

    The NLL is convex in 1/T, so that it has one minimum on $\log T \in [\log 0.01, \log 100]$, which golden sections
    find to five digits. A minimum at an end (perfect or hopeless predictions) is that end.

    Args:
        p: predicted probabilities.
        y: labels.
        mask: which points are real.
        cautious: count one label in n + 2 as wrong, as the rule of succession does. Where all n predictions are right,
            certainty is then that of n trials, and not boundless.
    """
    p, y = (p.flatten(0, -2), y.flatten()) if mask is None else (p[mask], y[mask])
    if not len(y):
        raise ValueError("a temperature needs at least one point to be fitted to; got none.")
    log_p = p.double().clamp(min=torch.finfo(p.dtype).tiny).log()
    wrong = 1 / (len(y) + 2) if cautious else 0.0

    def loss(log_t: float) -> float:
        logs = (log_p * exp(-log_t)).log_softmax(-1)
        right = _of_class(logs, y)
        others = (logs.sum(-1) - right) / max(1, logs.shape[-1] - 1)
        return float(-((1 - wrong) * right + wrong * others).mean()) if wrong else float(-right.mean())

    low, high = log(0.01), log(100.0)
    ratio = (sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = loss(a), loss(b)
    while high - low > 1e-6:
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = loss(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = loss(b)
    return exp((low + high) / 2)


def shrunk(temperature: float, classes: int, *, counts: float = PAIRS) -> float:
    r"""A temperature that was fitted on tasks of C classes, drawn towards 1 where these are few: $T^{P / (P + 6)}$.

    Tasks are hard where classes are confused with each other, so that evidence comes in pairs of classes,
    $P = C (C - 1) / 2$, however many tasks are drawn from them. A model that was trained by likelihood needs T = 1
    where new classes are like those of training; this counts for the six pairs of four classes more. With 3 and 6
    classes to validate on, the ECE on other classes goes from 3.8 and 1.5 % to 2.7 and 1.3 % by it, and the NLL from
    0.350 and 0.256 to 0.346 and 0.255; three pairs do as well (2.4 and 1.3 %), many more do not. For ProtoNet and DKT,
    whose scale means nothing, it only does harm (`python -m benchmarks temperatures few-classes`).

    Args:
        temperature: T, the best on these tasks.
        classes: C.
        counts: of how many pairs of classes the temperature 1 counts as the evidence.

    Example:
        >>> from metavib.training.metrics import shrunk
        >>> [round(shrunk(0.5, classes), 3) for classes in (1, 3, 12, 1000)]
        [1.0, 0.794, 0.53, 0.5]
    """
    pairs = classes * (classes - 1) / 2
    return temperature ** (pairs / (pairs + counts))


# Regression, per task


def mse(
    mean: Float[Tensor, "*b v"], y: Float[Tensor, "*b v"], mask: Bool[Tensor, "*b v"] | None = None
) -> Float[Tensor, "*b"]:
    """Mean squared error of the predictive mean over the query points."""
    return _mean((mean - y).square(), mask)


def log_density(log_p: Float[Tensor, "*b v"], mask: Bool[Tensor, "*b v"] | None = None) -> Float[Tensor, "*b"]:
    """Mean log predictive density over the query points."""
    return _mean(log_p, mask)


def coverage(pit: Float[Tensor, "*b v"], level: float, mask: Bool[Tensor, "*b v"] | None = None) -> Float[Tensor, "*b"]:
    r"""Share of the query points inside the central interval of the given level.

    Args:
        pit: the predictive distribution function at the outputs, $P(Y \le y)$ (the probability integral transform);
            y is in the central interval where it lies within level/2 of 1/2.
        level: between 0 and 1; predictions are calibrated where the coverage is the level.
        mask: which points are real.
    """
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval lies between 0 and 1; got {level}.")
    return _mean(((pit - 0.5).abs() <= level / 2).to(pit.dtype), mask)


def _of_class(values: Float[Tensor, "*b v N"], y: Int[Tensor, "*b v"]) -> Float[Tensor, "*b v"]:
    return values.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def _mean(values: Float[Tensor, "*b v"], mask: Bool[Tensor, "*b v"] | None) -> Float[Tensor, "*b"]:
    if mask is None:
        return values.mean(-1)
    return torch.where(mask, values, 0.0).sum(-1) / mask.sum(-1)
