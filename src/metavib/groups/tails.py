r"""How wide predictions of new groups are, and how heavy their tails: what groups held out show.

The evidence sets the variances of functions and noise as if they were known, the same in all groups, and Gaussian. None
of it is quite true: kernels are learned from few groups, some groups are wilder than others, and some rows are far off.
So all variances of a group, of its functions and of its noise, are known up to a factor,

$$\frac{c}{\lambda_i}, \qquad \lambda_i \sim \Gamma\big(\tfrac a2, \tfrac a2\big),$$

and the rows of the group say something of it. With $\delta = r^\top (K + S)^{-1} r$ of n known rows, whose mean is n,
the predictions have the factor $\rho = (a + \delta) / (a + n)$ and a + n degrees of freedom: this is the Student-t
process, in closed form, from sums that the memory of a group holds anyway (eq. 33a). Each row has such a factor of its
own as well, of $\nu$ degrees of freedom, so that a row far off stays possible however many are known:

$$y \mid \text{n rows} \sim t_d\big(\mu,\; \rho\, c\, (v + \sigma^2)\big), \qquad \frac1d = \frac1{a + n} + \frac1\nu.$$

Where groups are alike and rows Gaussian, a and $\nu$ become large and this is the Gaussian prediction again. Of c, a
and $\nu$ those are taken under which groups held out have the highest density after 0, 1, 3, 5 and 10 known rows, times
a prior, which is what remains where there are few groups: that tails are of little weight, and that *variances* are
what the evidence says. A t distribution has the variance $d / (d - 2)$ times its squared scale. So the prior of c lies
around the mean of $(d - 2) / d$ over those numbers of rows, not around 1: tails make a prediction of a different shape,
and not a wider one. But G groups are no more than G draws of what groups are like. The variances that they show are
known with about G degrees of freedom, and those that are too small by chance cost more than those that are too large.
So the prior of a lies around G where there are less than twenty groups, and that of c is larger by $1 + 2/G$. Rows that
are left out of learning, since they cannot be right, count among the rows that are predicted: new groups may have such
rows too.

With few groups and many columns a group's own function can follow every row that was learned from, and the evidence
then finds less noise than there is: predictions are too sure the more rows of a group are known. So the noise variance
may be larger by one more factor than c, the best of `NOISES` by the same density.
"""

from collections.abc import Sequence
from copy import deepcopy
from math import inf, log, log1p, sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib.groups.prior import widened
from metavib.groups.report import GROUPS, KNOWN, Held
from metavib.groups.rows import block
from metavib.likelihoods import Gaussian, Warped
from metavib.posteriors.functions import Dual, Primal
from metavib.priors import FunctionPrior
from metavib.tasks.inputs import Points
from metavib.tasks.task import Examples

QUERIES = 10  # rows of each group that are predicted, beside those that were left out of learning
LOWEST = 4.2  # of a and nu: the variance of predictions exists, whatever is known
SPREAD = 0.2  # deviation of log c in its prior: with few groups variances stay what the evidence says
USUAL, DECADES = 3.0, 1.5  # mean (of many groups) and deviation of log(a - LOWEST) and log(nu - LOWEST) in theirs
FEW = 2.0  # over the number of groups: by what share variances are larger, since they are known from these alone
WIDTHS = (0.5, 4.0)  # of c: rows without noise would make it nothing, and a group's own function with it
NOISES = (1.0, 1.4, 2.0, 2.8, 4.0, 8.0)  # factors of the noise variance alone
LOUDER = 1.0  # deviation of the logarithm of such a factor in its prior
ROWS = 20  # rows of a group that count at most


class Tails(NamedTuple):
    r"""c, by which variances are larger; a and $\nu$, degrees of freedom of groups and rows; the factor of the noise.

    Example:
        >>> Tails(0.9, 20.0, 20.0).freedom(np.array([0, 10])).round(2).tolist()  # after no row, and ten
        [10.0, 12.0]
    """

    factor: float
    groups: float
    rows: float
    noise: float = 1.0

    def freedom(self, known: np.ndarray) -> np.ndarray:
        r"""Degrees of freedom d of predictions after some numbers of known rows: $1/d = 1/(a + n) + 1/\nu$."""
        return 1 / (1 / (self.groups + known) + 1 / self.rows)

    def neutral(self, known: Sequence[int]) -> "Tails":
        """The same tails with the c that leaves variances as they are, by the mean of their logarithms."""
        d = self.freedom(np.array(known))
        return self._replace(factor=float(np.exp(np.mean(np.log((d - 2) / d)))))


def usual() -> Tails:
    """What is taken for true before any group is held out.

    Example:
        >>> usual().groups == usual().rows > LOWEST and usual().factor < 1
        True
    """
    return _tails(np.array([0.0, USUAL, USUAL])).neutral(KNOWN)


