r"""p(y | f): the decoder of the bound.

Every likelihood answers the same questions of any marginals q(f): the expected log likelihood
$E_q[\log p(y \mid f)]$ (for training), the log predictive density $\log E_q[p(y \mid f)]$ (for evaluation), and its
predictions. A new one needs `latents`, `targets`, `log_prob`, `nodes` and the predictive moments of p(y | f);
closed forms override the general path, which stays as their oracle.

Shapes: `f (..., v, c)` with c = `latents` values a point, `y (..., v)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from math import lgamma, log, pi

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from metavib.fast import draws
from metavib.marginals import Marginals, Nodes, Normal
from metavib.networks.layers import Positive, lift
from metavib.random import Noise


class Likelihood(nn.Module, ABC):
    """p(y | f), with c = `latents` latent values behind each output."""

    latents: int = 1
    hermite_nodes: int = 32  # exact to polynomials of degree 63 in f

    @abstractmethod
    def targets(self, y: Shaped[Tensor, "*b n"]) -> Float[Tensor, "*b n c"]:
        """Outputs as real site targets: y itself, counts on the log scale, or +1 / -1 for classes."""

    @abstractmethod
    def log_prob(self, f: Float[Tensor, "*b v c"], y: Shaped[Tensor, "*y v"]) -> Float[Tensor, "*b v"]:
        r"""$\log p(y \mid f)$."""

    def check(self, y: Tensor) -> None:  # noqa: B027 - any real y is fine unless a likelihood says otherwise
        """Refuses outputs this likelihood gives no probability to. Called where data enters, never in the loop."""

    def nodes(self, q: Marginals, noise: Noise = None) -> Nodes:
        """Nodes that integrate against q: its own when it is discrete, Gauss-Hermite for a Normal."""
        return q.hermite(self.hermite_nodes) if isinstance(q, Normal) else q.nodes()

    def expected_log_prob(self, q: Marginals, y: Shaped[Tensor, "*b v"], noise: Noise = None) -> Float[Tensor, "*b v"]:
        r"""$E_{q(f)}[\log p(y \mid f)]$, a lower bound on the log predictive density."""
        nodes = self.nodes(q, noise)
        return nodes.mean(self.log_prob(nodes.f, y))

    def log_predictive(self, q: Marginals, y: Shaped[Tensor, "*b v"], noise: Noise = None) -> Float[Tensor, "*b v"]:
        r"""$\log E_{q(f)}[p(y \mid f)]$ (eq. 20)."""
        nodes = self.nodes(q, noise)
        return nodes.log_mean_exp(self.log_prob(nodes.f, y))


class RealLikelihood(Likelihood, ABC):
    """A likelihood of real or count outputs: predictions are a mean, a variance and a distribution function."""

    @abstractmethod
    def moments(self, f: Float[Tensor, "*b v 1"]) -> tuple[Float[Tensor, "*b v"], Float[Tensor, "*b v"]]:
        r"""Mean and variance of $p(y \mid f)$."""

    @abstractmethod
    def cdf(self, f: Float[Tensor, "*b v 1"], y: Float[Tensor, "*y v"]) -> Float[Tensor, "*b v"]:
        r"""$P(Y \le y \mid f)$."""

    def predict(self, q: Marginals, noise: Noise = None) -> tuple[Float[Tensor, "*b v"], Float[Tensor, "*b v"]]:
        """Predictive mean and variance, by the laws of total expectation and variance."""
        nodes = self.nodes(q, noise)
        mean, var = self.moments(nodes.f)
        centre = nodes.mean(mean)
        return centre, nodes.mean(var) + nodes.mean((mean - centre).square())

    def predictive_cdf(self, q: Marginals, y: Float[Tensor, "*b v"], noise: Noise = None) -> Float[Tensor, "*b v"]:
        r"""$P(Y \le y)$ under the predictive distribution: uniform over tasks if predictions are calibrated.

        This is eq. 21.
        """
        nodes = self.nodes(q, noise)
        return nodes.mean(self.cdf(nodes.f, y))


class ClassLikelihood(Likelihood, ABC):
    """A likelihood of integer class labels: predictions are probabilities."""

    classes: int

    @abstractmethod
    def probabilities(self, f: Float[Tensor, "*b v c"]) -> Float[Tensor, "*b v classes"]:
        r"""$p(y = \cdot \mid f)$."""

    def predict(self, q: Marginals, noise: Noise = None) -> Float[Tensor, "*b v classes"]:
        """Predictive class probabilities."""
        nodes = self.nodes(q, noise)
        return nodes.mean(self.probabilities(nodes.f))

    def check(self, y: Tensor) -> None:
        """Refuses labels that are not integers in 0 .. classes - 1."""
        if y.is_floating_point() or y.dtype == torch.bool:
            raise TypeError(f"class labels must be integers in 0..{self.classes - 1}; got {y.dtype}.")
        if y.numel() and (int(y.min()) < 0 or int(y.max()) >= self.classes):
            raise ValueError(
                f"class labels must lie in 0..{self.classes - 1}; got {int(y.min())}..{int(y.max())}. "
                "Relabel the classes of each task from 0, or build the likelihood for more classes."
            )


class Gaussian(RealLikelihood):
    r"""$p(y \mid f) = N(y \mid f, \sigma^2)$, with everything in closed form.

    Args:
        noise: starting value of the noise variance.
        floor: its lower bound, which is also what keeps K + S well conditioned in the exact encoder.
        learn: whether the noise variance is learned.
    """

    def __init__(self, noise: float = 1.0, *, floor: float = 1e-3, learn: bool = True) -> None:
        super().__init__()
        self.noise = Positive(noise, floor=floor, learn=learn)

    def targets(self, y: Tensor) -> Tensor:
        """Y itself."""
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
        r"""$\log N(y \mid \mu, v + \sigma^2)$ for a Normal q."""
        if not isinstance(q, Normal):
            return super().log_predictive(q, y, noise)
        var = q.var.squeeze(-1) + lift(self.noise(), 1)
        return -0.5 * (log(2 * pi) + var.log() + (y - q.mean.squeeze(-1)).square() / var)

    def predict(self, q: Marginals, noise: Noise = None) -> tuple[Tensor, Tensor]:
        r"""$\mu$ and $v + \sigma^2$."""
        return q.mean.squeeze(-1), q.var.squeeze(-1) + lift(self.noise(), 1)

    def predictive_cdf(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$\Phi((y - \mu) / \sqrt{v + \sigma^2})$ for a Normal q."""
        if not isinstance(q, Normal):
            return super().predictive_cdf(q, y, noise)
        mean, var = self.predict(q)
        return torch.special.ndtr((y - mean) / var.sqrt())

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        r"""$f$ and $\sigma^2$."""
        f = f.squeeze(-1)
        return f, lift(self.noise(), 1).expand_as(f)

    def cdf(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$\Phi((y - f) / \sigma)$."""
        return torch.special.ndtr((y - f.squeeze(-1)) / lift(self.noise(), 1).sqrt())


class StudentT(RealLikelihood):
    r"""$p(y \mid f) = t_\nu(y \mid f, \sigma)$: heavy tails, so that outliers do not drag the function along.

    Args:
        scale: starting value of $\sigma^2$ (the squared scale).
        df: degrees of freedom $\nu$, above 2 so that the variance exists.
        floor: lower bound of the squared scale.
    """

    def __init__(self, scale: float = 1.0, *, df: float = 4.0, floor: float = 1e-3) -> None:
        super().__init__()
        if df <= 2:
            raise ValueError(f"df must be above 2 for the predictive variance to exist; got {df}.")
        self.df = df
        self.scale = Positive(scale, floor=floor)

    def targets(self, y: Tensor) -> Tensor:
        """Y itself."""
        return y.unsqueeze(-1)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$-\log B(\frac12, \frac\nu2) \sqrt\nu \sigma - \frac{\nu+1}2 \log(1 + r^2/\nu)$, $r = (y - f)/\sigma$."""
        nu, scale = self.df, lift(self.scale(), 1)
        constant = lgamma((nu + 1) / 2) - lgamma(nu / 2) - 0.5 * log(nu * pi)
        squared = (y - f.squeeze(-1)).square() / scale
        return constant - 0.5 * scale.log() - 0.5 * (nu + 1) * torch.log1p(squared / nu)

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


class Poisson(RealLikelihood):
    r"""$p(y \mid f) = \mathrm{Poisson}(y \mid e^f)$ for counts."""

    hermite_nodes = 128  # $e^{-e^f}$ falls so steeply that 32 are off by several per cent for a wide q

    def targets(self, y: Tensor) -> Tensor:
        r"""$\log(1 + y)$: counts on the scale of f."""
        return torch.log1p(_floating(y)).unsqueeze(-1)

    def check(self, y: Tensor) -> None:
        """Refuses anything but counts."""
        if y.numel() and (bool((y < 0).any()) or (y.is_floating_point() and bool((y != y.round()).any()))):
            raise ValueError("Poisson outputs must be counts 0, 1, 2, ...; got negative or fractional values.")

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$y f - e^f - \log y!$."""
        y, f = y.to(f.dtype), f.squeeze(-1)
        return y * f - f.exp() - torch.lgamma(y + 1)

    def expected_log_prob(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        r"""$y \mu - e^{\mu + v/2} - \log y!$ for a Normal q (eq. 19)."""
        if not isinstance(q, Normal):
            return super().expected_log_prob(q, y, noise)
        y, mean, var = y.to(q.mean.dtype), q.mean.squeeze(-1), q.var.squeeze(-1)
        return y * mean - (mean + var / 2).exp() - torch.lgamma(y + 1)

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        r"""$e^f$ twice."""
        rate = f.squeeze(-1).exp()
        return rate, rate

    def cdf(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$\Gamma(y + 1, e^f) / \Gamma(y + 1)$."""
        rate = f.squeeze(-1).exp()
        count = y.to(f.dtype).floor()
        return torch.where(count < 0, 0.0, torch.special.gammaincc(count.clamp(min=0).expand_as(rate) + 1, rate))


class Bernoulli(ClassLikelihood):
    r"""$p(y = 1 \mid f) = 1 / (1 + e^{-f})$: two classes, labels 0 and 1, one latent function."""

    classes = 2

    def targets(self, y: Tensor) -> Tensor:
        """-1 and +1."""
        return _signed(y).unsqueeze(-1)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$-\log(1 + e^{-y f})$ with $y \in \{-1, +1\}$."""
        return F.logsigmoid(_signed(y).to(f.dtype) * f.squeeze(-1))

    def probabilities(self, f: Tensor) -> Tensor:
        """p(0), p(1)."""
        return torch.cat([torch.sigmoid(-f), torch.sigmoid(f)], -1)


class Softmax(ClassLikelihood):
    r"""$p(y = n \mid f) = e^{f_n} / \sum_{n'} e^{f_{n'}}$ over N classes, each with a latent function of its own.

    The expectation over a Normal q has no closed form: it is estimated with reparameterised samples.

    Args:
        classes: N, the ways of the task.
        samples: how many.
    """

    def __init__(self, classes: int, *, samples: int = 200) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"Softmax needs at least 2 classes; got {classes}.")
        self.classes = self.latents = classes
        self.samples = samples

    def targets(self, y: Tensor) -> Tensor:
        """+1 in the column of a point's class, -1 in the others."""
        return 2.0 * F.one_hot(y, self.classes).to(torch.get_default_dtype()) - 1.0

    def nodes(self, q: Marginals, noise: Noise = None) -> Nodes:
        """Reparameterised samples of a Normal q; the nodes of a discrete q."""
        return q.monte_carlo(self.samples, noise) if isinstance(q, Normal) else q.nodes()

    def expected_log_prob(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        """A mean over nodes is the sum of those over parts of them."""
        return reduce(torch.add, self._parts(lambda nodes: nodes.mean(self.log_prob(nodes.f, y)), q, noise))

    def log_predictive(self, q: Marginals, y: Tensor, noise: Noise = None) -> Tensor:
        """The same on the log scale."""
        parts = self._parts(lambda nodes: nodes.log_mean_exp(self.log_prob(nodes.f, y)), q, noise)
        return reduce(torch.logaddexp, parts)

    def predict(self, q: Marginals, noise: Noise = None) -> Tensor:
        """Predictive class probabilities."""
        if torch.is_grad_enabled():  # nobody's gradient of N numbers a point is worth the trouble of parts
            return super().predict(q, noise)
        return reduce(torch.add, self._parts(lambda nodes: nodes.mean(self.probabilities(nodes.f)), q, noise))

    def _parts(self, g: Callable[[Nodes], Tensor], q: Marginals, noise: Noise) -> list[Tensor]:
        return draws.in_parts(g, q, self.samples, noise) if isinstance(q, Normal) else [g(q.nodes())]

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        r"""$f_y - \log \sum_n e^{f_n}$."""
        index = y.expand(f.shape[:-1]).unsqueeze(-1)
        return f.gather(-1, index).squeeze(-1) - torch.logsumexp(f, -1)

    def probabilities(self, f: Tensor) -> Tensor:
        """Softmax over the classes."""
        # PyTorch is ten times faster on a CPU where the few classes are not the innermost dimension.
        return torch.softmax(f.movedim(-1, 0).contiguous(), 0).movedim(0, -1)


def _floating(y: Tensor) -> Tensor:
    return y if y.is_floating_point() else y.to(torch.get_default_dtype())


def _signed(y: Tensor) -> Tensor:
    return 2 * _floating(y) - 1
