"""Likelihoods whose integrals over q(f) are taken numerically, where the integrand lives: Student-t and Poisson."""

from math import ceil, exp, lgamma, log, log1p, pi, sqrt

import numpy as np
import torch
from torch import Tensor

from metavib import quadrature
from metavib.likelihoods.likelihood import RealLikelihood, floating
from metavib.linalg import root
from metavib.marginals import Marginals, Nodes, Normal
from metavib.networks.layers import Positive, lift
from metavib.random import Noise

POISSON_NODES = 48  # an error below 1e-6 nats for counts up to millions and variances up to 9
STEEPEST = 30.0  # e^30 times a count is beyond any rate


class StudentT(RealLikelihood):
    r"""$p(y \mid f) = t_\nu(y \mid f, \sigma)$: heavy tails, so that outliers do not drag the function along.

    The t distribution is a mixture of Gaussians $N(y \mid f, \sigma^2/\lambda)$, where $\lambda$ has the gamma density
    of shape and rate $\nu/2$. Each of them meets a Gaussian q(f) in closed form. What is left to integrate over is
    $\log \lambda$, in which everything is smooth however wide q is (eqs. 22a to 22c).

    Args:
        scale: starting value of $\sigma^2$ (the squared scale).
        df: degrees of freedom $\nu$, above 2 so that the variance exists.
        floor: lower bound of the squared scale.

    Example:
        An output far from all others costs much less than under a Gaussian.

        >>> import torch
        >>> from metavib.likelihoods import Gaussian, StudentT
        >>> from metavib.marginals import Normal
        >>> q, y = Normal(torch.zeros(1, 1), torch.ones(1, 1)), torch.tensor([20.0])
        >>> [round(p.log_predictive(q, y).item(), 1) for p in (Gaussian(1.0), StudentT(1.0))]
        [-101.3, -12.5]
    """

    def __init__(self, scale: float = 1.0, *, df: float = 4.0, floor: float = 1e-3) -> None:
        super().__init__()
        if df <= 2:
            raise ValueError(f"df must be above 2 for the predictive variance to exist; got {df}.")
        self.df = df
        self.scale = Positive(scale, floor=floor)
        self.mixture_nodes = max(80, ceil(12 * sqrt(df)))  # the mixing density narrows as 1 / sqrt(nu)

    def targets(self, y: Tensor) -> Tensor:
        """The outputs themselves, since they are on the scale of f."""
        return y.unsqueeze(-1)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$-\log B(\frac12, \frac\nu2) \sqrt\nu \sigma - \frac{\nu+1}2 \log(1 + r^2/\nu)$, $r = (y - f)/\sigma$."""
        squared = (y - f.squeeze(-1)).square() / (self.df * lift(self.scale(), 1))
        return self._at_centre() - 0.5 * (self.df + 1) * torch.log1p(squared)

    def expected_log_prob(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$\log p(f \mid f) - \frac{\nu+1}2 \int_0^\infty t^{-1} e^{-t} (1 - E_q[e^{-t r^2/\nu}])\, dt$ (eq. 22c).

        The integral is $E_q[\log(1 + r^2/\nu)]$, and the expectation under it has a closed form for a Normal q.
        """
        if not isinstance(q, Normal):
            return super().expected_log_prob(q, y, noise)
        unit = self.df * lift(self.scale(), 1)
        d, v = (y - q.mean.squeeze(-1)).square() / unit, q.var.squeeze(-1) / unit
        log_t, h = quadrature.trapezoid(
            -torch.log1p(d + v) - quadrature.NEGLIGIBLE,
            torch.full_like(d, log(quadrature.NEGLIGIBLE)),
            self.mixture_nodes,
        )
        t = log_t.exp()
        spread = 1 + 2 * t * v
        # log(1 + r^2 / nu) = int (e^-t - e^{-t (1 + r^2 / nu)}) / t dt, on the scale of log t
        vanished = -torch.expm1(-0.5 * spread.log() - t * d / spread)
        return self._at_centre() - 0.5 * (self.df + 1) * h * ((-t).exp() * vanished).sum(0)

    def log_predictive(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$\log \int N(y \mid \mu, v + \sigma^2 / \lambda)\, p(\lambda)\, d\lambda$ for a Normal q (eq. 22b)."""
        if not isinstance(q, Normal):
            return super().log_predictive(q, y, noise)
        var, log_w = self._mixture(q, y)
        squared = (y - q.mean.squeeze(-1)).square()
        return torch.logsumexp(log_w - 0.5 * (log(2 * pi) + var.log() + squared / var), 0)

    def predictive_cdf(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$\int \Phi((y - \mu) / \sqrt{v + \sigma^2 / \lambda})\, p(\lambda)\, d\lambda$ for a Normal q."""
        if not isinstance(q, Normal):
            return super().predictive_cdf(q, y, noise)
        var, log_w = self._mixture(q, y)
        return (log_w.softmax(0) * torch.special.ndtr((y - q.mean.squeeze(-1)) / var.sqrt())).sum(0)

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        r"""$f$ and $\sigma^2 \nu / (\nu - 2)$."""
        f = f.squeeze(-1)
        return f, (lift(self.scale(), 1) * self.df / (self.df - 2)).expand_as(f)

    def cdf(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$\frac12 + Z^{-1} \int_0^\theta \cos^{\nu-1} t\, dt$ with $\tan\theta = (y-f)/\sigma\sqrt\nu$.

        With $u = \sqrt\nu \tan t$ the density's heavy tails become a smooth function on a bounded interval, which
        Gauss-Legendre integrates to rounding (eq. 22).
        """
        nu = self.df
        theta = torch.atan((y - f.squeeze(-1)) / (lift(self.scale(), 1) * nu).sqrt())
        x, w = (torch.as_tensor(a, dtype=f.dtype, device=f.device) for a in np.polynomial.legendre.leggauss(48))
        density = torch.cos(theta[..., None] * (x + 1) / 2) ** (nu - 1)
        Z = pi**0.5 * torch.tensor(lgamma(nu / 2) - lgamma((nu + 1) / 2), dtype=f.dtype, device=f.device).exp()
        return 0.5 + theta / 2 * (density @ w) / Z

    def _at_centre(self) -> Tensor:
        """The log density at its centre, `(..., 1)`."""
        nu = self.df
        return lgamma((nu + 1) / 2) - lgamma(nu / 2) - 0.5 * (log(nu * pi) + lift(self.scale(), 1).log())

    def _mixture(self, q: Normal, y: Tensor) -> tuple[Tensor, Tensor]:
        r"""The predictive mixture: variances $v + \sigma^2/\lambda_k$ and logarithms of weights, `(k, ..., v)`."""
        a, scale, var = self.df / 2, lift(self.scale(), 1), q.var.squeeze(-1)
        # The integrand's modes lie between nu / (nu + r^2) and (nu + 1) / nu; how fast it vanishes beyond, Gamma says.
        r2 = (y - q.mean.squeeze(-1)).square() / scale
        left, right = quadrature.reach(torch.full_like(r2, a))
        u, h = quadrature.trapezoid(left - torch.log1p(r2 / self.df), right + log1p(1 / self.df), self.mixture_nodes)
        # log Gamma of lambda = e^u, on the scale of u
        log_w = a * log(a) - a - lgamma(a) - a * (torch.expm1(u) - u) + h.log()
        return var + scale * (-u).exp(), log_w


class Poisson(RealLikelihood):
    r"""$p(y \mid f) = \mathrm{Poisson}(y \mid e^f)$ for counts.

    An integral over a Gaussian q(f) is taken between the two places where $p(y \mid f)\, q(f)$ has vanished. They
    depend on y: a count of thousands makes a far narrower likelihood than a count of none (eqs. 22d to 22f).

    Example:
        >>> import torch
        >>> from metavib.likelihoods import Poisson
        >>> from metavib.marginals import Normal
        >>> q = Normal(torch.tensor([[2.0]]), torch.tensor([[0.5]]))
        >>> mean, variance = Poisson().predict(q)  # e^{mu + v/2}, and more than that
        >>> round(mean.item(), 2), round(variance.item(), 2)
        (9.49, 67.88)
        >>> round(Poisson().log_predictive(q, torch.tensor([1000])).item(), 2)  # a hundred times the mean
        -31.51
    """

    def targets(self, y: Tensor) -> Tensor:
        r"""$\log(1 + y)$: counts on the scale of f."""
        return torch.log1p(floating(y)).unsqueeze(-1)

    def check(self, y: Tensor) -> None:
        """Refuses anything but counts."""
        if y.numel() and (bool((y < 0).any()) or (y.is_floating_point() and bool((y != y.round()).any()))):
            raise ValueError("Poisson outputs must be counts 0, 1, 2, ...; got negative or fractional values.")

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$y f - e^f - \log y!$."""
        log_c, f = _log_count(y, f), f.squeeze(-1)
        return self._log_p(f, f - log_c, y, log_c)

    def expected_log_prob(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$y \mu - e^{\mu + v/2} - \log y!$ for a Normal q (eq. 19)."""
        if not isinstance(q, Normal):
            return super().expected_log_prob(q, y, noise)
        log_c, mean = _log_count(y, q.mean), q.mean.squeeze(-1)
        return self._log_p(mean, mean - log_c + q.var.squeeze(-1) / 2, y, log_c)

    def log_predictive(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$\log \int p(y \mid f)\, q(f)\, df$ for a Normal q, around the mode of its integrand (eq. 22d)."""
        if not isinstance(q, Normal):
            return super().log_predictive(q, y, noise)
        nodes = self._around_mode(q, y.to(q.mean.dtype))
        return nodes.log_mean_exp(self.log_prob(nodes.f, y))

    def predict(self, q: Marginals, noise: Noise = None) -> tuple[Tensor, Tensor]:
        r"""$e^{\mu + v/2} = \bar\lambda$ and $\bar\lambda + \bar\lambda^2 (e^v - 1)$ for a Normal q."""
        if not isinstance(q, Normal):
            return super().predict(q, noise)
        mean, var = q.mean.squeeze(-1), q.var.squeeze(-1)
        rate = (mean + var / 2).exp()
        return rate, rate + rate.square() * torch.expm1(var)

    def predictive_cdf(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$E_q[\Gamma(y+1, e^f)] / \Gamma(y+1)$ for a Normal q (eq. 22f).

        It is the probability that f is below $g = \log G$, with G of the gamma distribution of shape y + 1. Of the two,
        f and g, the narrower one is integrated over, and what the other one says of it is smooth on its scale.
        """
        if not isinstance(q, Normal):
            return super().predictive_cdf(q, y, noise)
        mean, sd = q.mean.squeeze(-1), root(q.var.squeeze(-1))
        shape = y.to(mean.dtype).floor().clamp(min=0).expand_as(mean) + 1
        # over f: a trapezoidal rule for the standard normal density
        edge = torch.full_like(mean, (2 * quadrature.NEGLIGIBLE) ** 0.5)
        x, _ = quadrature.trapezoid(-edge, edge, POISSON_NODES)
        over_f = ((-0.5 * x * x).softmax(0) * torch.special.gammaincc(shape.expand_as(x), (mean + sd * x).exp())).sum(0)
        # over g: the density of log G around log(y + 1) is exp(-(y + 1) (e^x - 1 - x)), up to a factor
        x, _ = quadrature.trapezoid(*quadrature.reach(shape), POISSON_NODES)
        above = torch.special.ndtr((shape.log() + x - mean) / sd.clamp(min=torch.finfo(sd.dtype).tiny))
        over_g = ((-shape * (torch.expm1(x) - x)).softmax(0) * above).sum(0)
        return torch.where(y < 0, 0.0, torch.where(sd * shape.sqrt() < 1, over_f, over_g))

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and variance of a count, both $e^f$."""
        rate = f.squeeze(-1).exp()
        return rate, rate

    def cdf(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$\Gamma(y + 1, e^f) / \Gamma(y + 1)$."""
        rate = f.squeeze(-1).exp()
        count = y.to(f.dtype).floor()
        return torch.where(count < 0, 0.0, torch.special.gammaincc(count.clamp(min=0).expand_as(rate) + 1, rate))

    @staticmethod
    def _log_p(f: Tensor, x: Tensor, y: Tensor, log_c: Tensor) -> Tensor:
        r"""$y f - c e^x - \log y!$ with c the count, or 1 where there is none.

        Here x is f less $\log c$. As it stands, three large numbers would add up to a small one. Relative to the count
        the sum is $y\,(f - \log c) - c\,(e^x - 1)$, and what is left over depends on y alone. Beyond $e^{30}$ times the
        count the exponential goes on as a straight line: a rate that no data can have is finite too, with a gradient.
        """
        y64 = y.double()
        c64 = y64.clamp(min=1)
        rest = (y64 * c64.log() - c64 - torch.lgamma(y64 + 1)).to(f.dtype)
        steep = torch.expm1(x.clamp(max=STEEPEST)) + exp(STEEPEST) * (x - STEEPEST).clamp(min=0)
        return rest - (c64.to(f.dtype) * steep - y.to(f.dtype) * (f - log_c))

    @staticmethod
    @torch.no_grad()
    def _mode_and_reach(mean: Tensor, var: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""The mode of $y f - e^f - (f - \mu)^2 / 2v$ and how far the integrand reaches left and right of it."""
        # y - e^f - (f - mu) / v = 0 is z + e^z = log v + mu + v y for z = f + log v: convex, Newton's from above
        target = var.log() + mean + var * y
        z = torch.where(target > 1, target.clamp(min=1).log(), target)
        for _ in range(4):
            z = z - (z + z.exp() - target) / (1 + z.exp())
        mode = z - var.log()
        return mode, *quadrature.reach(mode.exp(), 1 / var)

    def _around_mode(self, q: Normal, y: Tensor) -> Nodes:
        r"""Nodes $f_k = \mu + \sqrt v x_k$ where $p(y \mid f)\, q(f)$ lies; weights are $q(f_k)$ times the distance."""
        mean, var = q.mean.squeeze(-1), q.var.squeeze(-1)
        some = var.detach().clamp(min=1e-10)  # no variance at all is a window of some width on the scale of x
        mode, left, right = self._mode_and_reach(mean, some, y)
        low, high = (mode + left - mean) / some.sqrt(), (mode + right - mean) / some.sqrt()
        x, h = quadrature.trapezoid(low, high, POISSON_NODES)
        return Nodes((mean + root(var) * x).unsqueeze(-1), h.log() - 0.5 * (log(2 * pi) + x * x))


def _log_count(y: Tensor, f: Tensor) -> Tensor:
    """The logarithm of each count, and of 1 where it is 0, with as many digits as f can hold."""
    return y.double().clamp(min=1).log().to(f.dtype)
