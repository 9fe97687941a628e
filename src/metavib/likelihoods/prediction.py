r"""$p(y \mid D_t)$, what is predicted of new points: a distribution over real outputs, or over classes."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from metavib.likelihoods.gaussian import Gaussian, LogitNormal, Warped
from metavib.likelihoods.integrated import Poisson
from metavib.likelihoods.likelihood import RealLikelihood
from metavib.marginals import Marginals, Normal, Student
from metavib.tasks.scaling import Outputs, as_they_are

ROUNDED = 1e-9  # of a step: what rounding makes of a multiple of it
BISECTIONS = 80  # of a bracket a few standard deviations wide: far below float64's rounding of the answer


class Interval(NamedTuple):
    """From `low` to `high`, `(v,)` each."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True, eq=False)
class RealPrediction:
    """p(y | D_t) of real or count outputs at v points, in the units of the outputs.

    Where outputs come in steps (`units.stepped`: counts, marks from 1 to 5), so does what is predicted: the probability
    of k is that of all that is nearer to k than to its neighbours, and of an end of the scale, such as a count of 0,
    that of all beyond it (`metavib.tasks.scaling.Grid`). So quantiles and ends of intervals are steps, `log_density` is
    the logarithm of a probability (over the length of a step), as under a Poisson likelihood, and means lie within the
    scale.

    Args:
        q: the marginals of the latent function, in the model's own space.
        likelihood: p(y | f).
        mean: predictive mean `(v,)`.
        variance: predictive variance, that of the noise included, `(v,)`.
        units: how outputs were standardised before the model saw them.

    Example:
        >>> from metavib.likelihoods import Gaussian
        >>> q = Normal(torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
        >>> likelihood = Gaussian(noise=3.0).double().requires_grad_(False)
        >>> found = RealPrediction(q, likelihood, *likelihood.predict(q))
        >>> [round(float(end), 2) for end in found.interval(0.95)]  # 0 +- 1.96 sqrt(1 + 3)
        [-3.92, 3.92]
        >>> round(float(found.cdf(torch.zeros(1))), 2)
        0.5
    """

    q: Marginals
    likelihood: RealLikelihood
    mean: Float[Tensor, " v"]
    variance: Float[Tensor, " v"]
    units: Outputs = field(default_factory=as_they_are)

    def restored(self, units: Outputs) -> "RealPrediction":
        """The same distribution of outputs that were standardised before the model saw them, in their own units."""
        variance = units.restore_variance(self.variance)
        found = RealPrediction(self.q, self.likelihood, self.mean, variance, units)
        return replace(found, mean=units.clamped(found._restored(self.mean)))

    def interval(self, level: float = 0.95) -> Interval:
        r"""The central interval: each side of it holds $(1 - \mathrm{level}) / 2$.

        No interval of whole numbers, or of other steps, holds just so much. One from quantile to quantile would hold
        more, and of few numbers much more. So an end is left out where more than half of its probability lies outside:
        k is in the interval where $P(Y < k) + P(Y = k) / 2$ (the mid-P value) is neither below the one side nor above
        the other; the median is, where no number would be.
        """
        if not 0 < level < 1:
            raise ValueError(f"the level of an interval lies between 0 and 1; got {level}.")
        below, upto = (1 - level) / 2, (1 + level) / 2
        low, high = self.quantile(below), self.quantile(upto)
        if not (step := self.step):
            return Interval(low, high)
        low, high = low + step * (self._middle(low) < below), high - step * (self._middle(high) > upto)
        empty, median = low > high, self.quantile(0.5)
        return Interval(torch.where(empty, median, low), torch.where(empty, median, high))

    @property
    def step(self) -> float:
        """The distance between two outputs; 0 where there may be any others between them."""
        return 1.0 if isinstance(self.likelihood, Poisson) else float(self.units.step)

    def _middle(self, k: Tensor) -> Tensor:
        r"""$P(Y < k) + P(Y = k) / 2$ of outputs in steps."""
        return (self.cdf(k - self.step) + self.cdf(k)) / 2

    def quantile(self, p: float) -> Float[Tensor, " v"]:
        r"""The smallest y with $P(Y \le y) \ge p$: in closed form where there is one, else by bisection of eq. 21."""
        if not 0 < p < 1:
            raise ValueError(f"a quantile is of a probability between 0 and 1; got {p}.")
        if isinstance(self.likelihood, Gaussian | Warped) and isinstance(self.q, Normal | Student):
            found = self._restored(self.likelihood.predictive_quantile(self.q, p))
        else:
            low, high = self._bracket(p)
            for _ in range(BISECTIONS):  # P(Y <= low) < p <= P(Y <= high) throughout
                middle = low + (high - low) / 2
                above = self._cdf(middle) >= p
                low, high = torch.where(above, low, middle), torch.where(above, middle, high)
            found = high.floor() if isinstance(self.likelihood, Poisson) else high
        return self.units.rounded(found)

    def cdf(self, y: Float[Tensor, " v"]) -> Float[Tensor, " v"]:
        r"""$P(Y \le y)$."""
        if not self.units.stepped:
            return self._cdf(y)
        between = ((y / self.step + ROUNDED).floor() + 0.5) * self.step  # this step and the next
        return self.units.grid.bounded(self._cdf(between), self.units.standardise(between))

    def _cdf(self, y: Tensor) -> Tensor:
        """The same before outputs become steps."""
        return self.likelihood.predictive_cdf(self.q, self.units.standardise(y))

    def log_density(self, y: Float[Tensor, " v"]) -> Float[Tensor, " v"]:
        r"""$\log p(y \mid D_t)$ (eq. 20); in steps the logarithm of the nearest one's probability over its length."""
        if self.units.stepped:
            nearest = self.units.standardise(self.units.nearest(y))
            mass = self.likelihood.log_mass(self.q, nearest, self.units.grid)
            return mass - log(float(self.units.step))
        return self.likelihood.log_predictive(self.q, self.units.standardise(y)) - self.units.log_scale

    def rows(self, level: float = 0.95) -> list[dict[str, Any]]:
        """A dictionary a point, for tables and JSON: mean, standard deviation, and the ends of an interval."""
        names = ("mean", "sd", f"low {level:.0%}", f"high {level:.0%}")
        values = torch.stack([self.mean, self.variance.sqrt(), *self.interval(level)], -1)
        return [dict(zip(names, row, strict=True)) for row in values.tolist()]

    def _restored(self, y: Tensor) -> Tensor:
        """Outputs in their own units; those in a band do not leave it by the rounding of their last digit."""
        found = self.units.restore(y)
        if not isinstance(self.likelihood, LogitNormal):
            return found
        low, high = (round(float(self.units.restore(end)), 12) for end in (self.likelihood.low, self.likelihood.high))
        return found.clamp(low, high)

    def _bracket(self, p: float) -> tuple[Tensor, Tensor]:
        width = self.variance.sqrt() + 1.0
        low, high = self.mean - width, self.mean + width
        for _ in range(1000):
            too_high, too_low = self._cdf(low) >= p, self._cdf(high) < p
            if not bool((too_high | too_low).any()):
                return low, high
            width = 2 * width
            low, high = torch.where(too_high, low - width, low), torch.where(too_low, high + width, high)
        raise ValueError(f"the predictive distribution has no quantile of {p}: its mean or variance is not finite.")


