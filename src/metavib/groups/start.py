r"""What is predicted of a group before its first row: where its rows lie says something of its level.

A group's own function is independent of its inputs in the prior, and so the shared function is what holds *within*
groups: one more year of school, in the same town. But towns with more schooling may differ in more than that (Mundlak
1978), and of a new group of which no row is known an input is all there is. Then

$$E[y \mid x] = g(x) + d(x), \qquad d(x) = E[h_i(x) \mid \text{a row of group i is at } x]$$

is the better prediction. From the first known row on, the rows themselves say what the level is, and d is left out.

Groups held out say what d is, in one of two ways. *On top of* the shared function (a share a = 1 of it is kept), d is a
kernel ridge regression of what their rows are above g, that of other groups. *In its place* (a = 0) the regression is
that of the rows themselves, as neighbours or boosted trees would do it: where groups differ much, few of them say
little of what holds within groups, g errs far out, and the plain regression of all rows is better as long as nothing
else is known. So

$$d(x) = k(x, U) (k(U, U) + \lambda S)^{-1} (z - a\, g(U)) - (1 - a)\, g(x)$$

for rows U with outputs z. Here k is a Gaussian kernel over all columns and S makes a group of many rows count as one of
few. a and $\lambda$ are those of the smallest errors on other groups still; unless these are smaller by more than
chance makes of it with G groups, $\max(0.05, 0.5/\sqrt G)$, d is zero. The error that is left was the smallest of
many, and comes from G groups: it is taken as larger by $1 + 2/G$. By how much variances change is what it is over those
that were expected, or more where less than 90 % of the errors would lie in intervals of that: they need not be large
where the variances of g are.
"""

from collections.abc import Sequence
from copy import deepcopy
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from metavib.groups.prior import across, columns_of, started
from metavib.groups.report import GROUPS, Held
from metavib.likelihoods import Gaussian, Warped
from metavib.model import Model
from metavib.priors import FunctionPrior
from metavib.tasks.inputs import Points

ANCHORS = 600  # rows U at most
EACH = 15  # of a group, at most
PENALTIES = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)  # lambda
SHARES = (1.0, 0.0)  # a, of the shared function
WORTH, FEW = 0.05, 0.5  # share of the error that d must take away, with many groups and, over their root, with few
PARTS = 4
NARROWEST = 0.02  # factor of the variances, at least
LEVEL, WITHIN = 0.9, 1.6449**2  # of intervals, and within how many squared deviations of a Gaussian so much lies


class Above(NamedTuple):
    """Rows of groups held out: inputs, what they are above the shared function g, S, the variance expected, and g."""

    x: Float[Tensor, "rows d"]
    r: Float[Tensor, " rows"]
    s: Float[Tensor, " rows"]
    var: Float[Tensor, " rows"]
    g: Float[Tensor, " rows"]

    def above(self, share: float) -> Float[Tensor, " rows"]:
        """What the rows are above a share of g."""
        return self.r + (1 - share) * self.g


class Start(NamedTuple):
    r"""$\sum_j w_j k(x, u_j)$ beside a share of g, and the factor of the variance of a prediction with it."""

    anchors: Float[Tensor, "k d"]
    weights: Float[Tensor, " k"]
    factor: float
    share: float

    def at(self, x: Float[Tensor, "rows d"]) -> Float[Tensor, " rows"]:
        """What is added to the share of g at some inputs."""
        return across(x, self.anchors) @ self.weights


