r"""Yes or no in many groups: the hierarchical prior behind a logistic function, by expectation propagation.

The log-odds of a yes are a function of the columns that all groups share and one of each group's own, as in THEORY.md,
section 12; only the likelihood of a row is another, $\sigma(\pm f)$. Expectation propagation puts a Gaussian site
$N(m_j \mid f_j, 1/\tau_j)$ into its place, the one under which mean and variance of $f_j$ are what they are under
$\sigma$ itself and the sites of all *other* rows (`matched`). Under such sites everything is Gaussian, and what
`metavib.groups` does with real outputs is done with the sites: outputs $m_j$ of weight $\tau_j$ and noise 1.

1. Kernels start where the evidence of the yes as a number, 0 or 1, is highest (`choose`), in units of log-odds.
2. In turns, sites are matched and the kernels' parameters follow the evidence of the sites: `climb`. Where sites have
   converged its gradient is that of the evidence of the labels themselves, in the approximation of expectation
   propagation.
3. The posterior of what groups share is that of the sites of many rows.
"""

from collections.abc import Sequence
from copy import deepcopy
from math import log, pi
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from metavib import quadrature
from metavib.groups import learning
from metavib.groups.evidence import Group, Shared, log_evidence, marginals, said_by, shared, whiten
from metavib.groups.features import Features
from metavib.groups.prior import hierarchical
from metavib.groups.rows import Block, blocks, members
from metavib.model import Model

ROWS = 3000  # that set the kernels' parameters: a yes or no says less than a number does
TURNS, SWEEPS, ITERATIONS = 5, 6, 6  # turns, and in each the sweeps over all sites and the iterations of L-BFGS
LAST = 10  # sweeps over the sites of all rows that the shared function is learned from
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


def log_odds(y: Float[Tensor, " rows"], weight: Float[Tensor, " rows"]) -> float:
    """Those of a yes among some rows, of which there is always half a one at least."""
    yes, no = float((weight * y).sum()), float((weight * (1 - y)).sum())
    return log(max(yes, 0.5) / max(no, 0.5))


def learn_logistic(
    x: Float[Tensor, "rows d"],
    y: Float[Tensor, " rows"],
    group: np.ndarray,
    base: float,
    *,
    seed: int,
    weight: Float[Tensor, " rows"],
) -> Model:
    """Learns the prior of the log-odds of a yes in a new group, beyond those of all rows together.

    Args:
        x: standardised columns, in float64.
        y: 1 for a yes, 0 for a no.
        group: the group of each row, numbered from 0.
        base: log-odds that all others are relative to.
        seed: of samples.
        weight: how many rows each stands for.
    """
    random, sets = np.random.default_rng(seed), members(group)
    features = _start(x, y, group, random, weight)
    sign = 2 * y - 1
    site = Natural(torch.full_like(y, 0.2), 0.5 * sign)
    some = learning.sample(sets, ROWS, learning.EVIDENCE_EACH, random)
    for _ in range(TURNS):
        site, _ = sweep(features, x, sign, base, weight, list(blocks(some)), site, SWEEPS)
        climb(features, x, site.m - base, weight * site.tau, some)
    many = learning.sample(sets, learning.REFINE_ROWS, learning.SHARED_EACH, random)
    _, w = sweep(features, x, sign, base, weight, list(blocks(many)), site, LAST)
    sampled = x[torch.as_tensor(np.concatenate(many)[:4000])]
    return hierarchical(features, w, learning.directions(features.own(sampled)), 1.0, sampled)


def _start(x: Tensor, y: Tensor, group: np.ndarray, random: np.random.Generator, weight: Tensor) -> Features:
    """Features under which the evidence of y as a number is highest, in units of log-odds: $p (1 - p)$ of them."""
    p = float(y.mean())
    scale = max(p * (1 - p), 1e-3) ** 0.5
    features = deepcopy(learning.choose(x, (y - p) / scale, group, (), random, weight=weight).features)
    with torch.no_grad():
        for variance in features.variances:
            variance.sub_(2 * log(scale))
        features.slope.div_(scale)
    return features.requires_grad_(False)


@torch.no_grad()
def sweep(
    features: Features,
    x: Tensor,
    sign: Tensor,
    base: float,
    weight: Tensor,
    of: Sequence[Block],
    site: Natural,
    sweeps: int,
) -> tuple[Natural, Shared]:
    """Matches the sites of all rows of some groups, again and again; returns them, and the posterior of w under them.

    Args:
        features: of the rows.
        x: rows `(rows, d)`.
        sign: 1 for a yes, -1 for a no.
        base: log-odds that functions are relative to.
        weight: how many rows each stands for.
        of: the groups.
        site: where to start.
        sweeps: how many times.
    """
    made = [(b, features.shared(b.take(x)), features.own(b.take(x))) for b in of]
    for _ in range(sweeps):
        root = (weight * site.tau).sqrt()
        groups = [_observed(b, phi, psi, site.m - base, root) for b, phi, psi in made]
        whitened = [whiten(group) for group in groups]
        w = shared(learning.total(said_by(*pair) for pair in whitened))
        moved = Natural(*(t.clone() for t in site))
        for (b, *_), group, pair in zip(made, groups, whitened, strict=True):
            real = b.mask > 0
            at, r = b.places[real], root[b.places[real]]
            mean, var = (t[real] for t in marginals(group, *pair, w))
            old = Natural(site.tau[at], site.nu[at])
            new = towards(old, matched(sign[at], mean / r + base, var / r.square(), old, weight[at]))
            moved.tau[at], moved.nu[at] = new
        site = moved
    return site, w


def _observed(b: Block, phi: Tensor, psi: Tensor, m: Tensor, root: Tensor) -> Group:
    """Rows with outputs m, all multiplied by roots of their precisions, so that their noise is 1."""
    r = b.take(root).unsqueeze(-1)
    return Group(phi * r, psi * r, b.take(root * m), torch.ones_like(b.mask))


def climb(features: Features, x: Tensor, m: Tensor, tau: Tensor, sets: Sequence[np.ndarray]) -> None:
    """Moves the features' parameters, in place, to where the evidence of sites is higher.

    Args:
        features: start and result.
        x: rows `(rows, d)`.
        m: outputs that the sites stand for.
        tau: their precisions.
        sets: the rows of each group.
    """
    root, rows = tau.sqrt(), sum(len(s) for s in sets)
    taken = [(b, b.take(x)) for b in blocks(sets)]
    parameters = list(features.requires_grad_().parameters())

    def value() -> Tensor:
        groups = [_observed(b, features.shared(xs), features.own(xs), m, root) for b, xs in taken]
        return log_evidence(groups, rows) + features.log_prior()

    learning.maximise(value, parameters, ITERATIONS)
    features.requires_grad_(False)
