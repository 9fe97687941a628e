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
3. The posterior of what groups share is that of the sites of many rows: `prior_given`.
4. Where boosted trees of other groups know more of a row than the shared function does (`gain`), all is learned once
   more with what they say as a column: `learn_with_trees`.
"""

from collections.abc import Sequence
from copy import deepcopy
from math import log
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from metavib import linalg
from metavib.groups import learning
from metavib.groups.evidence import Group, Shared, log_evidence, marginals, said, said_by, shared, whiten
from metavib.groups.features import Features
from metavib.groups.prior import hierarchical
from metavib.groups.rows import Block, blocks, members
from metavib.groups.sites import Natural, matched, towards
from metavib.groups.trees import Grown, beside, grow_folds, with_trees
from metavib.priors import FunctionPrior

ROWS = 3000  # that set the kernels' parameters: a yes or no says less than a number does
TURNS, SWEEPS, ITERATIONS = 8, 3, 5  # turns, and in each the sweeps over all sites and the iterations of L-BFGS
LAST = 10  # sweeps over the sites of all rows that the shared function is learned from
WORTH, CHANCE = 0.02, 2.0  # share of the log loss that trees must take away, and standard errors of that
STEPS = 10  # of Newton's method


def log_odds(y: Float[Tensor, " rows"], weight: Float[Tensor, " rows"]) -> float:
    """Those of a yes among some rows, of which there is always half a one at least."""
    yes, no = float((weight * y).sum()), float((weight * (1 - y)).sum())
    return log(max(yes, 0.5) / max(no, 0.5))


class Logit(NamedTuple):
    """What was learned of a yes, and from which rows.

    Features, base log-odds, sites of the rows that were looked at, and the prior; `x` are the rows as they were learned
    from, with the column of trees where these were `grown`.
    """

    features: Features
    x: Tensor
    sign: Tensor
    base: float
    site: Natural
    prior: FunctionPrior
    grown: Grown | None


def learn_logistic(
    x: Float[Tensor, "rows d"],
    y: Float[Tensor, " rows"],
    group: np.ndarray,
    base: float,
    *,
    seed: int,
    weight: Float[Tensor, " rows"],
) -> Logit:
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
    p = float(y.mean())
    scale = max(p * (1 - p), 1e-3) ** 0.5  # standard deviation of y, which is 1 / scale in log-odds
    features, sign = _start(x, y, group, scale, random, weight), 2 * y - 1
    site = _unmatched(sign)
    some = learning.sample(sets, ROWS, learning.EVIDENCE_EACH, random)
    for _ in range(TURNS):
        site, _ = sweep(features, x, sign, base, weight, list(blocks(some)), site, SWEEPS)
        climb(features, x, site.m - base, weight * site.tau, some, level=1 / scale**2)
    return _given(features, x, sign, base, site, sets, random, weight)


def learn_given(
    features: Features, x: Tensor, y: Tensor, group: np.ndarray, base: float, *, seed: int, weight: Tensor
) -> Logit:
    """The same where the kernels and their parameters are known: only what groups share is learned.

    Args:
        features: the kernels.
        x: standardised columns, in float64.
        y: 1 for a yes, 0 for a no.
        group: the group of each row, numbered from 0.
        base: log-odds that all others are relative to.
        seed: of samples.
        weight: how many rows each stands for.
    """
    sign = 2 * y - 1
    return _given(features, x, sign, base, _unmatched(sign), members(group), np.random.default_rng(seed), weight)


def _unmatched(sign: Tensor) -> Natural:
    """Where sites start."""
    return Natural(torch.full_like(sign, 0.2), 0.5 * sign)


def _given(
    features: Features,
    x: Tensor,
    sign: Tensor,
    base: float,
    site: Natural,
    sets: Sequence[np.ndarray],
    random: np.random.Generator,
    weight: Tensor,
) -> Logit:
    """What groups share, under features that are learned."""
    many = learning.sample(sets, learning.REFINE_ROWS, learning.SHARED_EACH, random)
    site, w = sweep(features, x, sign, base, weight, list(blocks(many)), site, LAST)
    return Logit(features, x, sign, base, site, _prior(features, w, x, many), None)


def learn_with_trees(of: Logit, group: np.ndarray, fold: np.ndarray, *, seed: int, weight: Tensor) -> Logit:
    """The same with the column of boosted trees, where these know more of rows of other groups; else as it was.

    Whether it is better after some rows of a group are known is another question, for groups held out to answer.

    Args:
        of: what was learned without them.
        group: the group of each row, numbered from 0.
        fold: of each group, numbered from 0: what is tried on groups of a fold was learned from the others.
        seed: of samples.
        weight: how many rows each stands for.
    """
    if not of.x.shape[1] or fold.max() < 1:
        return of
    y = (of.sign + 1) / 2
    grown = grow_folds(of.x, y, weight, fold[group])
    share, error = gain(of, weight, group, fold, grown.column)
    if share < max(WORTH, CHANCE * error):
        return of
    found = learn_logistic(beside(of.x, grown.column), y, group, of.base, seed=seed, weight=weight)
    return found._replace(prior=with_trees(found.prior, grown.trees), grown=grown)


def prior_given(of: Logit, weight: Tensor, sets: Sequence[np.ndarray], without: int) -> FunctionPrior:
    """The prior of a new group given some groups alone, under features that were learned from all.

    Args:
        of: what was learned.
        weight: how many rows each stands for.
        sets: the rows of each of these groups.
        without: the fold that these groups are not of, which trees know nothing of either.
    """
    _, w = sweep(of.features, of.x, of.sign, of.base, weight, list(blocks(sets)), of.site, SWEEPS)
    prior = _prior(of.features, w, of.x, sets)
    return prior if of.grown is None else with_trees(prior, of.grown.without[without])


class Gain(NamedTuple):
    """The share of the log loss that a column takes away, and the standard error of that."""

    share: float
    error: float


@torch.no_grad()
def gain(of: Logit, weight: Tensor, group: np.ndarray, fold: np.ndarray, column: Tensor) -> Gain:
    """What a column adds to what is known of rows before the first row of their group.

    Two logistic regressions are compared on the same rows: of the shared function that groups of other folds give, and
    of that and the column.

    Args:
        of: what was learned without the column.
        weight: how many rows each stands for.
        group: of each row.
        fold: of each group.
        column: of each row, from other folds alone.
    """
    sets = learning.sample(members(group), ROWS, learning.EVIDENCE_EACH, np.random.default_rng(0))
    rows, g = _beforehand(of, weight, [[s for s in sets if fold[group[s[0]]] == k] for k in range(int(fold.max()) + 1)])
    y, w, one = (of.sign[rows] + 1) / 2, weight[rows], torch.ones_like(g)
    before = _regression(torch.stack([one, g], 1), y, w)
    after = _regression(torch.stack([one, g, column[rows]], 1), y, w)
    total = float((w * before).sum())
    each = np.bincount(group[rows.numpy()], (w * (before - after)).numpy())
    return Gain(float(each.sum()) / total, float(np.linalg.norm(each)) / total)


def _beforehand(of: Logit, weight: Tensor, folds: Sequence[Sequence[np.ndarray]]) -> tuple[Tensor, Tensor]:
    """Rows of some groups by folds, and the shared function that the groups of all other folds give them."""
    folds = [sets for sets in folds if sets]
    root = (weight * of.site.tau).sqrt()
    says = []
    for sets in folds:
        made = (_observed(b, *_both(of.features, b.take(of.x)), of.site.m - of.base, root) for b in blocks(sets))
        says.append(learning.total(said(group) for group in made))
    whole, rows, g = learning.total(says), [], []
    for sets, its in zip(folds, says, strict=True):
        rows.append(torch.as_tensor(np.concatenate(sets)))
        g.append(of.features.shared(of.x[rows[-1]]) @ shared(whole - its).w)
    return torch.cat(rows), torch.cat(g)


def _regression(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The log loss of each row under a logistic regression of them all, by Newton's method."""
    c = z.new_zeros(z.shape[1])
    for _ in range(STEPS):
        p = torch.sigmoid(z @ c)
        H = z.mT @ ((weight * p * (1 - p)).unsqueeze(1) * z) + linalg.identity_like(z.mT @ z)
        c = c + torch.linalg.solve(H, z.mT @ (weight * (y - p)) - c)
    return torch.nn.functional.softplus(-(2 * y - 1) * (z @ c))


