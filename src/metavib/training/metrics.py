r"""What is reported of predictions: accuracy and calibration of classes, errors and coverage of real outputs.

Two spreads must never be mixed up, so they have no common name here. `over_episodes` gives the 95 % confidence
interval of a mean over test episodes of *one* trained model, $1.96\, SD / \sqrt n$, and the field is called
`episode_ci95`. `over_trainings` gives the standard deviation between *several* trainings, and the field is called
`training_sd`. Printing either says which it is.

Shapes: tasks lead, `p (..., v, N)` are predictive probabilities at v query points, `y (..., v)` labels, `mask (..., v)`
which of the points are real. Whatever is per task has shape `(...)`.
"""

from math import sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BINS = 15


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


def report(p: Tensor, y: Tensor, mask: Tensor) -> dict[str, Any]:
    """Accuracy, NLL and Brier score with their intervals over episodes, ECE and the reliability curve."""
    curve = reliability(p, y, mask)
    return {
        "accuracy": over_episodes(accuracy(p, y, mask))._asdict(),
        "nll": over_episodes(nll(p, y, mask))._asdict(),
        "brier": over_episodes(brier(p, y, mask))._asdict(),
        "ece": curve.ece,
        "reliability": {
            "confidence": [None if c != c else c for c in curve.confidence.tolist()],
            "accuracy": [None if a != a else a for a in curve.accuracy.tolist()],
            "points": curve.points.tolist(),
        },
    }


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
