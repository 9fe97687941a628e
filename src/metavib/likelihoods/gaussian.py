"""Likelihoods in closed form: Gaussian outputs, and such as a link makes Gaussian (by logarithms, logits or roots)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import log, pi, sqrt

import torch
from torch import Tensor

from metavib import quadrature
from metavib.likelihoods.likelihood import RealLikelihood
from metavib.linalg import root
from metavib.marginals import Marginals, Normal, Student
from metavib.networks.layers import Positive, lift
from metavib.random import Noise
from metavib.tasks.scaling import Band, Edge, Link, Root

SHARE_NODES = 100  # an error below 1e-6 for standard deviations of a logit up to 10
BEYOND, RARE = 2.0, 2.0  # how much further from its edge than any seen, and how rare, a log-normal output is in a mean
BELIEF = 0.5  # by which logarithm beyond that place outputs become e times rarer


class Gaussian(RealLikelihood):
    r"""$p(y \mid f) = N(y \mid f, \sigma^2)$, with everything in closed form.

    Args:
        noise: starting value of the noise variance.
        floor: its lower bound, which is also what keeps K + S well conditioned in the exact encoder.
        learn: whether the noise variance is learned.

    Example:
        >>> import torch
        >>> from metavib.likelihoods import Gaussian
        >>> from metavib.marginals import Normal
        >>> q = Normal(torch.tensor([[2.0]]), torch.tensor([[0.5]]))
        >>> mean, variance = Gaussian(noise=0.1).predict(q)
        >>> round(mean.item(), 2), round(variance.item(), 2)
        (2.0, 0.6)
    """

    def __init__(self, noise: float = 1.0, *, floor: float = 1e-3, learn: bool = True) -> None:
        super().__init__()
        self.noise = Positive(noise, floor=floor, learn=learn)

    def targets(self, y: Tensor) -> Tensor:
        """The outputs themselves, since they are on the scale of f."""
        return y.unsqueeze(-1)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$-\frac12 [ \log 2 \pi \sigma^2 + (y - f)^2 / \sigma^2 ]$."""
        noise = lift(self.noise(), 1)
        return -0.5 * (log(2 * pi) + noise.log() + (y - f.squeeze(-1)).square() / noise)

    def expected_log_prob(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$\log N(y \mid \mu, \sigma^2) - v / 2 \sigma^2$: exact for any q, since only its mean and variance enter.

        This is eq. 18.
        """
        return self.log_prob(q.mean, y) - 0.5 * q.var.squeeze(-1) / lift(self.noise(), 1)

    def log_predictive(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$\log N(y \mid \mu, v + \sigma^2)$ for a Normal q.

        For a Student q it is $\log t_\nu(y \mid \mu, s + \rho \sigma^2)$ (eq. 33a).
        """
        if isinstance(q, Student):
            (mean, scale), df = self.predict_scale(q), q.df.squeeze(-1)
            constant = torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * (pi * df * scale).log()
            return constant - 0.5 * (df + 1) * torch.log1p((y - mean).square() / (df * scale))
        if not isinstance(q, Normal):
            return super().log_predictive(q, y, noise)
        var = q.var.squeeze(-1) + lift(self.noise(), 1)
        return -0.5 * (log(2 * pi) + var.log() + (y - q.mean.squeeze(-1)).square() / var)

    def predict(self, q: Marginals, noise: Noise = None) -> tuple[Tensor, Tensor]:
        r"""$\mu$ and $v + \sigma^2$; for a Student q $(s + \rho \sigma^2)\, \nu / (\nu - 2)$."""
        if isinstance(q, Student):
            (mean, scale), df = self.predict_scale(q), q.df.squeeze(-1)
            return mean, scale * df / (df - 2)
        return q.mean.squeeze(-1), q.var.squeeze(-1) + lift(self.noise(), 1)

    def predict_scale(self, q: Normal | Student) -> tuple[Tensor, Tensor]:
        r"""$\mu$ and the squared scale: $v + \sigma^2$, or $s + \rho \sigma^2$ for a Student q."""
        if isinstance(q, Normal):
            return self.predict(q)
        return q.mean.squeeze(-1), (q.spread + q.ratio * lift(self.noise(), 2)).squeeze(-1)

    def predictive_cdf(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$\Phi((y - \mu) / \sqrt{v + \sigma^2})$ for a Normal q; that of a t distribution for a Student."""
        if isinstance(q, Student):
            from scipy.special import stdtr

            mean, scale = self.predict_scale(q)
            found = stdtr(*(t.detach().cpu().numpy() for t in (q.df.squeeze(-1), (y - mean) / scale.sqrt())))
            return torch.as_tensor(found, dtype=mean.dtype, device=mean.device)
        if not isinstance(q, Normal):
            return super().predictive_cdf(q, y, noise)
        mean, var = self.predict(q)
        return torch.special.ndtr((y - mean) / var.sqrt())

    def predictive_quantile(self, q: Normal | Student, p: float) -> Tensor:
        r"""$\mu + \sqrt{v + \sigma^2}\, \Phi^{-1}(p)$ for a Normal q; that of a t distribution for a Student."""
        mean, scale = self.predict_scale(q)
        if isinstance(q, Student):
            from scipy.special import stdtrit

            units = torch.as_tensor(stdtrit(q.df.squeeze(-1).cpu().numpy(), p), dtype=scale.dtype, device=scale.device)
        else:
            units = torch.special.ndtri(torch.as_tensor(p, dtype=scale.dtype, device=scale.device))
        return mean + scale.sqrt() * units

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        r"""$f$ and $\sigma^2$."""
        f = f.squeeze(-1)
        return f, lift(self.noise(), 1).expand_as(f)

    def cdf(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$\Phi((y - f) / \sigma)$."""
        return torch.special.ndtr((y - f.squeeze(-1)) / lift(self.noise(), 1).sqrt())


class Warped(RealLikelihood, ABC):
    r"""$p(y \mid f) = N(z \mid f, \sigma^2)\, dz/dy$ with $z = t(y)$: a Gaussian likelihood of what outputs become.

    The exact posterior of f, and every expectation under it, keeps its closed form; quantiles are those of z, brought
    back. What is left to say of a t is what makes z of y (`units`), and mean and variance of y itself (`moments_of`).

    Args:
        noise: starting value of the variance of z.
        kind: of t.
        units: the numbers that it depends on.
        floor: lower bound of the variance.

    Example:
        >>> from metavib.likelihoods import LogitNormal, LogNormal, RootNormal, Warped
        >>> [issubclass(kind, Warped) for kind in (LogNormal, LogitNormal, RootNormal)]
        [True, True, True]
    """

    def __init__(self, noise: float, kind: type[Link], units: Sequence[float], *, floor: float) -> None:
        super().__init__()
        self.normal = Gaussian(noise, floor=floor)
        self._kind = kind
        for name, value in zip(kind._fields, units, strict=True):
            self.register_buffer(name, torch.tensor(float(value)))

    @property
    def noise(self) -> Positive:
        """The variance of z."""
        return self.normal.noise

    @property
    def units(self) -> Link:
        """What makes z of y, with a dimension for the points of a task."""
        return self._kind(*(lift(self.get_buffer(name), 1) for name in self._kind._fields))

    @abstractmethod
    def moments_of(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y where z has a Gaussian distribution."""

    def targets(self, y: Tensor) -> Tensor:
        """z, which is on the scale of f."""
        return self.units.standardise(y).unsqueeze(-1)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$\log N(z \mid f, \sigma^2) + \log dz/dy$."""
        return self.normal.log_prob(f, self.units.standardise(y)) + self.units.log_slope(y)

    def expected_log_prob(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        """That of a Gaussian at z, and the slope."""
        return self.normal.expected_log_prob(q, self.units.standardise(y)) + self.units.log_slope(y)

    def log_predictive(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        """That of a Gaussian at z, and the slope."""
        return self.normal.log_predictive(q, self.units.standardise(y)) + self.units.log_slope(y)

    def predict(self, q: Marginals, noise: Noise = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of y, for a Normal q; for a Student q those of a Normal of the same scale.

        A log-normal output with the tails of Student's t has no mean.
        """
        if not isinstance(q, Normal | Student):
            return super().predict(q, noise)
        return self.moments_of(*self.normal.predict_scale(q))

    def predictive_cdf(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        """That of a Gaussian at z; 0 below all that outputs may be, and 1 above."""
        return self.units.within(self.normal.predictive_cdf(q, self.units.standardise(y)), y)

    def predictive_quantile(self, q: Normal | Student, p: float) -> Tensor:
        """That of z, brought back."""
        return self.units.restore(self.normal.predictive_quantile(q, p))

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y."""
        return self.moments_of(*self.normal.moments(f))

    def cdf(self, f: Tensor, y: Tensor) -> Tensor:
        """That of a Gaussian at z; 0 below all that outputs may be, and 1 above."""
        return self.units.within(self.normal.cdf(f, self.units.standardise(y)), y)


class LogNormal(Warped):
    r"""Outputs on one side of an edge, whose distance from it has a Gaussian logarithm: positive or skewed outputs.

    Here $z = (\log|y - e| - c) / b$ (`metavib.tasks.scaling.Edge`). Means and variances are those of y itself,
    $E[y \mid f] = e \pm e^{c + b f + b^2 \sigma^2 / 2}$, except that in them an output that is both rare (`RARE`
    deviations of z) and `BEYOND` times further from the edge than any that was seen counts as no further: where little
    is known, the mean of a log-normal distribution is made by its rarest outputs, and grows without end. What is rare
    is said by a Gaussian whose mean is lower by $s^2 / \tau$, as it is if outputs beyond that place are e times rarer
    with each `BELIEF` $= \tau$ of their logarithm: a group whose rows are known to lie beyond all others (s small) is
    believed, a line drawn far beyond all rows (s large) is not. The noise is known from all rows, and how far the
    function itself may go where little is known is not. So what is predicted may be told to lie between $E[y \mid f]$
    at the median of f, which averages over the noise alone (Duan's smearing, 1983), and the mean (the buffer `lift`).

    Args:
        noise: starting value of the variance of z.
        edge: e, c, b, and the logarithm of the furthest distance seen; the sign of b says on which side outputs lie.
        floor: lower bound of the variance.
        lift: where predicted outputs lie between those at the median of f, 0, and the mean, 1, by the logarithm of
            their distance from the edge.

    Example:
        The mean of a log-normal distribution lies above its median.

        >>> import torch
        >>> from metavib.likelihoods import LogNormal
        >>> from metavib.marginals import Normal
        >>> likelihood, q = LogNormal(1.0), Normal(torch.zeros(1, 1), torch.zeros(1, 1))
        >>> round(likelihood.predict(q)[0].item(), 2), round(likelihood.predictive_quantile(q, 0.5).item(), 2)
        (1.65, 1.0)
    """

    lift: Tensor

    def __init__(
        self,
        noise: float = 1.0,
        *,
        edge: tuple[float, ...] = (0.0, 0.0, 1.0, 80.0),
        floor: float = 1e-3,
        lift: float = 1.0,
    ) -> None:
        super().__init__(noise, Edge, edge, floor=floor)
        self.register_buffer("lift", torch.tensor(lift))

    def moments_of(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        r"""Of $e \pm \min(D, e^k)$ with $\log D \sim N(m, s^2)$, $m = c + b\mu$, $s^2 = b^2 v$.

        The bound k is `BEYOND` times the furthest distance seen, or $m - s^2 / \tau$ + `RARE` s where that is more.

        $$E[\min(D, e^k)^j] = e^{j m + j^2 s^2 / 2}\, \Phi\big(\tfrac{k - m}{s} - j s\big)
        + e^{j k}\, \Phi\big(\tfrac{m - k}{s}\big)$$

        What is predicted in the place of the mean lies at $e^{m + b^2 \sigma^2 / 2}$ or above, as `lift` says.
        """
        units, place = self.units, lift(self.lift, 1)
        assert isinstance(units, Edge)
        edge, centre, spread, furthest = units
        m, s2 = centre + spread * mean, spread.square() * var
        s = s2.clamp(min=1e-12).sqrt()
        k = (furthest + log(BEYOND)).maximum(m - s2 / BELIEF + RARE * s)
        above = (k - m) / s
        first, second = (
            (j * m + j * j * s2 / 2 + torch.special.log_ndtr(above - j * s)).exp()
            + (j * k + torch.special.log_ndtr(-above)).exp()
            for j in (1, 2)
        )
        # Where the bound is out of reach, the variance in a form without cancellation.
        free = (2 * m + s2).exp() * torch.expm1(s2)
        variance = torch.where(above - 2 * s > 6, free, (second - first.square()).clamp(min=0))
        bounded = m.minimum(k)
        whole = first.log() - bounded  # from the median of y to its mean
        noise = torch.minimum(spread.square() * lift(self.noise(), 1) / 2, whole)
        point = (bounded + noise + place * (whole - noise)).exp()
        return edge + spread.sign() * point, variance


class LogitNormal(Warped):
    r"""Outputs between two ends, whose logit is Gaussian: shares.

    Here $z = (\log(y - l) - \log(h - y) - c) / b$ (`metavib.tasks.scaling.Band`). What is predicted never leaves the
    band from l to h: means and variances are those of y itself, $l + (h - l)\, E[1 / (1 + e^{-c - b z})]$.

    Args:
        noise: starting value of the variance of z.
        band: l, h, c, b, and the places that outputs exactly at l and at h count as; l and h where there are none.
        floor: lower bound of the variance.

    Example:
        Where all is possible, the mean of a share is drawn from its median towards a half.

        >>> import torch
        >>> from metavib.likelihoods import LogitNormal
        >>> from metavib.marginals import Normal
        >>> likelihood, q = LogitNormal(1.0), Normal(torch.full((1, 1), 2.0), torch.full((1, 1), 8.0))
        >>> round(likelihood.predict(q)[0].item(), 2), round(likelihood.predictive_quantile(q, 0.5).item(), 2)
        (0.72, 0.88)
        >>> [round(likelihood.predictive_quantile(q, p).item(), 3) for p in (0.05, 0.95)]
        [0.05, 0.999]
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        noise: float = 1.0,
        *,
        band: tuple[float, ...] = (0.0, 1.0, 0.0, 1.0, 0.0, 1.0),
        floor: float = 1e-3,
    ) -> None:
        super().__init__(noise, Band, band, floor=floor)

    def moments_of(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        r"""Of $l + (h - l) / (1 + e^{-c - b z})$, by the trapezoidal rule over the standard normal density.

        The second moment is taken around the median, so that no large numbers cancel where little is uncertain.
        """
        low, high, centre, spread, *_ = self.units
        median, s = torch.sigmoid(centre + spread * mean), spread * root(var)
        edge = torch.full_like(mean[..., :1], (2 * quadrature.NEGLIGIBLE) ** 0.5)
        x, _ = quadrature.trapezoid(-edge, edge, SHARE_NODES)
        first, second = torch.zeros_like(mean), torch.zeros_like(mean)
        for at, weight in zip(x, (-0.5 * x * x).softmax(0), strict=True):
            off = torch.sigmoid(centre + spread * mean + s * at) - median
            first, second = first + weight * off, second + weight * off.square()
        width = high - low
        return low + width * (median + first), width.square() * (second - first.square()).clamp(min=0)


class RootNormal(Warped):
    r"""Outputs from an edge upwards, whose distance from it has a Gaussian square root: counts, and growth.

    Here $z = (\sqrt{y - e} - c) / b$ (`metavib.tasks.scaling.Root`), and $y = e + \max(r, 0)^2$ with $r = c + b z$:
    what would lie below the root of 0 is the edge itself. Means and variances are those of y.

    Args:
        noise: starting value of the variance of z.
        root: e, c, b, and the smallest distance from the edge that was seen.
        floor: lower bound of the variance.

    Example:
        The mean of a square is the square of the mean, and the variance.

        >>> import torch
        >>> from metavib.likelihoods import RootNormal
        >>> from metavib.marginals import Normal
        >>> likelihood, q = RootNormal(0.5), Normal(torch.full((1, 1), 5.0), torch.full((1, 1), 0.5))
        >>> round(likelihood.predict(q)[0].item(), 2), round(likelihood.predictive_quantile(q, 0.5).item(), 2)
        (26.0, 25.0)
    """

    def __init__(
        self, noise: float = 1.0, *, root: tuple[float, ...] = (0.0, 0.0, 1.0, 1e-6), floor: float = 1e-3
    ) -> None:
        super().__init__(noise, Root, root, floor=floor)

    def moments_of(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        r"""Of $e + \max(r, 0)^2$ with $r \sim N(m, s^2)$, $m = c + b\mu$, $s^2 = b^2 v$.

        With $a = m / s$ they follow from

        $$E[\max(r, 0)^2] = (m^2 + s^2)\, \Phi(a) + m s\, \varphi(a), \qquad
        E[\max(r, 0)^4] = (m^4 + 6 m^2 s^2 + 3 s^4)\, \Phi(a) + (m^3 s + 5 m s^3)\, \varphi(a)$$
        """
        units = self.units
        assert isinstance(units, Root)
        edge, centre, spread, _ = units
        m, s2 = centre + spread * mean, spread.square() * var
        s = s2.clamp(min=1e-24).sqrt()
        a = m / s
        above, at = torch.special.ndtr(a), (-0.5 * a * a).exp() / sqrt(2 * pi)
        first = (m.square() + s2) * above + m * s * at
        second = (m**4 + 6 * m.square() * s2 + 3 * s2.square()) * above + (m**3 * s + 5 * m * s**3) * at
        # Where all of it is above the edge, the variance in a form without cancellation.
        free = 4 * m.square() * s2 + 2 * s2.square()
        return edge + first, torch.where(a > 8, free, (second - first.square()).clamp(min=0))