class Residuals(NamedTuple):
    """Predicted rows with `known` rows of their group: by how much they are `off`, and what the model expects.

    `var` is the variance of the prediction, noise included, `deviation` is delta of the known rows, `share` how much
    the row counts.
    """

    known: np.ndarray
    off: np.ndarray
    var: np.ndarray
    deviation: np.ndarray
    share: np.ndarray

    def log_density(self, tails: Tails) -> np.ndarray:
        """Of each row, as a number on the scale of the function."""
        from scipy.special import gammaln

        c, a, *_ = tails
        scale = c * self.var * (a + self.deviation / c) / (a + self.known)
        d = tails.freedom(self.known)
        constant = gammaln((d + 1) / 2) - gammaln(d / 2) - 0.5 * np.log(np.pi * d * scale)
        return constant - 0.5 * (d + 1) * np.log1p(self.off**2 / (d * scale))

    def mean_log_density(self, tails: Tails) -> float:
        """Of all rows."""
        return float(np.average(self.log_density(tails), weights=self.share))


def tails(held: Sequence[Held], x: Tensor, y: Tensor, weight: Tensor, seed: int) -> Tails:
    """What groups held out show of the width and the tails of predictions, and of their noise.

    Args:
        held: models, and groups that they know nothing of.
        x: rows.
        y: their outputs.
        weight: by which the noise variance of each row is divided.
        seed: decides which rows are known.
    """
    if not held:
        return usual()
    sizes = [len(rows) for each in held for rows in each.groups[:GROUPS]]
    best, most = usual(), -inf
    for noise in NOISES:
        random = np.random.default_rng(seed)
        louder = [each._replace(model=widened(deepcopy(each.model), 1.0, noise=noise)) for each in held]
        found = []
        for known in KNOWN:
            parts = [residuals(each, x, y, weight, known, random) for each in louder]
            found.append(Residuals(*(np.concatenate(column) for column in zip(*parts, strict=True))))
        way, value = fitted([part for part in found if len(part.off)], sizes)
        value -= 0.5 * (log(noise) / LOUDER) ** 2
        if value < most:
            break
        best, most = way._replace(noise=noise), value
    return best


def fitted(parts: Sequence[Residuals], sizes: Sequence[int]) -> tuple[Tails, float]:
    """The best c, a and nu for the residuals at each number of known rows, which count alike; and how good they are.

    Rows of one group are off together. So a group of n rows counts as sqrt(n) of them.
    """
    from scipy.optimize import minimize

    groups = len(sizes)
    count = groups * sqrt(min(ROWS, sum(sizes) / groups))
    likely = np.array([min(USUAL, log(groups)), USUAL])
    known = [int(part.known[0]) for part in parts]

    def negative(theta: np.ndarray) -> float:
        found = _tails(theta)
        value = np.mean([part.mean_log_density(found) for part in parts])
        wider = theta[0] - log(found.neutral(known).factor) - log1p(FEW / groups)
        prior = (wider / SPREAD) ** 2 + (((theta[1:] - likely) / DECADES) ** 2).sum()
        return float(0.5 * prior - count * value)

    start = np.array([0.0, *likely])
    simplex = start + np.concatenate([np.zeros((1, 3)), 0.5 * np.eye(3)])
    options = {"initial_simplex": simplex, "maxiter": 150, "xatol": 0.02, "fatol": 0.01}
    found = minimize(negative, start, method="Nelder-Mead", options=options)
    return _tails(found.x), -float(found.fun)


def _tails(theta: np.ndarray) -> Tails:
    factor, groups, rows = np.exp(np.clip(theta, -7.0, 7.0)).tolist()
    return Tails(min(max(factor, WIDTHS[0]), WIDTHS[1]), LOWEST + groups, LOWEST + rows)


@torch.no_grad()
def residuals(held: Held, x: Tensor, y: Tensor, weight: Tensor, known: int, random: np.random.Generator) -> Residuals:
    """How far rows of groups held out are from what is predicted of them with some rows known.

    Of a group all rows left out of learning are asked for, and some of the others. They count as if these were all.
    """
    model, likelihood = held.model, held.model.likelihood
    assert isinstance(likelihood, Gaussian | Warped)
    support, asked, shares = [], [], []
    for rows, aside in zip(held.groups[:GROUPS], held.aside[:GROUPS], strict=True):
        order = random.permutation(rows)
        others = order[known : known + QUERIES]
        if len(others):
            support.append(order[:known])
            asked.append(np.concatenate([others, aside]))
            shares += [1.0] * len(others) + [len(others) / len(rows)] * len(aside)
    if not asked:
        return Residuals(*(np.zeros(0) for _ in Residuals._fields))
    s, q = torch.as_tensor(np.stack(support)), block(asked)
    known_rows = Examples(x[s], y[s], torch.ones(s.shape, dtype=torch.bool))
    encoding = model.encoder(known_rows, Points(x[q.places], q.mask > 0), model.prior, likelihood, weight=weight[s])
    posterior, at = encoding.posterior, encoding.marginals()
    assert isinstance(posterior, Dual | Primal)
    off = (likelihood.targets(y[q.places]) - at.mean).squeeze(-1)
    var = at.var.squeeze(-1) + likelihood.noise() / weight[q.places]
    assert isinstance(model.prior, FunctionPrior)
    if not known and (before := model.prior.kernel.before(encoding.query)) is not None:
        level, factor = before
        off, var = off - level.squeeze(-1), var * factor
    deviation = posterior.deviation().unsqueeze(-1).expand_as(off)
    columns = [t[q.mask > 0].numpy() for t in (torch.full_like(off, known), off, var, deviation)]
    return Residuals(*[*columns, np.array(shares)])
