r"""Gaussian sites of rows that are yes or no, by matching moments: one step of expectation propagation."""

from math import log, pi
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from metavib import quadrature

DAMPING = 0.7  # of the way to its match a site goes in a sweep: all of them move at once
TAUS = (1e-6, 1.0)  # of log-concave likelihoods whose curvature is at most 1/4 they are within (0, 1/4]
SMALLEST = 1e-9  # variance, where rounding leaves none


class Natural(NamedTuple):
    r"""Sites by their precisions $\tau$ and $\nu = \tau m$; a row without a site has zeros."""

    tau: Tensor
    nu: Tensor

    @property
    def m(self) -> Tensor:
        """The outputs that sites stand for."""
        return self.nu / self.tau


def matched(
    sign: Float[Tensor, "*b"],
    mean: Float[Tensor, "*b"],
    var: Float[Tensor, "*b"],
    site: Natural,
    weight: Float[Tensor, "*b"] | float = 1.0,
) -> Natural:
    r"""The sites that expectation propagation puts in the place of $\sigma(\pm f)$.

    Without its own site f has $N(m, v)$. With $Z = E[\sigma(\pm f)]$ under it, $g = \partial_m \log Z$ and $h =
    \partial_m^2 \log Z$, the mean under the likelihood itself is $m + v g$ and the variance $v + v^2 h$: those that a
    site of $\tau = -h / (1 + v h)$ and $\nu = (g - m h) / (1 + v h)$ gives.

    Args:
        sign: 1 for a yes, -1 for a no.
        mean: of f, under all sites.
        var: of f.
        site: those that it was found under.
        weight: how many rows each stands for, with as many equal sites; of these one is taken out.

    Example:
        A yes where nothing but N(0, 4) is known, against the same by numbers.

        >>> yes, zero = torch.ones(1).double(), torch.zeros(1).double()
        >>> tau, nu = matched(yes, zero, 4 * yes, Natural(zero, zero))
        >>> f = torch.linspace(-30, 30, 6001).double()
        >>> p = torch.sigmoid(f) * torch.exp(-f.square() / 8)
        >>> mean = (p * f).sum() / p.sum()
        >>> var = (p * (f - mean).square()).sum() / p.sum()
        >>> bool(torch.isclose(1 / (tau + 1 / 4), var, rtol=1e-4)), bool(torch.isclose(nu * var, mean, rtol=1e-4))
        (True, True)
    """
    taken = torch.as_tensor(weight, dtype=mean.dtype).clamp(max=1.0)
    v = 1 / (1 / var.clamp(min=SMALLEST) - taken * site.tau).clamp(min=SMALLEST)
    m = v * (mean / var.clamp(min=SMALLEST) - taken * site.nu)
    g, h = _slopes(sign, m, v)
    rest = (1 + v * h).clamp(min=SMALLEST)
    return Natural((-h / rest).clamp(*TAUS), (g - m * h) / rest)


def towards(site: Natural, target: Natural) -> Natural:
    """Sites a good part of the way to others."""
    return Natural(*(old + DAMPING * (new - old) for old, new in zip(site, target, strict=True)))


def _slopes(sign: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    r"""First and second derivative of $\log E[\sigma(\pm f)]$, $f \sim N(m, v)$, by m (eq. 22h)."""
    tau2, log_w = (t.reshape(-1, *(1,) * m.ndim) for t in quadrature.logistic_mixture(m.dtype, m.device))
    s = (tau2 + v).sqrt()
    z = sign * m / s
    log_Phi = torch.special.log_ndtr(z)
    share = torch.softmax(log_w + log_Phi, 0)
    ratio = torch.exp(-0.5 * z * z - 0.5 * log(2 * pi) - log_Phi)
    g = sign * (share * ratio / s).sum(0)
    return g, -(share * ratio * z / s.square()).sum(0) - g.square()