def _prior(features: Features, w: Shared, x: Tensor, sets: Sequence[np.ndarray]) -> FunctionPrior:
    sampled = x[torch.as_tensor(np.concatenate(sets)[:4000])]
    prior = hierarchical(features, w, learning.directions(features.own(sampled)), 1.0, sampled).prior
    assert isinstance(prior, FunctionPrior)
    return prior


def _start(
    x: Tensor, y: Tensor, group: np.ndarray, scale: float, random: np.random.Generator, weight: Tensor
) -> Features:
    """Features under which the evidence of y as a number is highest, in units of log-odds."""
    features = deepcopy(learning.choose(x, (y - y.mean()) / scale, group, (), random, weight=weight).features)
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
    made = [(b, *_both(features, b.take(x))) for b in of]
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


def _both(features: Features, x: Tensor) -> tuple[Tensor, Tensor]:
    return features.shared(x), features.own(x)


def _observed(b: Block, phi: Tensor, psi: Tensor, m: Tensor, root: Tensor) -> Group:
    """Rows with outputs m, all multiplied by roots of their precisions, so that their noise is 1."""
    r = b.take(root).unsqueeze(-1)
    return Group(phi * r, psi * r, b.take(root * m), torch.ones_like(b.mask))


def climb(features: Features, x: Tensor, m: Tensor, tau: Tensor, sets: Sequence[np.ndarray], *, level: float) -> None:
    """Moves the features' parameters, in place, to where the evidence of sites is higher.

    A dozen yes and no say next to nothing of the slope of each of many columns in one group. Where every column may
    have a slope as large as a single one would, slopes take the place of the level: of fifty groups of a dozen rows,
    which differ by a level of variance 1 and nothing else, fifteen columns of zeros and ones take a variance of 2.6,
    and 0.6 where the prior divides slopes among the columns, as it does here. Levels it expects to vary as the outputs
    0 and 1 do, in log-odds.

    Args:
        features: start and result.
        x: rows `(rows, d)`.
        m: outputs that the sites stand for.
        tau: their precisions.
        sets: the rows of each group.
        level: how many times as much as other parts do levels vary, beforehand.
    """
    among = max(1, features.sizes.varying)
    root, rows = tau.sqrt(), sum(len(s) for s in sets)
    taken = [(b, b.take(x)) for b in blocks(sets)]
    parameters = list(features.requires_grad_().parameters())

    def value() -> Tensor:
        groups = [_observed(b, *_both(features, xs), m, root) for b, xs in taken]
        return log_evidence(groups, rows) + features.log_prior(level=level, among=among)

    learning.maximise(value, parameters, ITERATIONS)
    features.requires_grad_(False)