@dataclass(frozen=True, eq=False)
class ClassPrediction:
    """p(y | D_t) over N classes at v points.

    Args:
        probabilities: `(v, N)`.
        best: the column of the predicted class `(v,)`: that of the largest latent mean, which needs no sampling, or
            of the largest probability where classes differ in variance.
        classes: the labels of the columns.

    Example:
        >>> found = ClassPrediction(torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([0, 1]), ("cat", "dog"))
        >>> found.labels
        ['cat', 'dog']
        >>> found.entropy
        tensor([0.3251, 0.6931])
    """

    probabilities: Float[Tensor, "v N"]
    best: Int[Tensor, " v"]
    classes: tuple[Hashable, ...]

    @property
    def labels(self) -> list[Hashable]:
        """The label of the predicted class of each point."""
        return [self.classes[i] for i in self.best.tolist()]

    @property
    def entropy(self) -> Float[Tensor, " v"]:
        r"""$-\sum_n p_n \log p_n$ in nats: 0 when certain, $\log N$ when all classes are equally likely."""
        return torch.special.entr(self.probabilities).sum(-1)

    def rows(self, level: float = 0.95) -> list[dict[str, Any]]:
        """A dictionary a point, for tables and JSON: the class, the entropy, and the probability of each class."""
        names = [f"p({label})" for label in self.classes]
        found = zip(self.labels, self.entropy.tolist(), self.probabilities.tolist(), strict=True)
        return [{"class": k, "entropy": h, **dict(zip(names, p, strict=True))} for k, h, p in found]


Prediction = RealPrediction | ClassPrediction