def begin(model: Model, held: Sequence[Held], x: Tensor, y: Tensor, weight: Tensor) -> list[Held]:
    """Gives d to a model and, from all groups but its own, to each model of groups held out, where it is worth it.

    Args:
        model: of all groups.
        held: models, and groups that they know nothing of.
        x: rows.
        y: their outputs.
        weight: by which the noise variance of each row is divided.

    Returns models and groups held out, as many as there are parts of them with a d of their own.
    """
    parts = list(held)
    if len(parts) == 1:  # others are needed to learn d from
        only = parts[0]
        ends = [slice(k, None, PARTS) for k in range(min(PARTS, len(only.groups)))]
        parts = [Held(deepcopy(only.model), only.groups[k], only.aside[k]) for k in ends]
    if len(parts) < 2 or not x.shape[1]:  # without inputs there is nothing that d could be of
        return parts
    rows = [above(part, x, y, weight, ANCHORS // len(parts)) for part in parts]
    best, groups = chosen(rows), sum(len(part.groups[:GROUPS]) for part in parts)
    if best.left > 1 - max(WORTH, FEW / sqrt(groups)):
        return parts
    best = best._replace(factor=best.factor * (1 + 2 / groups))
    for k, part in enumerate(parts):
        started(part.model, *fitted(_joined(rows[:k] + rows[k + 1 :]), best.penalty, best.factor, best.share))
    started(model, *fitted(_joined(rows), best.penalty, best.factor, best.share))
    return parts


@torch.no_grad()
def above(held: Held, x: Tensor, y: Tensor, weight: Tensor, most: int) -> Above:
    """What some rows of groups held out are above the shared function of the others."""
    prior, likelihood = held.model.prior, held.model.likelihood
    assert isinstance(prior, FunctionPrior) and isinstance(likelihood, Gaussian | Warped)
    groups = held.groups[:GROUPS]
    each = max(1, min(EACH, most // max(1, len(groups))))
    sets = [rows[:: max(1, -(-len(rows) // each))] for rows in groups[:most]]
    i = torch.as_tensor(np.concatenate(sets))
    phi = prior.features_of(Points(x[i], torch.ones(len(i), dtype=torch.bool)))
    mean, var = prior.kernel.mean(phi), prior.kernel.diagonal(prior.kernel.embed(phi)) + likelihood.noise() / weight[i]
    assert mean is not None
    sizes = torch.as_tensor(np.concatenate([np.full(len(rows), float(len(rows))) for rows in sets]))
    off = (likelihood.targets(y[i]) - mean).squeeze(-1)
    return Above(columns_of(held.model, x[i]), off, sizes / weight[i], var, mean.squeeze(-1))


class Chosen(NamedTuple):
    """The best penalty and share of g, how much of the error is `left`, and its square over the variances expected."""

    penalty: float
    left: float
    factor: float
    share: float


def chosen(parts: Sequence[Above]) -> Chosen:
    """The penalty and the share of g under which each part is best predicted by d of the others."""

    def squares(penalty: float, share: float) -> Tensor:
        found = []
        for k, part in enumerate(parts):
            others = fitted(_joined([*parts[:k], *parts[k + 1 :]]), penalty, 1.0, share)
            found.append((part.above(share) - others.at(part.x)).square())
        return torch.cat(found)

    found = {(penalty, share): squares(penalty, share) for share in SHARES for penalty in PENALTIES}
    best, whole = min(found, key=lambda way: float(found[way].sum())), _joined(parts)
    left = (float(found[best].sum()) / max(float(whole.r.square().sum()), 1e-12)) ** 0.5
    factors = (found[best].sum() / whole.var.sum(), torch.quantile(found[best] / whole.var, LEVEL) / WITHIN)
    return Chosen(best[0], left, max(*(float(f) for f in factors), NARROWEST), best[1])


def fitted(rows: Above, penalty: float, factor: float, share: float = 1.0) -> Start:
    r"""The kernel ridge regression of some rows: weights $(k(U, U) + \lambda S)^{-1} (z - a\, g(U))$."""
    K = across(rows.x, rows.x) + torch.diag(penalty * rows.s / rows.s.mean())
    return Start(rows.x, torch.linalg.solve(K, rows.above(share)), factor, share)


def _joined(parts: Sequence[Above]) -> Above:
    return Above(*(torch.cat(column) for column in zip(*parts, strict=True)))
