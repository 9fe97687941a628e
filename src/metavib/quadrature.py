r"""One-dimensional integrals that hold however wide q(f) is against p(y | f) (THEORY.md, section 6).

Gauss-Hermite nodes follow q alone: they are spread over its standard deviations, and a $p(y \mid f)$ much narrower than
q falls between two of them. The likelihoods of the package integrate in another variable instead, in which the
integrand is smooth whatever the width of q: the mixing variable of Student's t and of the logistic function, and f
itself between the two places where a Poisson's integrand has vanished. There the plainest rule of all, equally spaced
nodes of equal weight, is exact to many digits with a few dozen nodes: the trapezoidal rule converges exponentially for
analytic functions that vanish at both ends.
"""

from functools import lru_cache
from math import log, pi, sqrt

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

NEGLIGIBLE = 24.0
"""An integrand is cut off where its logarithm has fallen by this much: $e^{-24}$ is four in a hundred billion."""


def trapezoid(
    low: Float[Tensor, "*b"], high: Float[Tensor, "*b"], k: int
) -> tuple[Float[Tensor, " k *b"], Float[Tensor, "*b"]]:
    """k equally spaced nodes from `low` to `high`, and the distance between two of them, which is the weight of each.

    The ends count in full, since the integrand is negligible there. Nodes are constants: the integral does not depend
    on where they are, so that no gradient has to pass through their places.

    Example:
        >>> import torch
        >>> x, h = trapezoid(torch.tensor(-8.0), torch.tensor(8.0), 40)
        >>> round(((-x.square() / 2).exp().sum() * h).item() ** 2 / 2, 4)  # pi
        3.1416
    """
    low, high = low.detach(), high.detach()
    h = (high - low) / (k - 1)
    steps = torch.arange(k, dtype=h.dtype, device=h.device)
    return low + h * steps.reshape(-1, *(1,) * h.ndim), h


def reach(a: Float[Tensor, "*b"], precision: Float[Tensor, "*b"] | float = 0.0) -> tuple[Tensor, Tensor]:
    r"""Where $a (e^x - 1 - x) + \frac12 p x^2$ has risen from 0 to `NEGLIGIBLE`, left and right of x = 0 (eq. 22e).

    That is how far from its mode a log-gamma density ($p = 0$), or a Poisson likelihood times a Gaussian of precision
    p, still counts. The function is convex: Newton's steps from outside never step over the place that is looked for.

    Example:
        >>> import torch
        >>> left, right = reach(torch.tensor(1.0))
        >>> round(left.item(), 2), round(right.item(), 2)
        (-25.0, 3.35)
    """
    T, a = NEGLIGIBLE, a.clamp(min=1e3 * torch.finfo(a.dtype).tiny)  # so that e^x does not overflow below
    # e^x - 1 - x is above x^2 / (2 - x) and above -x - 1 for x < 0; above x^2 / 2, and e^x / 2 from 1.7 on, for x > 0
    left = -torch.minimum(
        (T + (T * T + 8 * a * T).sqrt()) / (2 * a), 2 * (T + a) / (a + torch.hypot(a, (2 * precision * (T + a)).sqrt()))
    )
    right = torch.minimum((2 * T / (a + precision)).sqrt(), (2 * T / a).log().clamp(min=1.7))
    for _ in range(2):
        left, right = (
            x - (a * (torch.expm1(x) - x) + precision * x * x / 2 - T) / (a * torch.expm1(x) + precision * x)
            for x in (left, right)
        )
    return left, right


@lru_cache(maxsize=16)
def hermite(k: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    r"""Nodes $x_i$ and logarithms of the weights of Gauss-Hermite: $E[g(\epsilon)] = \sum_i w_i g(\sqrt2 x_i)$.

    Example:
        >>> import torch
        >>> x, log_w = hermite(8, torch.float64, torch.device("cpu"))
        >>> round((log_w.exp() * (2**0.5 * x) ** 4).sum().item(), 6)  # the fourth moment of a standard normal
        3.0
    """
    x, w = np.polynomial.hermite.hermgauss(k)
    return _tensors(x, np.log(w) - log(sqrt(pi)), dtype, device)


@lru_cache(maxsize=16)
def logistic_mixture(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    r"""Variances $\tau_i^2$ and logarithms of weights with $1 / (1 + e^{-f}) = \sum_i w_i \Phi(f / \tau_i)$ (eq. 22g).

    The logistic distribution is a scale mixture of Gaussians whose standard deviation is $\tau = 2 \kappa$, where
    $\kappa$ has the distribution of Kolmogorov and Smirnov (Andrews and Mallows 1974). On the logarithm of $\kappa$, 28
    nodes leave an error below 1e-8.

    Example:
        >>> import torch
        >>> tau2, log_w = logistic_mixture(torch.float64, torch.device("cpu"))
        >>> Phi = torch.distributions.Normal(0.0, 1.0).cdf
        >>> round((log_w.exp() * Phi(2.0 / tau2.sqrt())).sum().item(), 6), round(1 / (1 + 2.718281828**-2), 6)
        (0.880797, 0.880797)
    """
    kappa = np.geomspace(0.17, 3.8, 28)
    n = np.arange(1, 40)[:, None]
    # two series of the same density: one for small kappa, one for large
    squared = ((2 * n - 1) * pi) ** 2
    small = sqrt(2 * pi) * ((squared / (4 * kappa**4) - 1 / kappa**2) * np.exp(-squared / (8 * kappa**2))).sum(0)
    large = 8 * kappa * ((-1.0) ** (n + 1) * n**2 * np.exp(-2 * (n * kappa) ** 2)).sum(0)
    w = kappa * np.where(kappa < 1, small, large)
    return _tensors(4 * kappa**2, np.log(w / w.sum()), dtype, device)


def _tensors(x: np.ndarray, log_w: np.ndarray, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(x, dtype=dtype, device=device), torch.as_tensor(log_w, dtype=dtype, device=device)
